/* Ranks that call different things: every rank soon gets an error that names both sides, whatever
 * differs, whichever rank is the odd one, also while its stream is held up. Then the rings alone
 * (comm/ring.h), with ranks far apart; and ranks that leave while others go on. */
#include <unistd.h>

#include "../../csrc/base/clock.h"
#include "../../csrc/comm/failure.h"
#include "../../csrc/comm/names.h"
#include "../../csrc/comm/ring.h"
#include "ranks.h"
#include "switch.h"

enum { RANKS = 3, COUNT = 5000, TIMEOUT_MS = 60000 };
enum { SOON_MS = 15000 }; /* two seconds, and what a slow and busy machine adds */

static float memory[RANKS][RANKS + 1][COUNT];

static enum smfar_status reduce(int rank, size_t count, enum smfar_dtype dtype, enum smfar_op op,
                                smfar_comm *comm)
{
    return smfar_all_reduce(memory[rank][0], memory[rank][0], count, dtype, op, comm, NULL);
}

static enum smfar_status gather(int rank, size_t count, smfar_comm *comm)
{
    void *parts[RANKS] = {memory[rank][1], memory[rank][2], memory[rank][3]};
    return smfar_all_gather(memory[rank][0], parts, count, SMFAR_F32, comm, NULL);
}

static enum smfar_status broadcast(int rank, size_t count, int root, smfar_comm *comm)
{
    return smfar_broadcast(memory[rank][0], memory[rank][0], count, SMFAR_F32, root, comm, NULL);
}

enum difference {
    COLLECTIVE_DIFFERS,
    COPIES_DIFFER, /* two collectives that no kernel carries */
    ORDER,
    ROOT,
    SIZE,
    SIZE_OF_COPIES,
    DTYPE,
    OP,
    SCALE,
    DIFFERENCES
};

static const char *const words[DIFFERENCES][2] = {
    [COLLECTIVE_DIFFERS] = {"all_reduce(", "barrier("},
    [COPIES_DIFFER] = {"broadcast(", "all_gather("},
    [ORDER] = {"10 elements", "20 elements"},
    [ROOT] = {"root 0", "root 1"},
    [SIZE] = {"1000 elements", "1001 elements"},
    [SIZE_OF_COPIES] = {"1000 elements", "1001 elements"},
    [DTYPE] = {"f32", "i32"},
    [OP] = {"sum", "avg"},
    [SCALE] = {"scale 0.25", "scale 0.5"},
};

static enum smfar_status call(enum difference difference, int odd, int rank, smfar_comm *comm)
{
    enum smfar_status status;
    switch (difference) {
    case COLLECTIVE_DIFFERS:
        return odd ? smfar_barrier(comm, NULL) : reduce(rank, 1000, SMFAR_F32, SMFAR_SUM, comm);
    case COPIES_DIFFER:
        return odd ? gather(rank, 100, comm) : broadcast(rank, 100, 0, comm);
    case ORDER:
        status = reduce(rank, odd ? 20 : 10, SMFAR_F32, SMFAR_SUM, comm);
        if (status != SMFAR_OK) return status;
        return reduce(rank, odd ? 10 : 20, SMFAR_F32, SMFAR_SUM, comm);
    case ROOT:
        return broadcast(rank, 100, odd, comm);
    case SIZE:
        return reduce(rank, odd ? 1001 : 1000, SMFAR_F32, SMFAR_SUM, comm);
    case SIZE_OF_COPIES:
        return broadcast(rank, odd ? 1001 : 1000, 2, comm);
    case DTYPE:
        return reduce(rank, 1000, odd ? SMFAR_I32 : SMFAR_F32, SMFAR_SUM, comm);
    case SCALE:
        return smfar_all_reduce_scaled(memory[rank][0], memory[rank][0], 1000, SMFAR_F32,
                                       odd ? 0.5 : 0.25, comm, NULL);
    default:
        return reduce(rank, 1000, SMFAR_F32, odd ? SMFAR_AVG : SMFAR_SUM, comm);
    }
}

struct test {
    enum difference difference;
    int odd;  /* the rank that differs */
    int late; /* 1: its stream is held up for longer than an error may take */
    int deep; /* collectives that all ranks have called alike before */
    int no_multicast;
};

static smfar_comm *join(struct ranks_thread *me)
{
    const struct test *test = me->extra;
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 1 << 20,
                                  .no_multicast = test ? test->no_multicast : 0};
    smfar_comm *comm = NULL;
    enum smfar_status status = smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm);
    REQUIRE(status == SMFAR_OK, "%s", smfar_last_error());
    return comm;
}

