/* Meetings of streams and hosts when not all is well, ranks being threads on the software switch: a
 * rank that does not call, or whose stream does not come, aborts, what counts as done after a
 * failure, a host far ahead of another, and ranks that call different things. */
#include <unistd.h>

#include "../../csrc/base/clock.h"
#include "../../csrc/comm/comm.h"
#include "ranks.h"
#include "switch.h"

enum {
    RANKS = 3,
    LATE = 1,
    COUNT = 3000,
    DEADLINE_MS = 1000, /* where a rank is late; the others come within it */
    SOON_MS = 20000,    /* what may pass beyond a deadline on a machine that is slow and busy */
    LONG_MS = 120000,
    POISON = -77
};

enum what { BARRIER, BROADCAST, ALL_GATHER, SPLIT_PEER, SPLIT_MC, WHATS };
static const char *const names[WHATS] = {"barrier", "broadcast", "all_gather", "all_reduce",
                                         "all_reduce"};

static pthread_barrier_t together;
static struct driver *driver;
static CUcontext contexts[RANKS]; /* outlive the communicators */
static int32_t plain[RANKS][(RANKS + 1) * COUNT];

static smfar_comm *join(struct ranks_thread *me)
{
    struct smfar_config config = {
        .driver = SMFAR_DRIVER_SOFT, .device = -1, .timeout_ms = LONG_MS, .window_bytes = 1 << 20};
    smfar_comm *comm = NULL;
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm));
    return comm;
}

/* All ranks have come so far; for what comes now they have not long. */
static void meet_and_hurry(smfar_comm *comm)
{
    pthread_barrier_wait(&together);
    smfar_comm_set_timeout(comm, DEADLINE_MS);
}

static enum smfar_status call(smfar_comm *comm, enum what what, int32_t *data, smfar_stream stream)
{
    struct smfar_hint hint = {.sm_budget = SMFAR_NO_SMS}; /* or else kernels meet */
    if (what == SPLIT_PEER) hint = (struct smfar_hint){.algorithm = "split_peer"};
    if (what == SPLIT_MC) hint = (struct smfar_hint){.algorithm = "split_mc"};
    must(smfar_hint_set(&hint));
    switch (what) {
    case BARRIER:
        return smfar_barrier(comm, stream);
    case BROADCAST:
        return smfar_broadcast(data, data, COUNT, SMFAR_I32, 0, comm, stream);
    case ALL_GATHER:
        return smfar_all_gather_into(data + (size_t)comm->rank * COUNT, data, COUNT, SMFAR_I32,
                                     comm, stream);
    default:
        return smfar_all_reduce(data, data, COUNT, SMFAR_F32, SMFAR_SUM, comm, stream);
    }
}

static enum smfar_status wait_last(smfar_comm *comm)
{
    return smfar_comm_wait(comm, smfar_comm_sequence(comm), -1);
}

/* A destroyed communicator has waited no longer than it may, and left nothing behind: see main. */
static void leave(smfar_comm *comm)
{
    int64_t begin = clock_now_ms();
    pthread_barrier_wait(&together);
    smfar_comm_destroy(comm);
    EXPECT(clock_now_ms() - begin < 3 * SOON_MS, "destroy took %lld ms",
           (long long)(clock_now_ms() - begin));
    pthread_barrier_wait(&together);
}

static void expect_late(enum smfar_status status, uint64_t number, const char *name, int64_t took)
{
    char text[160];
    EXPECT_EQ(status, SMFAR_ERR_TIMEOUT);
    snprintf(text, sizeof text, "rank %d did not come to collective number %llu, %s", LATE,
             (unsigned long long)number, name);
    EXPECT_HAS(smfar_last_error(), text);
    EXPECT(took < DEADLINE_MS + SOON_MS, "after %lld ms", (long long)took);
}

/* ---- a rank that does not call ---- */

