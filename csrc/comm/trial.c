/* Multicast is trusted only after it has been seen to work: a small all-reduce through the switch,
 * copies to the multicast address, and where GPUs have it a sum of 8-bit floats, each checked on
 * every rank. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../base/log.h"
#include "channel.h"
#include "comm.h"

enum {
    COUNT = 1021, /* odd: edges are tried too */
    PART = 1024,  /* bytes that each rank copies; so many for each, and one more, every slot has */
    TRIAL_MS = 10000,
    SETTLE_MS = 2000
};

/* Words of four sums of 8-bit floats, or of one sum of an integer. */
enum { KINDS = 4 };

/* What trials upload, and what they read back. */
static enum smfar_status take_memory(struct smfar_comm *comm)
{
    if (!comm->trial_memory) comm->trial_memory = calloc(SMFAR_MAX_RANKS, PART);
    return comm->trial_memory ? SMFAR_OK : FAIL(SMFAR_ERR_MEMORY, "no memory for trying multicast");
}

void trial_free(struct smfar_comm *comm)
{
    free(comm->trial_memory);
    comm->trial_memory = NULL;
}

/* Waits for the stream. When the driver refuses to, its copies may still come, into memory that a
 * failure gives back: what cannot be seen to have ended keeps that memory. */
static CUresult await_stream(struct smfar_comm *comm)
{
    struct driver *driver = comm->driver;
    CUresult result = CU_RESULT(cuStreamSynchronize, comm->stream), query = result;
    for (int waited = 0; query != CUDA_SUCCESS && waited < SETTLE_MS; waited++) {
        query = CU_RESULT(cuStreamQuery, comm->stream);
        if (query != CUDA_ERROR_NOT_READY) break;
        usleep(1000);
    }
    if (query != CUDA_SUCCESS && !comm->unsettled)
        log_warn("the driver does not say that a trial of multicast has ended; until it does, or "
                 "the process ends, the group keeps the memory that the trial may write to");
    comm->unsettled = query != CUDA_SUCCESS; /* the stream's end is that of all before, too */
    return result;
}

