/* The life of a communicator, and its context on the calling thread. */
#include "comm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../base/log.h"
#include "failure.h"
#include "watchdog.h"
#include "work.h"

static const int64_t MOST_TIMEOUT_MS = 1000000000000;

/* How long destroy waits for work of a group that has failed. */
enum { DRAIN_AFTER_FAILURE_MS = 2000, AWAIT_OTHERS_MS = 1000 };

enum smfar_status comm_enter(struct smfar_comm *comm)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    CU(cuCtxPushCurrent, comm->context);
    return SMFAR_OK;
fail:
    return status;
}

void comm_leave(struct smfar_comm *comm)
{
    struct driver *driver = comm->driver;
    CUcontext context;
    CU_WARN(cuCtxPopCurrent, &context);
}

enum smfar_status comm_check_process(const struct smfar_comm *comm)
{
    if (comm->owner_pid != (int)getpid())
        return FAIL(SMFAR_ERR_UNSUPPORTED,
                    "this communicator belongs to process %d; a forked child cannot use it: start "
                    "workers with spawn, or create groups after the fork",
                    comm->owner_pid);
    return SMFAR_OK;
}

enum smfar_status comm_check(struct smfar_comm *comm)
{
    enum smfar_status status = comm_check_process(comm);
    return status == SMFAR_OK ? failure_check(comm) : status;
}

void comm_set_timeout(struct smfar_comm *comm, int64_t timeout_ms)
{
    atomic_store(&comm->timeout_ms, timeout_ms < MOST_TIMEOUT_MS ? timeout_ms : MOST_TIMEOUT_MS);
}

enum smfar_status smfar_comm_create(const struct smfar_config *config,
                                    const struct smfar_store *store, int rank, int ranks,
                                    smfar_comm **comm_out)
{
    if (!config || !store || !store->set || !store->get || !comm_out)
        return FAIL(SMFAR_ERR_ARGUMENT, "config, store, its two functions and comm_out are needed");
    if (ranks < 1 || ranks > SMFAR_MAX_RANKS || rank < 0 || rank >= ranks)
        return FAIL(SMFAR_ERR_ARGUMENT,
                    "rank %d of %d: smfar serves 1 to %d ranks, numbered from 0", rank, ranks,
                    SMFAR_MAX_RANKS);
    if (config->sm_budget < 0 || config->timeout_ms < 0)
        return FAIL(SMFAR_ERR_ARGUMENT, "sm_budget and timeout_ms must not be negative");
    struct smfar_comm *comm = calloc(1, sizeof(*comm));
    if (!comm) return FAIL(SMFAR_ERR_MEMORY, "no memory for a communicator");
    comm->rank = rank;
    comm->ranks = ranks;
    comm->owner_pid = (int)getpid();
    pthread_mutex_init(&comm->lock, NULL);
    pthread_mutex_init(&comm->heap_lock, NULL);
    log_set_rank(rank);
    enum smfar_status status = setup_run(comm, config, store);
    if (status == SMFAR_OK) *comm_out = comm;
    return status;
}

static int stream_ended(struct smfar_comm *comm)
{
    for (int waited = 0; waited < DRAIN_AFTER_FAILURE_MS; waited++) {
        if (work_released(comm, atomic_load(&comm->sequence))) return 1;
        usleep(1000);
    }
    return 0;
}

/* Waits for this rank's own work. Returns 0 when it has not ended: its memory must then stay. */
static int drain(struct smfar_comm *comm)
{
    uint64_t sequence = atomic_load(&comm->sequence);
    if (comm->unsettled) return 0;
    if (!comm->page.host || sequence == 0 || !comm->last_stream) return 1;
    if (failure_check(comm) == SMFAR_OK) work_wait(comm, sequence, atomic_load(&comm->timeout_ms));
    if (failure_check(comm) != SMFAR_OK) return stream_ended(comm);
    return atomic_load(&comm->page.host->words[comm->rank].done) >= sequence;
}

/* The other half of channel.c's join_others: waits until every rank has ended what it had begun
 * before it could see that this one leaves. Bounded, since a rank that died never ends it. */
static void await_others(struct smfar_comm *comm)
{
    const struct page_words *words = comm->page.host->words;
    for (int r = 0, waited = 0; r < comm->ranks && waited < AWAIT_OTHERS_MS;)
        if (atomic_load(&words[r].left) ||
            atomic_load(&words[r].done) >= atomic_load(&words[r].begun))
            r++;
        else
            usleep(1000), waited++;
}

static void destroy_gpu_objects(struct smfar_comm *comm)
{
    struct driver *driver = comm->driver;
    if (comm->stream) CU_WARN(cuStreamDestroy, comm->stream);
    if (comm->order) CU_WARN(cuEventDestroy, comm->order);
    kernels_unload(comm->kernels);
    window_destroy(comm->window);
    page_destroy(&comm->page);
}

void smfar_comm_destroy(smfar_comm *comm)
{
    if (!comm) return;
    if (comm->owner_pid != (int)getpid()) return; /* a forked child owns nothing of it */
    int drained = drain(comm);
    watchdog_stop(comm);
    if (comm->page.host) atomic_store(&comm->page.host->words[comm->rank].left, 1);
    if (drained && comm->agreed.multicast) await_others(comm);
    if (!drained)
        log_warn("work of a failed group has not ended; its memory stays until the process ends");
    if (drained && comm->retained && comm_enter(comm) == SMFAR_OK) {
        destroy_gpu_objects(comm);
        comm_leave(comm);
    }
    struct driver *driver = comm->driver;
    if (drained && comm->retained) CU_WARN(cuDevicePrimaryCtxRelease, comm->device);
    exchange_destroy(comm->exchange); /* whoever supervises a driver call may need it until here */
    driver_close(comm->driver);
    pthread_mutex_destroy(&comm->lock);
    pthread_mutex_destroy(&comm->heap_lock);
    free(comm->plans);
    free(comm);
}