static void miss_a_rank(struct ranks_thread *me)
{
    enum what what = *(enum what *)me->extra;
    smfar_comm *comm = join(me);
    void *window;
    must(smfar_window_alloc(comm, sizeof plain[0], &window));
    for (int i = 0; i < 2; i++) { /* in the window, and outside */
        must(call(comm, what, i ? plain[me->rank] : window, NULL));
        must(wait_last(comm));
    }
    meet_and_hurry(comm);
    int64_t begin = clock_now_ms();
    if (me->rank != LATE) {
        enum smfar_status status =
            call(comm, what, window, NULL); /* hosts meet, but in a barrier */
        EXPECT((status == SMFAR_OK) == (what == BARRIER), "%s: %d", names[what], status);
        if (status == SMFAR_OK) status = wait_last(comm);
        expect_late(status, 3, names[what], clock_now_ms() - begin);
    }
    pthread_barrier_wait(&together);
    expect_late(smfar_comm_error(comm), 3, names[what], clock_now_ms() - begin);
    EXPECT_EQ(call(comm, what, window, NULL), SMFAR_ERR_TIMEOUT);
    leave(comm);
}

/* ---- a rank whose stream does not come ---- */

/* A word of the page that nothing else uses, for streams to wait for. */
static _Atomic uint64_t *gate_of(const smfar_comm *comm)
{
    return (_Atomic uint64_t *)(void *)((char *)comm->page.host + 64) + comm->rank;
}

static CUstream make_closed_stream(smfar_comm *comm)
{
    CUstream stream = NULL; /* made on the communicator's context: see contexts */
    CUdeviceptr at = comm->page.device + 64 + 8 * (size_t)comm->rank;
    must(comm_enter(comm));
    REQUIRE(!comm->driver->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
            "stream");
    REQUIRE(!comm->driver->cuStreamWaitValue64(stream, at, 1, CU_STREAM_WAIT_VALUE_GEQ), "wait");
    comm_leave(comm);
    return stream;
}

static int ends(smfar_comm *comm, CUstream stream)
{
    CUresult result = CUDA_ERROR_NOT_READY;
    for (int64_t until = clock_now_ms() + SOON_MS;
         result != CUDA_SUCCESS && clock_now_ms() < until;) {
        must(comm_enter(comm));
        result = comm->driver->cuStreamQuery(stream);
        comm_leave(comm);
        usleep(1000);
    }
    return result == CUDA_SUCCESS;
}

/* The communicator's last stream must outlive it. */
static void leave_with(smfar_comm *comm, CUstream stream)
{
    int rank = comm->rank, own = stream != comm->stream;
    leave(comm);
    if (!own) return;
    REQUIRE(!driver->cuCtxPushCurrent(contexts[rank]), "context");
    REQUIRE(!driver->cuStreamDestroy(stream), "stream");
    REQUIRE(!driver->cuCtxPopCurrent(&contexts[rank]), "context");
}

/* All streams but rank 0's are held up before the call; after the failure they come one after the
 * other, each writing its meetings over what has released them all. */
static void come_after_the_release(struct ranks_thread *me)
{
    smfar_comm *comm = join(me);
    CUstream stream = me->rank ? make_closed_stream(comm) : comm->stream;
    void *window;
    must(smfar_window_alloc(comm, sizeof plain[0], &window));
    for (int i = 0; i < 3; i++)
        must(call(comm, i == 1 ? ALL_GATHER : BARRIER, window, stream));
    meet_and_hurry(comm);
    int64_t begin = clock_now_ms();
    expect_late(wait_last(comm), 1, "barrier", clock_now_ms() - begin);
    EXPECT(ends(comm, comm->stream), "rank %d: its stream is not released", me->rank);
    for (int r = RANKS - 1; r > 0; r--) {
        pthread_barrier_wait(&together);
        if (r != me->rank) continue;
        EXPECT_EQ(wait_last(comm), SMFAR_ERR_TIMEOUT);
        EXPECT_EQ(smfar_comm_released(comm, 3), 0);
        atomic_store(gate_of(comm), 1);
        EXPECT(ends(comm, stream), "rank %d: its stream waits, though all is lost", r);
    }
    pthread_barrier_wait(&together);
    EXPECT_EQ(smfar_comm_released(comm, 3), 1);
    for (uint64_t i = 1; i <= 3; i++)
        EXPECT_EQ(smfar_comm_query(comm, i), SMFAR_ERR_TIMEOUT);
    leave_with(comm, stream);
}

