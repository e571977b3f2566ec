/* Multicast is trusted only after it has been seen to work: a small all-reduce through the switch,
 * and copies to the multicast address, each checked on every rank. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "channel.h"
#include "comm.h"

enum {
    TRIAL_COUNT = 1021,
    TRIAL_MS = 10000,
    SETTLE_MS = 2000
}; /* an odd count: edges are tried too */

/* Waits for the stream. When the driver refuses to, its copies may still come, into memory that a
 * failure gives back: what cannot be seen to have ended keeps that memory. */
static enum smfar_status settle(struct smfar_comm *comm)
{
    struct driver *driver = comm->driver;
    CUresult result = CU_RESULT(cuStreamSynchronize, comm->stream), query = CUDA_ERROR_NOT_READY;
    if (result == CUDA_SUCCESS) return SMFAR_OK;
    for (int waited = 0; query == CUDA_ERROR_NOT_READY && waited < SETTLE_MS; waited++) {
        query = CU_RESULT(cuStreamQuery, comm->stream);
        if (query == CUDA_ERROR_NOT_READY) usleep(1000);
    }
    comm->unsettled |= query != CUDA_SUCCESS;
    return driver_failed_at(__FILE__, __LINE__, driver, "cuStreamSynchronize", result);
}

enum smfar_status trial_reset_signals(struct smfar_comm *comm)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    CU(cuMemsetD8Async, comm->window->peer[comm->rank], 0, WINDOW_SLOT, comm->stream);
    TRY(settle(comm));
    memset(&comm->page.host->error[comm->rank], 0, sizeof(struct error_record));
    atomic_store(&comm->page.host->words[comm->rank].released, 0);
    atomic_store(&comm->page.host->abort, 0);
    return SMFAR_OK;
fail:
    return status;
}

/* Before work on the others' memory: a call that came back late finds that they have given up and
 * taken it away. */
static enum smfar_status still_together(const struct smfar_comm *comm)
{
    if (!exchange_broken(comm->exchange)) return SMFAR_OK;
    return FAIL(SMFAR_ERR_PEER, "the other ranks have given up");
}

static CUdeviceptr slot_address(const struct smfar_comm *comm)
{
    return comm->window->peer[comm->rank] + comm->window->slot;
}

/* Enqueues; the stream ends soon whatever happens, for the kernel has its own deadline. */
static enum smfar_status run_sum(struct smfar_comm *comm, uint32_t *words)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    struct kargs args;
    struct call call = {.comm = comm,
                        .stream = comm->stream,
                        .collective = COLLECTIVE_ALL_REDUCE,
                        .dtype = SMFAR_I32,
                        .op = SMFAR_SUM,
                        .root = -1,
                        .count = TRIAL_COUNT,
                        .kernel = KERNEL_all_reduce_twoshot_mc_sum_i32,
                        .channel = &comm->window->called,
                        .sequence = 1,
                        .hash = 1};
    memset(&args, 0, sizeof(args));
    args.offset = comm->window->slot;
    args.count = TRIAL_COUNT;
    CU(cuMemsetD32Async, slot_address(comm), (unsigned)comm->rank + 1, TRIAL_COUNT, comm->stream);
    TRY(still_together(comm));
    TRY(channel_launch(&call, call.kernel, 1, 256, 0, &args));
    CU(cuMemcpyDtoHAsync, words, slot_address(comm), TRIAL_COUNT * sizeof(words[0]), comm->stream);
    return settle(comm);
fail:
    /* partner: the kernels' ld.relaxed.sys; the other ranks need not wait for this one's kernel */
    atomic_store(&comm->page.host->abort, 1);
    settle(comm);
    return status;
}

static enum smfar_status check_words(const uint32_t *words, uint32_t expected, const char *what)
{
    for (int i = 0; i < TRIAL_COUNT; i++)
        if (words[i] != expected)
            return FAIL(SMFAR_ERR_DRIVER, "%s gave %u where %u is right", what, words[i], expected);
    return SMFAR_OK;
}

/* What my own kernel has to say of the sum. One that another rank released says nothing: that rank
 * knows why. */
static enum smfar_status check_sum(const struct smfar_comm *comm, const uint32_t *words)
{
    const struct error_record *record = &comm->page.host->error[comm->rank];
    uint32_t n = (uint32_t)comm->ranks;
    if (record->code == ERROR_TIMEOUT)
        return FAIL(SMFAR_ERR_TIMEOUT, "the kernel of rank %d was not there within %lld ms",
                    (int)record->peer, (long long)atomic_load(&comm->timeout_ms));
    if (atomic_load(&comm->page.host->words[comm->rank].released)) return SMFAR_OK;
    return check_words(words, n * (n + 1) / 2, "a sum in the switch");
}

enum smfar_status trial_multicast(struct smfar_comm *comm)
{
    uint32_t *words = calloc(TRIAL_COUNT, sizeof(words[0]));
    enum smfar_status status =
        words ? SMFAR_OK : FAIL(SMFAR_ERR_MEMORY, "no memory for trying multicast");
    int64_t timeout = atomic_load(&comm->timeout_ms);
    /* over before the supervisor takes the wait for a driver call that never returns */
    atomic_store(&comm->timeout_ms, timeout / 4 < TRIAL_MS ? timeout / 4 : TRIAL_MS);
    if (status == SMFAR_OK) status = run_sum(comm, words);
    if (status == SMFAR_OK) status = check_sum(comm, words);
    atomic_store(&comm->timeout_ms, timeout);
    if (!comm->unsettled) free(words);
    return exchange_agree(comm->exchange, status, "trying multicast");
}

/* Each rank copies a pattern of its own to its part of everybody's slot. */
static enum smfar_status run_copy(struct smfar_comm *comm)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    size_t bytes = TRIAL_COUNT * sizeof(uint32_t);
    size_t part = comm->window->slot + bytes * ((size_t)comm->rank + 1);
    CU(cuMemsetD32Async, slot_address(comm), (unsigned)comm->rank + 1, TRIAL_COUNT, comm->stream);
    TRY(still_together(comm));
    CU(cuMemcpyAsync, comm->window->multicast + part, slot_address(comm), bytes, comm->stream);
    return settle(comm);
fail:
    return status;
}

static enum smfar_status check_copies(struct smfar_comm *comm)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    size_t bytes = TRIAL_COUNT * sizeof(uint32_t);
    uint32_t *words = calloc(TRIAL_COUNT, sizeof(words[0]));
    if (!words) return FAIL(SMFAR_ERR_MEMORY, "no memory for trying multicast");
    for (int r = 0; r < comm->ranks; r++) {
        CUdeviceptr part = slot_address(comm) + bytes * ((size_t)r + 1);
        memset(words, 0, bytes);
        CU(cuMemcpyDtoHAsync, words, part, bytes, comm->stream);
        TRY(settle(comm));
        TRY(check_words(words, (uint32_t)r + 1, "a copy to the multicast address"));
    }
fail:
    if (!comm->unsettled) free(words);
    return status;
}

enum smfar_status trial_multicast_copy(struct smfar_comm *comm)
{
    enum smfar_status status = run_copy(comm);
    status = exchange_agree(comm->exchange, status, "copying to the multicast address");
    if (status != SMFAR_OK) return status;
    return exchange_agree(comm->exchange, check_copies(comm), "copying to the multicast address");
}
