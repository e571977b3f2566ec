/* Multicast is trusted only after it has been seen to work: a small all-reduce through the switch,
 * copies to the multicast address, and where GPUs have it a sum of 8-bit floats, each checked on
 * every rank. */
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

/* A sum of TRIAL_COUNT words that are all alike. */
struct sum {
    enum kernel_id kernel;
    uint32_t word;     /* of this rank */
    uint32_t expected; /* but for what `free` has */
    uint32_t free;
    const char *what, *step;
};

/* Enqueues; the stream ends soon whatever happens, for the kernel has its own deadline. */
static enum smfar_status run_sum(struct smfar_comm *comm, const struct sum *sum, uint32_t *words)
{
    enum smfar_dtype dtype = kernel_rows[sum->kernel].dtype;
    uint64_t count = TRIAL_COUNT * sizeof(uint32_t) / dtype_bytes((int)dtype);
    enum smfar_status status;
    struct driver *driver = comm->driver;
    struct kargs args;
    struct call call = {.comm = comm,
                        .stream = comm->stream,
                        .collective = COLLECTIVE_ALL_REDUCE,
                        .dtype = dtype,
                        .op = SMFAR_SUM,
                        .root = -1,
                        .count = count,
                        .kernel = sum->kernel,
                        .channel = &comm->window->called,
                        .sequence = 1,
                        .hash = 1};
    memset(&args, 0, sizeof(args));
    args.offset = comm->window->slot;
    args.count = count;
    CU(cuMemsetD32Async, slot_address(comm), sum->word, TRIAL_COUNT, comm->stream);
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

static enum smfar_status check_words(const uint32_t *words, uint32_t expected, uint32_t free,
                                     const char *what)
{
    for (int i = 0; i < TRIAL_COUNT; i++)
        if ((words[i] ^ expected) & ~free)
            return FAIL(SMFAR_ERR_DRIVER, "%s gave 0x%x where 0x%x is right", what, words[i],
                        expected);
    return SMFAR_OK;
}

/* What my own kernel has to say of the sum. One that another rank released says nothing: that rank
 * knows why. */
static enum smfar_status check_sum(const struct smfar_comm *comm, const struct sum *sum,
                                   const uint32_t *words)
{
    const struct error_record *record = &comm->page.host->error[comm->rank];
    if (record->code == ERROR_TIMEOUT)
        return FAIL(SMFAR_ERR_TIMEOUT, "the kernel of rank %d was not there within %lld ms",
                    (int)record->peer, (long long)atomic_load(&comm->timeout_ms));
    if (atomic_load(&comm->page.host->words[comm->rank].released)) return SMFAR_OK;
    return check_words(words, sum->expected, sum->free, sum->what);
}

static enum smfar_status try_sum(struct smfar_comm *comm, const struct sum *sum)
{
    uint32_t *words = calloc(TRIAL_COUNT, sizeof(words[0]));
    enum smfar_status status =
        words ? SMFAR_OK : FAIL(SMFAR_ERR_MEMORY, "no memory for trying multicast");
    int64_t timeout = atomic_load(&comm->timeout_ms);
    /* over before the supervisor takes the wait for a driver call that never returns */
    atomic_store(&comm->timeout_ms, timeout / 4 < TRIAL_MS ? timeout / 4 : TRIAL_MS);
    if (status == SMFAR_OK) status = run_sum(comm, sum, words);
    if (status == SMFAR_OK) status = check_sum(comm, sum, words);
    atomic_store(&comm->timeout_ms, timeout);
    if (!comm->unsettled) free(words);
    return exchange_agree(comm->exchange, status, sum->step);
}

enum smfar_status trial_multicast(struct smfar_comm *comm)
{
    uint32_t n = (uint32_t)comm->ranks;
    struct sum sum = {.kernel = KERNEL_all_reduce_twoshot_mc_sum_i32,
                      .word = (uint32_t)comm->rank + 1,
                      .expected = n * (n + 1) / 2,
                      .what = "a sum in the switch",
                      .step = "trying multicast"};
    return try_sum(comm, &sum);
}

/* Four sums side by side, lowest byte first: 16 and 1.5, and nothing of ranks from 2 on, which is
 * nearest to 18; the largest number, 448, of all; a NaN, of either sign, with ones; and -448. */
enum smfar_status trial_multicast_float8(struct smfar_comm *comm)
{
    static const uint32_t first = 0xfe7f7e58, second = 0xfe387e3c, rest = 0xfe387e00;
    struct sum sum = {.kernel = KERNEL_all_reduce_twoshot_mc_sum_f8_e4m3,
                      .word = comm->rank == 0   ? first
                              : comm->rank == 1 ? second
                                                : rest,
                      .expected = 0xfe7f7e59,
                      .free = 0x00800000,
                      .what = "a sum of 8-bit floats in the switch",
                      .step = "trying sums of 8-bit floats"};
    return try_sum(comm, &sum);
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
        TRY(check_words(words, (uint32_t)r + 1, 0, "a copy to the multicast address"));
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