/* ---- what counts as done ---- */

/* Nobody has looked whether the first two have ended before the third fails. */
static void fail_the_third(struct ranks_thread *me)
{
    smfar_comm *comm = join(me);
    for (int i = 0; i < 2; i++)
        must(call(comm, BARRIER, NULL, NULL));
    meet_and_hurry(comm);
    if (me->rank != LATE) must(call(comm, BARRIER, NULL, NULL));
    while (smfar_comm_error(comm) == SMFAR_OK)
        usleep(1000);
    EXPECT_EQ(smfar_comm_wait(comm, 1, LONG_MS), SMFAR_OK);
    EXPECT_EQ(smfar_comm_wait(comm, 2, LONG_MS), SMFAR_OK);
    if (me->rank != LATE) {
        EXPECT_EQ(smfar_comm_wait(comm, 3, LONG_MS), SMFAR_ERR_TIMEOUT);
        EXPECT(ends(comm, comm->stream), "rank %d: its stream is not released", me->rank);
        EXPECT(page_ended(&comm->page.host->words[me->rank]) == 3, "its stream says no end");
        EXPECT_EQ(smfar_comm_wait(comm, 3, LONG_MS), SMFAR_ERR_TIMEOUT);
        EXPECT_EQ(smfar_comm_released(comm, 3), 1);
    }
    EXPECT_EQ(smfar_comm_query(comm, 1), SMFAR_OK);
    leave(comm);
}

/* At any moment: whatever has not been seen to be done has failed, and nothing is pending. */
static void abort_at_once(struct ranks_thread *me)
{
    smfar_comm *comm = join(me);
    int seen[5];
    for (int i = 1; i <= 4; i++)
        must(call(comm, i % 2 ? BARRIER : ALL_GATHER, plain[me->rank], NULL));
    pthread_barrier_wait(&together);
    usleep(*(const unsigned *)me->extra);
    for (int i = 1; i <= 4; i++)
        seen[i] = smfar_comm_query(comm, (uint64_t)i) == SMFAR_OK;
    if (me->rank == LATE) smfar_comm_abort(comm, "as ordered");
    while (smfar_comm_error(comm) == SMFAR_OK)
        usleep(100);
    for (int i = 1; i <= 4; i++) {
        enum smfar_status status = smfar_comm_wait(comm, (uint64_t)i, LONG_MS);
        EXPECT(status == SMFAR_OK || (status == SMFAR_ERR_ABORTED && !seen[i]),
               "rank %d, number %d, seen %d: %s", me->rank, i, seen[i], smfar_last_error());
        EXPECT_EQ(smfar_comm_query(comm, (uint64_t)i), status);
    }
    leave(comm);
}

/* ---- a host far ahead of another ---- */

/* As if a rank's host had been held up between calling the first collective and looking where the
 * others' tensors lie, while they go on with kernels: the ring must not lose the first before. */
