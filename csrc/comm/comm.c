/* The life of a communicator, and its context on the calling thread. */
#include "comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../base/log.h"
#include "../base/thread.h"
#include "../bootstrap/unique_id.h"
#include "../memory/registered.h"
#include "capture.h"
#include "courier.h"
#include "failure.h"
#include "life.h"
#include "mail.h"
#include "watchdog.h"
#include "work.h"

static const int64_t MOST_TIMEOUT_MS = 1000000000000;

/* How long destroy waits for work of a group that has failed. */
enum { DRAIN_AFTER_FAILURE_MS = 2000, AWAIT_OTHERS_MS = 2000 };

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
    if (status == SMFAR_OK && atomic_load(&comm->finalized))
        return FAIL(SMFAR_ERR_UNSUPPORTED,
                    "this rank has left the group: its communicator has been "
                    "finalized");
    return status == SMFAR_OK ? failure_check(comm) : status;
}

void comm_set_timeout(struct smfar_comm *comm, int64_t timeout_ms)
{
    atomic_store(&comm->timeout_ms, timeout_ms < MOST_TIMEOUT_MS ? timeout_ms : MOST_TIMEOUT_MS);
}

static enum smfar_status check_arguments(const struct smfar_config *config, int rank, int ranks,
                                         smfar_comm **comm_out)
{
    if (!config || !comm_out) return FAIL(SMFAR_ERR_ARGUMENT, "config and comm_out are needed");
    if (ranks < 1 || ranks > SMFAR_MAX_RANKS || rank < 0 || rank >= ranks)
        return FAIL(SMFAR_ERR_ARGUMENT,
                    "rank %d of %d: smfar serves 1 to %d ranks, numbered from 0", rank, ranks,
                    SMFAR_MAX_RANKS);
    if (config->sm_budget < 0 || config->timeout_ms < 0)
        return FAIL(SMFAR_ERR_ARGUMENT, "sm_budget and timeout_ms must not be negative");
    return SMFAR_OK;
}

static enum smfar_status create(const struct smfar_config *config, const struct smfar_store *store,
                                const struct smfar_id *id, int rank, int ranks,
                                smfar_comm **comm_out)
{
    enum smfar_status status = check_arguments(config, rank, ranks, comm_out);
    if (status != SMFAR_OK) return status;
    struct smfar_comm *comm = calloc(1, sizeof(*comm));
    if (!comm) return FAIL(SMFAR_ERR_MEMORY, "no memory for a communicator");
    comm->rank = rank;
    comm->ranks = ranks;
    comm->owner_pid = (int)getpid();
    pthread_mutex_init(&comm->lock, NULL);
    pthread_mutex_init(&comm->side_lock, NULL);
    pthread_mutex_init(&comm->path_lock, NULL);
    pthread_mutex_init(&comm->leave_lock, NULL);
    log_set_rank(rank);
    status = setup_run(comm, config, store, id);
    if (status != SMFAR_OK) return status;
    atomic_store(&comm->ready, 1);
    *comm_out = comm;
    return SMFAR_OK;
}

enum smfar_status smfar_comm_create(const struct smfar_config *config,
                                    const struct smfar_store *store, int rank, int ranks,
                                    smfar_comm **comm_out)
{
    if (!store || !store->set || !store->get)
        return FAIL(SMFAR_ERR_ARGUMENT, "a store with its two functions is needed");
    return create(config, store, NULL, rank, ranks, comm_out);
}

enum smfar_status smfar_comm_init_rank(const struct smfar_id *id, int rank, int ranks,
                                       const struct smfar_config *config, smfar_comm **comm_out)
{
    enum smfar_status status = unique_id_check(id);
    return status == SMFAR_OK ? create(config, NULL, id, rank, ranks, comm_out) : status;
}

static int stream_ended(struct smfar_comm *comm)
{
    for (int waited = 0; waited < DRAIN_AFTER_FAILURE_MS; waited++) {
        if (work_released(comm, atomic_load(&comm->sequence))) return 1;
        usleep(1000);
    }
    return 0;
}

/* Graphs with collectives of this group that are still there, and may be replayed. */
static uint32_t graphs_left(const struct smfar_comm *comm)
{
    return comm->page.host ? atomic_load(&comm->page.host->words[comm->rank].graphs) : 0;
}