static enum smfar_status wait_last(smfar_comm *comm)
{
    return smfar_comm_wait(comm, smfar_comm_sequence(comm), -1);
}

/* Holds the stream until the group has failed. */
static void hold(void *argument)
{
    smfar_comm *comm = argument;
    int64_t limit = clock_now_ms() + TIMEOUT_MS / 2;
    while (smfar_comm_error(comm) == SMFAR_OK && clock_now_ms() < limit)
        usleep(1000);
}

static void differ(struct ranks_thread *me)
{
    const struct test *test = me->extra;
    smfar_comm *comm = join(me);
    int odd = me->rank == test->odd;
    enum smfar_status status = SMFAR_OK;
    for (int i = 0; i < test->deep && status == SMFAR_OK; i++) /* a faster rank may have failed */
        status = reduce(me->rank, 50, SMFAR_F32, SMFAR_SUM, comm);
    if (odd && test->late && status == SMFAR_OK) {
        EXPECT_EQ(comm_enter(comm), SMFAR_OK);
        EXPECT_EQ(comm->driver->cuLaunchHostFunc(comm->stream, hold, comm), CUDA_SUCCESS);
        comm_leave(comm);
    }
    int64_t begin = clock_now_ms();
    if (status == SMFAR_OK) status = call(test->difference, odd, me->rank, comm);
    if (status == SMFAR_OK) status = wait_last(comm);
    int64_t took = clock_now_ms() - begin;
    EXPECT_EQ(status, SMFAR_ERR_MISMATCH);
    EXPECT(took < SOON_MS, "difference %d: rank %d heard of it after %lld ms",
           (int)test->difference, me->rank, (long long)took);
    for (int r = 0; r < RANKS; r++) {
        char name[16];
        snprintf(name, sizeof name, "rank %d", r);
        EXPECT_HAS(smfar_last_error(), name);
    }
    EXPECT(strstr(smfar_last_error(), words[test->difference][0]) ||
               strstr(smfar_last_error(), words[test->difference][1]),
           "%s", smfar_last_error());
    EXPECT_EQ(smfar_barrier(comm, NULL), SMFAR_ERR_MISMATCH);
    smfar_comm_destroy(comm);
}

/* ---- the rings alone ---- */

static void announce(struct smfar_comm *comm, uint64_t sequence, uint32_t hash)
{
    struct page_entry *entry = &comm->page.host->ring[comm->rank][sequence % PAGE_RING];
    entry->hash = hash;
    entry->dtype = entry->op = entry->root = -1;
    entry->collective = COLLECTIVE_BARRIER;
    entry->kernel = KERNELS;
    entry->chain = ring_chain(comm, sequence, hash);
    atomic_store(&entry->sequence, sequence);
}

static void rings_far_apart(void)
{
    static struct host_page page;
    static struct smfar_comm fast = {.rank = 0, .ranks = 2}, slow = {.rank = 1, .ranks = 2};
    char text[400];
    memset(&page, 0, sizeof page);
    fast.page.host = slow.page.host = &page;
    for (uint64_t s = 1; s <= 200; s++) {
        announce(&fast, s, (uint32_t)s * 3);
        EXPECT_EQ(ring_difference(&fast, s), 0);
    }
    ring_describe_all(&fast, 5, text, sizeof text);
    EXPECT_HAS(text,
               "rank 0 called one that 64 or more calls have followed; rank 1 called nothing yet");
    for (uint64_t s = 1; s <= 200; s++) { /* number 20 differs, when nobody can see it */
        announce(&slow, s, s == 20 ? 1 : (uint32_t)s * 3);
        uint64_t difference = ring_difference(&slow, s);
        EXPECT(s <= 136 ? difference == 0 : difference == s, "number %llu: %llu",
               (unsigned long long)s, (unsigned long long)difference);
        EXPECT(ring_has_reached(&slow, 0, s) && !ring_has_reached(&slow, 1, s + 1), "number %llu",
               (unsigned long long)s);
    }
    announce(&fast, 201, 7);
    announce(&slow, 201, 7);
    announce(&fast, 202, 8);
    announce(&slow, 202, 9);
    EXPECT_EQ(ring_difference(&slow, 202), 202);
    ring_describe_all(&fast, 201, text, sizeof text);
    EXPECT_HAS(text, "rank 0, rank 1 called barrier(");
    ring_describe_all(&fast, 202, text, sizeof text);
    EXPECT_HAS(text, "rank 0 called barrier(kernel none); rank 1 called barrier(");
}

/* ---- a failure that another rank is just writing down ---- */