static void run_ahead(struct ranks_thread *me)
{
    static _Atomic int past; /* ranks that the ring's end has let through */
    int never = *(int *)me->extra;
    smfar_comm *comm = join(me);
    enum smfar_status status = SMFAR_OK;
    _Atomic uint64_t *collected = &comm->page.host->words[LATE].collected;
    must(call(comm, ALL_GATHER, plain[me->rank], NULL));
    must(wait_last(comm));
    pthread_barrier_wait(&together);
    if (me->rank == LATE) atomic_store(collected, 0);
    if (me->rank == LATE) atomic_store(&past, 0);
    pthread_barrier_wait(&together);
    must(smfar_hint_set(NULL));
    for (int i = 1; i < PAGE_RING; i++) /* up to the ring's end nobody waits */
        must(smfar_barrier(comm, NULL));
    if (never) meet_and_hurry(comm);
    int64_t begin = clock_now_ms();
    if (me->rank == LATE && !never) {
        usleep(200000); /* the others come to the ring's end */
        EXPECT_EQ(past, 0);
        atomic_store(collected, 1);
    }
    if (me->rank != LATE || !never) status = smfar_barrier(comm, NULL);
    past++;
    if (status == SMFAR_OK && !never) must(wait_last(comm));
    while (never && status == SMFAR_OK)
        status = smfar_comm_error(comm);
    if (never) expect_late(status, 1, "all_gather", clock_now_ms() - begin);
    leave(comm);
}

/* ---- ranks that call different things ---- */

/* Also with a stream that comes long after its host has called. */
static void differ(struct ranks_thread *me)
{
    int odd = *(int *)me->extra;
    smfar_comm *comm = join(me);
    CUstream stream = odd == 2 && me->rank == 0 ? make_closed_stream(comm) : comm->stream;
    void *window;
    must(smfar_window_alloc(comm, sizeof plain[0], &window));
    int32_t *data = window;
    for (int i = 0; i < RANKS * COUNT; i++)
        data[i] = POISON - me->rank;
    pthread_barrier_wait(&together);
    must(smfar_hint_set(&(struct smfar_hint){.sm_budget = SMFAR_NO_SMS}));
    size_t count = odd == 0 && me->rank == LATE ? COUNT - 1 : COUNT;
    enum smfar_status status =
        odd && me->rank == LATE
            ? smfar_broadcast(data, data, COUNT, SMFAR_I32, LATE, comm, stream)
            : smfar_all_gather_into(plain[me->rank], data, count, SMFAR_I32, comm, stream);
    if (status == SMFAR_OK) status = wait_last(comm);
    EXPECT_EQ(status, SMFAR_ERR_MISMATCH);
    EXPECT_HAS(smfar_last_error(), odd ? "called broadcast(root 1" : "2999 elements");
    atomic_store(gate_of(comm), 1);
    EXPECT(ends(comm, stream), "rank %d: its stream is not released", me->rank);
    pthread_barrier_wait(&together);
    for (int i = 0; i < RANKS * (int)count; i++) /* my own part may have been taken */
        if ((size_t)i / count != (size_t)me->rank && data[i] != POISON - me->rank)
            EXPECT(0, "rank %d: element %d was written", me->rank, i);
    leave_with(comm, stream);
}

int main(void)
{
    must(driver_open(SMFAR_DRIVER_SOFT, &driver));
    for (int r = 0; r < RANKS; r++)
        REQUIRE(!driver->cuDevicePrimaryCtxRetain(&contexts[r], r), "context");
    pthread_barrier_init(&together, NULL, RANKS);
    for (enum what what = 0; what < WHATS; what++)
        ranks_run(RANKS, miss_a_rank, &what);
    ranks_run(RANKS, come_after_the_release, NULL);
    ranks_run(RANKS, fail_the_third, NULL);
    for (int i = 0; i < 10; i++)
        ranks_run(RANKS, abort_at_once, &(unsigned){(unsigned)(i * i) * 50});
    for (int never = 0; never < 2; never++)
        ranks_run(RANKS, run_ahead, &never);
    for (int odd = 0; odd < 3; odd++)
        ranks_run(RANKS, differ, &odd);
    for (int r = 0; r < RANKS; r++)
        REQUIRE(!driver->cuDevicePrimaryCtxRelease(r), "context");
    driver_close(driver);
    switch_expect_no_leaks();
    return unit_end();
}
