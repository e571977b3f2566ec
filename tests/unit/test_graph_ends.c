/* How graphs with collectives end: what goes wrong when they are replayed, and a group that ends
 * before its graphs. */
#define _GNU_SOURCE
#include <unistd.h>

#include "../../csrc/base/clock.h"
#include "graphs.h"

enum { SHORT_MS = 2000 }; /* the other ranks come within it */

static CUgraphExec capture_sum(struct rank *rank, float *data, size_t count)
{
    graphs_begin(rank);
    graphs_must(
        smfar_all_reduce(data, data, count, SMFAR_F32, SMFAR_SUM, rank->comm, rank->stream));
    return graphs_end(rank);
}

static enum smfar_status await_failure(struct rank *rank)
{
    int64_t deadline = clock_now_ms() + GRAPHS_TIMEOUT_MS;
    enum smfar_status status;
    while ((status = smfar_comm_error(rank->comm)) == SMFAR_OK && clock_now_ms() < deadline)
        usleep(1000);
    OK(driver->cuStreamSynchronize(rank->stream)); /* kernels have left */
    OK(driver->cuStreamSynchronize(rank->second));
    return status;
}

/* After a failure a replay does nothing, and the group says what has happened. */
static void end_failed(struct rank *rank, CUgraphExec a, CUgraphExec b)
{
    OK(program.cuGraphLaunch(a, rank->stream));
    OK(driver->cuStreamSynchronize(rank->stream));
    EXPECT(smfar_barrier(rank->comm, NULL) != SMFAR_OK, "a call after a failure");
    OK(program.cuGraphExecDestroy(a));
    OK(program.cuGraphExecDestroy(b));
    pthread_barrier_wait(&meeting);
    smfar_comm_destroy(rank->comm);
    graphs_close(rank);
}

static void test_missing(struct ranks_thread *me)
{
    static float memory[CALLS_RANKS][2][8];
    struct rank rank;
    graphs_open(me, GRAPHS_TIMEOUT_MS, &rank); /* a busy machine takes its time over that */
    smfar_comm_set_timeout(rank.comm, SHORT_MS);
    CUgraphExec a = capture_sum(&rank, memory[me->rank][0], 8);
    CUgraphExec b = capture_sum(&rank, memory[me->rank][1], 7);
    pthread_barrier_wait(&meeting); /* a failed group captures nothing more */
    if (me->rank != 1) OK(program.cuGraphLaunch(a, rank.stream));
    EXPECT_EQ(await_failure(&rank), SMFAR_ERR_TIMEOUT);
    EXPECT_HAS(smfar_last_error(), "rank 1 did not come to all_reduce(sum, f32, 8 elements");
    EXPECT_HAS(smfar_last_error(), "a graph replayed");
    end_failed(&rank, a, b);
}

static void test_different(struct ranks_thread *me)
{
    static float memory[CALLS_RANKS][2][8];
    struct rank rank;
    graphs_open(me, GRAPHS_TIMEOUT_MS, &rank);
    CUgraphExec a = capture_sum(&rank, memory[me->rank][0], 8);
    CUgraphExec b = capture_sum(&rank, memory[me->rank][1], 7);
    pthread_barrier_wait(&meeting); /* a failed group captures nothing more */
    OK(program.cuGraphLaunch(me->rank == 2 ? b : a, rank.stream));
    EXPECT_EQ(await_failure(&rank), SMFAR_ERR_MISMATCH);
    EXPECT_HAS(smfar_last_error(), "graphs replayed different collectives");
    EXPECT_HAS(smfar_last_error(), "7 elements");
    EXPECT_HAS(smfar_last_error(), "8 elements");
    end_failed(&rank, a, b);
}

/* Two at once on one rank: the second finds it, whatever the others do. */
static void test_overlap(struct ranks_thread *me)
{
    static float memory[CALLS_RANKS][2][8];
    struct rank rank;
    graphs_open(me, GRAPHS_TIMEOUT_MS, &rank);
    CUgraphExec a = capture_sum(&rank, memory[me->rank][0], 8);
    CUgraphExec b = capture_sum(&rank, memory[me->rank][1], 8);
    pthread_barrier_wait(&meeting); /* a failed group captures nothing more */
    if (me->rank == 0) {
        OK(program.cuGraphLaunch(a, rank.stream)); /* which waits for the others */
        OK(program.cuGraphLaunch(b, rank.second));
    }
    EXPECT_EQ(await_failure(&rank), SMFAR_ERR_UNSUPPORTED);
    EXPECT_HAS(smfar_last_error(), "ran at the same time on rank 0");
    end_failed(&rank, a, b);
}

/* ---- a group that ends before its graphs ---- */

static void test_outlived(struct ranks_thread *me)
{
    static float memory[CALLS_RANKS][100];
    float *data = memory[me->rank];
    struct rank rank;
    graphs_open(me, GRAPHS_TIMEOUT_MS, &rank);
    CUgraphExec exec = capture_sum(&rank, data, 100);
    pthread_barrier_wait(&meeting);
    smfar_comm_destroy(rank.comm);
    pthread_barrier_wait(&meeting);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++)
            data[i] = (float)(me->rank + i + round);
        OK(program.cuGraphLaunch(exec, rank.stream));
        OK(driver->cuStreamSynchronize(rank.stream));
        for (int i = 0; i < 100; i++)
            EXPECT_EQ(data[i], CALLS_RANKS * (i + round) + 10);
    }
    OK(program.cuGraphExecDestroy(exec));
    OK(driver->cuStreamSynchronize(rank.stream));
}

int main(void)
{
    graphs_resolve();
    ranks_run(CALLS_RANKS, test_missing, NULL);
    ranks_run(CALLS_RANKS, test_different, NULL);
    ranks_run(CALLS_RANKS, test_overlap, NULL);
    switch_expect_no_leaks();
    ranks_run(CALLS_RANKS, test_outlived, NULL); /* and keeps its memory */
    return unit_end();
}