static enum smfar_status settle(struct smfar_comm *comm)
{
    CUresult result = await_stream(comm);
    if (result == CUDA_SUCCESS) return SMFAR_OK;
    return driver_failed_at(__FILE__, __LINE__, comm->driver, "cuStreamSynchronize", result);
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

/* A sum of COUNT words, of so many kinds in turn. */
struct sum {
    enum kernel_id kernel;
    unsigned kinds;
    uint32_t word[KINDS];     /* of this rank */
    uint32_t expected[KINDS]; /* but for what `free` has */
    uint32_t free[KINDS];
    const char *what, *step;
};

/* Enqueues; the stream ends soon whatever happens, for the kernel has its own deadline. */
static enum smfar_status run_sum(struct smfar_comm *comm, const struct sum *sum)
{
    enum smfar_dtype dtype = kernel_rows[sum->kernel].dtype;
    uint64_t bytes = COUNT * sizeof(uint32_t), count = bytes / dtype_bytes((int)dtype);
    enum smfar_status status;
    struct driver *driver = comm->driver;
    uint32_t *words;
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
    TRY(take_memory(comm));
    words = comm->trial_memory;
    for (unsigned i = 0; i < COUNT; i++)
        words[i] = sum->word[i % sum->kinds];
    CU(cuMemcpyHtoDAsync, slot_address(comm), words, bytes, comm->stream);
    TRY(still_together(comm));
    TRY(channel_launch(&call, call.kernel, 1, 256, 0, &args));
    CU(cuMemcpyDtoHAsync, words, slot_address(comm), bytes, comm->stream);
    return settle(comm);
fail:
    /* partner: the kernels' ld.relaxed.sys; the other ranks need not wait for this one's kernel */
    atomic_store(&comm->page.host->abort, 1);
    await_stream(comm);
    return status;
}

static enum smfar_status check_words(const struct sum *sum, const uint32_t *words)
{
    for (unsigned i = 0; i < COUNT; i++) {
        unsigned kind = i % sum->kinds;
        if ((words[i] ^ sum->expected[kind]) & ~sum->free[kind])
            return FAIL(SMFAR_ERR_DRIVER, "%s gave 0x%08x where 0x%08x is right", sum->what,
                        words[i], sum->expected[kind]);
    }
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
    return check_words(sum, words);
}

static enum smfar_status try_sum(struct smfar_comm *comm, const struct sum *sum)
{
    enum smfar_status status;
    int64_t timeout = atomic_load(&comm->timeout_ms);
    /* over before the supervisor takes the wait for a driver call that never returns */
    atomic_store(&comm->timeout_ms, timeout / 4 < TRIAL_MS ? timeout / 4 : TRIAL_MS);
    status = run_sum(comm, sum);
    if (status == SMFAR_OK) status = check_sum(comm, sum, comm->trial_memory);
    atomic_store(&comm->timeout_ms, timeout);
    return exchange_agree(comm->exchange, status, sum->step);
}

enum smfar_status trial_multicast(struct smfar_comm *comm)
{
    uint32_t n = (uint32_t)comm->ranks;
    struct sum sum = {.kernel = KERNEL_all_reduce_twoshot_mc_sum_i32,
                      .kinds = 1,
                      .word = {(uint32_t)comm->rank + 1},
                      .expected = {n * (n + 1) / 2},
                      .what = "a sum in the switch",
                      .step = "trying multicast"};
    return try_sum(comm, &sum);
}

/* Each byte of a word is a sum of its own, of what the first three ranks have and the others each.
 * Lowest byte first:
 * - rounding: 16 + 1.5 is nearest to 18; 16 + 1 and 18 + 1 lie between two numbers, of which 16 and
 *   20 are even; 16 + 1 + 1 is 18, but 16 if that is rounded on the way, unless 1 + 1 comes first
 *   (of two ranks it is 16 + 1);
 * - the same of negative numbers, -16 on another rank: 1 + 1 cannot come first in both;
 * - the largest number, 448, of all, and -448; 448 + 32; a NaN, of either sign, with ones;
 * - subnormals: the smallest number of all, which makes n of it; 7 + 1 and 8 - 1 of it; its
 * negative of all. Up to 16 of it, the code of so many is their number. */
enum smfar_status trial_multicast_float8(struct smfar_comm *comm)
{
    static const uint32_t of_rank[4][KINDS] = {{0x58595858, 0xb8d9d8d8, 0x7f7efe7e, 0x81080701},
                                               {0x3838383c, 0xd8b8b8bc, 0x3860fe7e, 0x81810101},
                                               {0x38000000, 0xb8808080, 0x3800fe7e, 0x81000001},
                                               {0x00000000, 0x80808080, 0x3800fe7e, 0x81000001}};
    uint32_t n = (uint32_t)comm->ranks, third = n > 2 ? 0x01000000 : 0;
    struct sum sum = {
        .kernel = KERNEL_all_reduce_twoshot_mc_sum_f8_e4m3,
        .kinds = KINDS,
        .expected = {0x585a5859 + third, 0xd8dad8d9 + third, 0x7f7efe7e, 0x80070800 | n << 24 | n},
        .free = {0, 0, 0x80000000, 0},
        .what = "a sum of 8-bit floats in the switch",
        .step = "trying sums of 8-bit floats"};
    memcpy(sum.word, of_rank[comm->rank < 3 ? comm->rank : 3], sizeof(sum.word));
    return try_sum(comm, &sum);
}

/* Copies to a rank's part of everybody's slot: all of it, and over that pieces of the sizes and at
 * the places that parts of tensors have: any. */
static const struct piece {
    size_t to, from, bytes;
} pieces[] = {{0, 0, PART}, {1, 2, 1},     {18, 40, 2},   {33, 49, 3},     {52, 20, 4},
              {72, 9, 8},   {96, 112, 16}, {131, 3, 127}, {288, 416, 256}, {601, 598, 301}};

/* Rank r's bytes before they are copied. */
static void fill_source(uint8_t *source, int r)
{
    for (unsigned i = 0; i < PART; i++)
        source[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + (unsigned)r * 31);
}

static enum smfar_status run_copies(struct smfar_comm *comm, uint8_t *source)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    CUdeviceptr mine = slot_address(comm);
    CUdeviceptr part =
        comm->window->multicast + comm->window->slot + PART * ((size_t)comm->rank + 1);
    fill_source(source, comm->rank);
    CU(cuMemcpyHtoDAsync, mine, source, PART, comm->stream);
    TRY(still_together(comm));
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
        CU(cuMemcpyAsync, part + pieces[i].to, mine + pieces[i].from, pieces[i].bytes,
           comm->stream);
    return settle(comm);
fail:
    await_stream(comm);
    return status;
}

/* Looks at what all ranks have copied to my slot. */
static enum smfar_status check_copies(struct smfar_comm *comm, uint8_t *copied)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    uint8_t source[PART], expected[PART];
    CU(cuMemcpyDtoHAsync, copied, slot_address(comm) + PART, PART * (size_t)comm->ranks,
       comm->stream);
    TRY(settle(comm));
    for (int r = 0; r < comm->ranks; r++, copied += PART) {
        fill_source(source, r);
        for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
            memcpy(expected + pieces[i].to, source + pieces[i].from, pieces[i].bytes);
        for (int i = 0; i < PART; i++)
            if (copied[i] != expected[i])
                return FAIL(SMFAR_ERR_DRIVER,
                            "of rank %d's copies to the multicast address byte %d came as 0x%02x, "
                            "not as 0x%02x",
                            r, i, copied[i], expected[i]);
    }
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status trial_multicast_copy(struct smfar_comm *comm)
{
    enum smfar_status status = take_memory(comm);
    if (status == SMFAR_OK) status = run_copies(comm, comm->trial_memory);
    status = exchange_agree(comm->exchange, status, "copying to the multicast address");
    if (status != SMFAR_OK) return status;
    status = check_copies(comm, comm->trial_memory);
    return exchange_agree(comm->exchange, status, "copying to the multicast address");
}
