/* Multicast is trusted only after it has been seen to work: a small all-reduce through the switch,
 * and copies to the multicast address, each checked on every rank. */
#include <string.h>

#include "channel.h"
#include "comm.h"

enum { TRIAL_COUNT = 1021, TRIAL_MS = 10000 }; /* an odd count: edges are tried too */

enum smfar_status trial_reset_signals(struct smfar_comm *comm)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    CU(cuMemsetD8Async, comm->window->peer[comm->rank], 0, WINDOW_SLOT, comm->stream);
    CU(cuStreamSynchronize, comm->stream);
    memset(&comm->page.host->error[comm->rank], 0, sizeof(struct error_record));
    return SMFAR_OK;
fail:
    return status;
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
                        .hash = 1};
    memset(&args, 0, sizeof(args));
    args.offset = comm->window->slot;
    args.count = TRIAL_COUNT;
    CU(cuMemsetD32Async, slot_address(comm), (unsigned)comm->rank + 1, TRIAL_COUNT, comm->stream);
    TRY(channel_launch(&call, call.kernel, 1, 256, 0, &args));
    CU(cuMemcpyDtoHAsync, words, slot_address(comm), TRIAL_COUNT * sizeof(words[0]), comm->stream);
    CU(cuStreamSynchronize, comm->stream);
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status check_words(const uint32_t *words, uint32_t expected, const char *what)
{
    for (int i = 0; i < TRIAL_COUNT; i++)
        if (words[i] != expected)
            return FAIL(SMFAR_ERR_DRIVER, "%s gave %u where %u is right", what, words[i], expected);
    return SMFAR_OK;
}

enum smfar_status trial_multicast(struct smfar_comm *comm)
{
    uint32_t words[TRIAL_COUNT] = {0};
    int64_t timeout = atomic_load(&comm->timeout_ms);
    atomic_store(&comm->timeout_ms, timeout < TRIAL_MS ? timeout : TRIAL_MS);
    enum smfar_status status = run_sum(comm, words);
    atomic_store(&comm->timeout_ms, timeout);
    uint32_t n = (uint32_t)comm->ranks;
    if (status == SMFAR_OK) status = check_words(words, n * (n + 1) / 2, "a sum in the switch");
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
    CU(cuMemcpyAsync, comm->window->multicast.base + part, slot_address(comm), bytes, comm->stream);
    CU(cuStreamSynchronize, comm->stream);
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status check_copies(struct smfar_comm *comm)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    uint32_t words[TRIAL_COUNT];
    for (int r = 0; r < comm->ranks; r++) {
        CUdeviceptr part = slot_address(comm) + sizeof(words) * ((size_t)r + 1);
        memset(words, 0, sizeof(words));
        CU(cuMemcpyDtoHAsync, words, part, sizeof(words), comm->stream);
        CU(cuStreamSynchronize, comm->stream);
        TRY(check_words(words, (uint32_t)r + 1, "a copy to the multicast address"));
    }
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status trial_multicast_copy(struct smfar_comm *comm)
{
    enum smfar_status status = run_copy(comm);
    status = exchange_agree(comm->exchange, status, "copying to the multicast address");
    if (status != SMFAR_OK) return status;
    return exchange_agree(comm->exchange, check_copies(comm), "copying to the multicast address");
}