static void *write_late(void *argument)
{
    struct page_failure *failure = argument;
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    failure->status = SMFAR_ERR_TIMEOUT;
    failure->rank = 1;
    snprintf(failure->text, sizeof failure->text, "rank 1 knows why");
    atomic_store(&failure->state, 2);
    return NULL;
}

static void words_half_written(void)
{
    static struct host_page page;
    static struct smfar_comm comm = {.rank = 0, .ranks = 2};
    pthread_t thread;
    comm.page.host = &page;
    atomic_store(&page.failure.state, 1);
    atomic_store(&page.abort, 1);
    REQUIRE(pthread_create(&thread, NULL, write_late, &page.failure) == 0, "no thread");
    EXPECT_EQ(failure_check(&comm), SMFAR_ERR_TIMEOUT);
    EXPECT_HAS(smfar_last_error(), "rank 1 knows why");
    pthread_join(thread, NULL);
}

/* By a rank that dies over it: that costs time once, not at every look. */
static void words_never_written(void)
{
    enum { LOOKS = 50, LOOKS_MS = 10000 }; /* one takes half a second */
    static struct host_page page;
    static struct smfar_comm comm = {.rank = 0, .ranks = 2};
    comm.page.host = &page;
    atomic_store(&page.failure.state, 1);
    atomic_store(&page.abort, 1);
    int64_t begin = clock_now_ms();
    for (int i = 0; i < LOOKS; i++)
        EXPECT_EQ(failure_check(&comm), SMFAR_ERR_ABORTED);
    EXPECT(clock_now_ms() - begin < LOOKS_MS, "%lld ms", (long long)(clock_now_ms() - begin));
}

/* ---- ranks that leave ---- */

/* Rank 0 leaves in good order; what the others call then fails at once and says so. */
static void left_before(struct ranks_thread *me)
{
    smfar_comm *comm = join(me);
    EXPECT_EQ(smfar_barrier(comm, NULL), SMFAR_OK);
    EXPECT_EQ(wait_last(comm), SMFAR_OK);
    if (me->rank == 1) {
        while (!atomic_load(&comm->page.host->words[0].left))
            usleep(1000);
        usleep(20000);
        EXPECT_EQ(smfar_comm_error(comm), SMFAR_OK); /* leaving alone is no failure */
        EXPECT_EQ(reduce(me->rank, 10, SMFAR_F32, SMFAR_SUM, comm), SMFAR_ERR_PEER);
        EXPECT_HAS(smfar_last_error(), "rank 0 has left the group");
        EXPECT_HAS(smfar_last_error(), "called number 2");
    }
    while (me->rank == 2 && smfar_comm_error(comm) == SMFAR_OK)
        usleep(1000);
    smfar_comm_destroy(comm);
}

/* The others have called already. */
static void left_after(struct ranks_thread *me)
{
    smfar_comm *comm = join(me);
    if (me->rank == 0) {
        while (!ring_has_reached(comm, 1, 1) || !ring_has_reached(comm, 2, 1))
            usleep(1000);
        usleep(20000); /* their kernels wait for this rank */
    } else {
        int64_t begin = clock_now_ms();
        EXPECT_EQ(reduce(me->rank, 10, SMFAR_F32, SMFAR_SUM, comm), SMFAR_OK);
        EXPECT_EQ(wait_last(comm), SMFAR_ERR_PEER);
        EXPECT_HAS(smfar_last_error(), "rank 0 has left the group");
        EXPECT(clock_now_ms() - begin < SOON_MS, "after %lld ms",
               (long long)(clock_now_ms() - begin));
    }
    int64_t begin = clock_now_ms();
    smfar_comm_destroy(comm);
    EXPECT(clock_now_ms() - begin < SOON_MS, "destroy took %lld ms",
           (long long)(clock_now_ms() - begin));
}

int main(void)
{
    struct driver *driver;
    REQUIRE(driver_open(SMFAR_DRIVER_SOFT, &driver) == SMFAR_OK, "%s", smfar_last_error());
    rings_far_apart();
    words_half_written();
    words_never_written();
    for (int i = 0; i < DIFFERENCES; i++)
        for (int odd = 0; odd < RANKS; odd++) {
            struct test test = {(enum difference)i, odd, i % 2, i * 10, odd == 1};
            if (i == ROOT && odd == 0) continue; /* the root that would be its own */
            ranks_run(RANKS, differ, &test);
        }
    for (int i = 0; i < 5; i++) {
        ranks_run(RANKS, left_before, NULL);
        ranks_run(RANKS, left_after, NULL);
    }
    driver_close(driver);
    switch_expect_no_leaks();
    return unit_end();
}