/* Waits for this rank's own work. Returns 0 when it has not ended: its memory must then stay. */
static int drain(struct smfar_comm *comm)
{
    uint64_t sequence = atomic_load(&comm->sequence);
    if (comm->unsettled || graphs_left(comm)) return 0;
    if (!comm->page.host || sequence == 0 || !comm->last_stream) return 1;
    if (failure_check(comm) == SMFAR_OK) work_wait(comm, sequence, atomic_load(&comm->timeout_ms));
    if (failure_check(comm) != SMFAR_OK) return stream_ended(comm);
    return work_query(comm, sequence) == SMFAR_OK;
}

/* Tells that this rank leaves, and waits until no other rank's kernel can write to its memory
 * through the switch, or to memory that is registered, which goes back to whoever it is of: the
 * other half of channel.c's join_others. Returns 0 when that cannot be known. Peers' own mappings
 * keep the rest of what they write to. */
static int part(struct smfar_comm *comm, int drained)
{
    if (!comm->page.host) return drained;
    atomic_store(&comm->page.host->words[comm->rank].left, drained ? LEFT_QUIET : LEFT_RUNNING);
    if (!atomic_load(&comm->ready)) return drained;
    if (!comm->agreed.multicast && !registered_bytes(comm->window)) return drained;
    return drained && life_wait_quiet(comm, AWAIT_OTHERS_MS);
}

/* Waits for calls of other threads that came before; later ones are refused. Returns 0 when one
 * holds on for longer than any wait of a call may. */
static int outlast_calls(struct smfar_comm *comm)
{
    int64_t wait_ms = atomic_load(&comm->timeout_ms) + DRAIN_AFTER_FAILURE_MS;
    if (!thread_lock_within(&comm->lock, wait_ms)) return 0;
    pthread_mutex_unlock(&comm->lock);
    if (!thread_lock_within(&comm->side_lock, wait_ms)) return 0;
    pthread_mutex_unlock(&comm->side_lock);
    return 1;
}

static void destroy_gpu_objects(struct smfar_comm *comm)
{
    struct driver *driver = comm->driver;
    courier_free(comm);
    capture_free(comm, 1);
    if (comm->stream) CU_WARN(cuStreamDestroy, comm->stream);
    if (comm->order) CU_WARN(cuEventDestroy, comm->order);
    kernels_unload(comm->kernels);
    window_destroy(comm->window);
    page_destroy(&comm->page);
}

static void leave(struct smfar_comm *comm)
{
    int alone = outlast_calls(comm);
    int drained = drain(comm);
    if (alone) mail_stop(comm);
    atomic_store(&comm->quiet, part(comm, alone && drained && !comm->unsettled));
    watchdog_stop(comm);
}

void smfar_comm_finalize(smfar_comm *comm)
{
    if (!comm || comm->owner_pid != (int)getpid()) return; /* a forked child has no part in it */
    atomic_store(&comm->finalized, 1);
    pthread_mutex_lock(&comm->leave_lock); /* for no longer than leave() may take */
    if (!comm->left) leave(comm);
    comm->left = 1;
    pthread_mutex_unlock(&comm->leave_lock);
}

int smfar_comm_quiet(const smfar_comm *comm) { return comm && atomic_load(&comm->quiet); }

static void say_what_stays(uint32_t graphs, size_t registered)
{
    char more[96] = "";
    if (registered)
        snprintf(more, sizeof(more), ", and so do %zu bytes that are registered", registered);
    if (graphs)
        log_info("%u graphs hold collectives of this group; its memory stays until the process "
                 "ends%s",
                 graphs, more);
    else
        log_warn("kernels of this group may still run; its memory stays until the process ends%s",
                 more);
}

void smfar_comm_destroy(smfar_comm *comm)
{
    if (!comm || comm->owner_pid != (int)getpid()) return;
    smfar_comm_finalize(comm);
    int drained = atomic_load(&comm->quiet);
    if (!drained)
        say_what_stays(graphs_left(comm), comm->window ? registered_bytes(comm->window) : 0);
    if (drained) trial_free(comm);
    if (drained && comm->retained && comm_enter(comm) == SMFAR_OK) {
        destroy_gpu_objects(comm);
        comm_leave(comm);
    }
    struct driver *driver = comm->driver;
    if (drained && comm->retained) CU_WARN(cuDevicePrimaryCtxRelease, comm->device);
    exchange_destroy(comm->exchange); /* whoever supervises a driver call may need it until here */
    driver_close(comm->driver);
    pthread_mutex_destroy(&comm->lock);
    pthread_mutex_destroy(&comm->side_lock);
    pthread_mutex_destroy(&comm->path_lock);
    pthread_mutex_destroy(&comm->leave_lock);
    capture_free(comm, 0);
    free(comm->plans);
    free(comm->marks);
    free(comm);
}
