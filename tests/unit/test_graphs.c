/* Collectives in graphs, ranks being threads on the software switch: captured once and replayed
 * many times, at random between called ones and beside them; on branches; and what is refused. With
 * SMFAR_SOFT_CHECKED=1 the same in checked mode.
 *
 *   test_graphs [REPLAYS] [SEED] */
#define _GNU_SOURCE
#include <time.h>
#include <unistd.h>

#include "graphs.h"

enum { GRAPHS = 6, MOST_IN_GRAPH = 4, MOST_COUNT = 9000 };

static uint64_t seed;
static int replays = 1000;

/* ---- many replays ---- */

struct work {
    struct calls_one one;
    struct calls_place place;
    char *space;
    uint64_t drawn; /* decides where in the space it lies */
};

struct replayed {
    CUgraphExec exec;
    struct work work[MOST_IN_GRAPH];
    int count;
};

static void fill(struct work *work, int rank)
{
    uint64_t drawn = work->drawn;
    calls_fill(&work->one, rank, work->space, &drawn, &work->place);
}

static void check(const struct work *work, int rank, const char *how)
{
    char text[96];
    long first = 0;
    EXPECT(calls_right(&work->one, &work->place, rank, &first),
           "seed %llu, %s %s: rank %d, byte %ld", (unsigned long long)seed, how,
           calls_text(&work->one, text), rank, first);
}

/* In the window, or outside it. */
static char *new_space(struct rank *rank, int inside)
{
    void *space = NULL;
    if (inside)
        graphs_must(smfar_window_alloc(rank->comm, CALLS_SPACE, &space));
    else
        space = malloc(CALLS_SPACE);
    return space;
}

/* Half of them on a branch. */
static void capture(struct rank *rank, struct replayed *replayed, uint64_t *ours, uint64_t *mine)
{
    int branches = calls_random(ours) % 2;
    replayed->count = 1 + (int)(calls_random(ours) % MOST_IN_GRAPH);
    graphs_begin(rank);
    if (branches) graphs_after(rank, rank->second, rank->stream);
    for (int i = 0; i < replayed->count; i++) {
        struct work *work = &replayed->work[i];
        CUstream stream = branches && calls_random(ours) % 2 ? rank->second : rank->stream;
        work->one = calls_draw(ours, i, MOST_COUNT);
        calls_keep_going(&work->one); /* what does not is refused */
        work->drawn = *mine + (uint64_t)i;
        fill(work, rank->me->rank);
        graphs_must(calls_enqueue_on(&work->one, rank->me->rank, &work->place, rank->comm, stream));
    }
    if (branches) graphs_after(rank, rank->stream, rank->second);
    replayed->exec = graphs_end(rank);
}

/* Another one in the place of a graph that is no longer wanted. */
static void capture_again(struct rank *rank, struct replayed *replayed, uint64_t *ours,
                          uint64_t *mine)
{
    OK(program.cuGraphExecDestroy(replayed->exec));
    capture(rank, replayed, ours, mine);
}

static void launch(struct rank *rank, struct replayed *replayed)
{
    for (int i = 0; i < replayed->count; i++)
        fill(&replayed->work[i], rank->me->rank);
    OK(program.cuGraphLaunch(replayed->exec, rank->stream));
}

static void finish(struct rank *rank, const struct replayed *replayed)
{
    OK(driver->cuStreamSynchronize(rank->stream));
    for (int i = 0; i < replayed->count; i++)
        check(&replayed->work[i], rank->me->rank, "replayed");
}

static void called(struct rank *rank, struct work *work, int number, uint64_t *ours, uint64_t *mine)
{
    work->one = calls_draw(ours, number, MOST_COUNT);
    work->drawn = *mine;
    fill(work, rank->me->rank);
    graphs_must(calls_enqueue(&work->one, rank->me->rank, &work->place, rank->comm));
}

static void test_mixed(struct ranks_thread *me)
{
    static struct replayed all[CALLS_RANKS][GRAPHS];
    struct replayed *graphs = all[me->rank];
    struct rank rank;
    struct work eager = {0};
    uint64_t ours = seed, mine = seed * 31 + (uint64_t)me->rank;
    graphs_open(me, GRAPHS_TIMEOUT_MS, &rank);
    eager.space = new_space(&rank, 1);
    for (int g = 0; g < GRAPHS; g++) {
        for (int i = 0; i < MOST_IN_GRAPH; i++)
            graphs[g].work[i].space = new_space(&rank, (g + i) % 2);
        capture(&rank, &graphs[g], &ours, &mine);
    }
    uint64_t before = smfar_comm_sequence(rank.comm);
    EXPECT_EQ(before, 0); /* capturing calls nothing */
    for (int done = 0; done < replays; done++) {
        struct replayed *replayed = &graphs[calls_random(&ours) % GRAPHS];
        uint32_t what = calls_random(&ours) % 4;
        calls_random(&mine);
        if (what < 2) called(&rank, &eager, done, &ours, &mine);
        if (calls_random(&mine) % 100 == 0) usleep(calls_random(&mine) % 3000);
        if (what < 3) launch(&rank, replayed); /* beside the called one, if there is one */
        if (what == 3) capture_again(&rank, replayed, &ours, &mine);
        if (what < 3) finish(&rank, replayed);
        if (what > 1) continue;
        graphs_must(smfar_comm_wait(rank.comm, smfar_comm_sequence(rank.comm), GRAPHS_TIMEOUT_MS));
        check(&eager, me->rank, "called");
    }
    for (int g = 0; g < GRAPHS; g++)
        OK(program.cuGraphExecDestroy(graphs[(g * 5 + me->rank) % GRAPHS].exec));
    pthread_barrier_wait(&meeting); /* nobody leaves while another still captures */
    smfar_comm_destroy(rank.comm);
    for (int g = 0; g < GRAPHS; g++)
        for (int i = 0; i < MOST_IN_GRAPH; i++)
            if (!((g + i) % 2)) free(graphs[g].work[i].space);
    graphs_close(&rank);
}

/* ---- the other collectives ---- */

enum { PART = 1000 };

/* Every collective once in one graph; `data` has room for what each of them needs. */
static void capture_all(struct rank *rank, int32_t (*data)[CALLS_RANKS][PART])
{
    smfar_comm *comm = rank->comm;
    CUstream s = rank->stream;
    const void *send[CALLS_RANKS];
    void *recv[CALLS_RANKS];
    int32_t(*in)[PART] = data[0], (*out)[PART] = data[1];
    for (int r = 0; r < CALLS_RANKS; r++) {
        send[r] = in[r];
        recv[r] = out[r];
    }
    graphs_begin(rank);
    graphs_must(smfar_reduce_scatter(send, data[2][0], PART, SMFAR_I32, SMFAR_SUM, 0, comm, s));
    graphs_must(smfar_all_to_all(send, recv, PART, SMFAR_I32, comm, s));
    graphs_must(smfar_reduce(in[1], data[2][1], PART, SMFAR_I32, SMFAR_MAX, 0, 1, comm, s));
    graphs_must(smfar_gather(
        in[0], (void *const[]){data[3][0], data[3][1], data[3][2], data[3][3], data[3][4]}, PART,
        SMFAR_I32, 2, comm, s));
    graphs_must(smfar_scatter(send, data[2][2], PART, SMFAR_I32, 3, comm, s));
    graphs_must(smfar_barrier(comm, s));
}

static int32_t value(int rank, int part, int round, int i)
{
    return rank * 1000 + part * 100 + round * 10 + i % 10;
}

static void check_all(int rank, int round, int32_t (*data)[CALLS_RANKS][PART])
{
    int wrong = 0, last = CALLS_RANKS - 1;
    for (int i = 0; i < PART; i++) {
        int32_t sum = 0;
        for (int r = 0; r < CALLS_RANKS; r++) {
            sum += value(r, rank, round, i);
            wrong += data[1][r][i] != value(r, rank, round, i);
            wrong += rank == 2 && data[3][r][i] != value(r, 0, round, i);
        }
        wrong += data[2][0][i] != sum;
        wrong += rank == 1 && data[2][1][i] != value(last, 1, round, i);
        wrong += data[2][2][i] != value(3, rank, round, i);
    }
    EXPECT(wrong == 0, "rank %d, round %d: %d elements are wrong", rank, round, wrong);
}

static void test_every_collective(struct ranks_thread *me)
{
    static int32_t memory[CALLS_RANKS][4][CALLS_RANKS][PART];
    int32_t(*data)[CALLS_RANKS][PART] = memory[me->rank];
    struct rank rank;
    graphs_open(me, GRAPHS_TIMEOUT_MS, &rank);
    capture_all(&rank, data);
    CUgraphExec exec = graphs_end(&rank);
    for (int round = 0; round < 5; round++) {
        memset(memory[me->rank], 0xa5, sizeof memory[0]);
        for (int part = 0; part < CALLS_RANKS; part++)
            for (int i = 0; i < PART; i++)
                data[0][part][i] = value(me->rank, part, round, i);
        OK(program.cuGraphLaunch(exec, rank.stream));
        OK(driver->cuStreamSynchronize(rank.stream));
        check_all(me->rank, round, data);
    }
    OK(program.cuGraphExecDestroy(exec));
    smfar_comm_destroy(rank.comm);
    graphs_close(&rank);
}

/* ---- all-reduce with RMSNorm ---- */

enum { ROWS = 61, HIDDEN = 136, LAYOUTS = 3 };

/* By layout of the sums: what is normalised in place, and what comes with it. */
struct norms {
    float x[LAYOUTS][ROWS * HIDDEN], residual[LAYOUTS][ROWS * HIDDEN], sums[LAYOUTS][ROWS * HIDDEN];
};

static void fill_norms(int rank, int round, struct norms *norms)
{
    for (int layout = 0; layout < LAYOUTS; layout++)
        for (int i = 0; i < ROWS * HIDDEN; i++) {
            norms->x[layout][i] = (float)calls_value(rank, round + layout, (size_t)i);
            norms->residual[layout][i] = (float)calls_value(7, round + layout, (size_t)i);
            norms->sums[layout][i] = -1;
        }
}

static void call_norms(struct rank *rank, struct norms *norms, CUstream stream)
{
    for (int layout = 0; layout < LAYOUTS; layout++) {
        float *x = norms->x[layout];
        struct smfar_rms_norm norm = {.rows = ROWS,
                                      .hidden = HIDDEN,
                                      .dtype = SMFAR_F32,
                                      .eps = 1e-6,
                                      .sums_layout = (enum smfar_sums)layout};
        if (layout != SMFAR_SUMS_NONE) norm.residual = norms->residual[layout];
        if (layout == SMFAR_SUMS_REPLICATED) norm.sums = norms->sums[layout];
        graphs_must(smfar_all_reduce_rms_norm(x, x, &norm, rank->comm, stream));
    }
}

/* A replay gives the very bits of a call, since sums and squares of small whole numbers are exact.
 */
static void test_norms(struct ranks_thread *me)
{
    static struct norms plain[CALLS_RANKS], called[CALLS_RANKS];
    struct rank rank;
    graphs_open(me, GRAPHS_TIMEOUT_MS, &rank);
    for (int inside = 0; inside < 2; inside++) {
        void *window;
        graphs_must(smfar_window_alloc(rank.comm, sizeof(struct norms), &window));
        struct norms *norms = inside ? window : &plain[me->rank], *want = &called[me->rank];
        graphs_begin(&rank);
        call_norms(&rank, norms, rank.stream);
        CUgraphExec exec = graphs_end(&rank);
        for (int round = 0; round < 5; round++) {
            fill_norms(me->rank, round, norms);
            call_norms(&rank, norms, NULL);
            graphs_must(
                smfar_comm_wait(rank.comm, smfar_comm_sequence(rank.comm), GRAPHS_TIMEOUT_MS));
            *want = *norms;
            fill_norms(me->rank, round, norms);
            EXPECT(memcmp(want, norms, sizeof *want), "nothing was called");
            OK(program.cuGraphLaunch(exec, rank.stream));
            OK(driver->cuStreamSynchronize(rank.stream));
            EXPECT(!memcmp(want, norms, sizeof *want), "round %d, inside %d: rank %d differs",
                   round, inside, me->rank);
        }
        OK(program.cuGraphExecDestroy(exec));
    }
    smfar_comm_destroy(rank.comm);
    graphs_close(&rank);
}

/* ---- refusals ---- */

static void test_refusals(struct ranks_thread *me)
{
    struct rank rank;
    CUgraph graph;
    float data[64] = {0};
    const void *send[CALLS_RANKS];
    void *recv[CALLS_RANKS];
    size_t counts[CALLS_RANKS];
    for (int r = 0; r < CALLS_RANKS; r++) {
        send[r] = &data[r];
        recv[r] = &data[32 + r];
        counts[r] = 1;
    }
    graphs_open(me, GRAPHS_TIMEOUT_MS, &rank);
    graphs_must(smfar_barrier(rank.comm, NULL));
    graphs_begin(&rank);
    EXPECT_EQ(smfar_all_to_all_v(send, counts, recv, counts, SMFAR_F32, rank.comm, rank.stream),
              SMFAR_ERR_UNSUPPORTED);
    EXPECT_HAS(smfar_last_error(), "cannot be captured");
    int peer = (me->rank + 1) % CALLS_RANKS;
    EXPECT_EQ(smfar_send(data, 4, peer, 0, rank.comm, rank.stream, NULL, NULL),
              SMFAR_ERR_UNSUPPORTED);
    EXPECT_HAS(smfar_last_error(), "send cannot be captured");
    graphs_must(smfar_hint_set(&(struct smfar_hint){.sm_budget = SMFAR_NO_SMS}));
    EXPECT_EQ(smfar_barrier(rank.comm, rank.stream), SMFAR_ERR_UNSUPPORTED);
    EXPECT_HAS(smfar_last_error(), "barrier in a CUDA graph without an SM");
    graphs_must(smfar_hint_set(NULL));
    OK(program.cuGraphExecDestroy(graphs_end(&rank))); /* the capture went on */
    graphs_begin(&rank);
    EXPECT_EQ(driver->cuStreamQuery(rank.stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(smfar_barrier(rank.comm, rank.stream), SMFAR_ERR_DRIVER);
    EXPECT_HAS(smfar_last_error(), "broken the capture");
    EXPECT_EQ(program.cuStreamEndCapture(rank.stream, &graph),
              CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    graphs_must(smfar_barrier(rank.comm, NULL)); /* the group is well */
    graphs_must(smfar_comm_wait(rank.comm, smfar_comm_sequence(rank.comm), GRAPHS_TIMEOUT_MS));
    smfar_comm_destroy(rank.comm);
    graphs_close(&rank);
}

int main(int argc, char **argv)
{
    seed = (uint64_t)time(NULL);
    if (argc > 1) replays = atoi(argv[1]);
    if (argc > 2) seed = strtoull(argv[2], NULL, 0);
    printf("seed %llu\n", (unsigned long long)seed);
    graphs_resolve();
    ranks_run(CALLS_RANKS, test_mixed, NULL);
    ranks_run(CALLS_RANKS, test_mixed, &seed); /* over peers */
    ranks_run(CALLS_RANKS, test_every_collective, NULL);
    ranks_run(CALLS_RANKS, test_norms, NULL);
    ranks_run(CALLS_RANKS, test_norms, &seed);
    ranks_run(CALLS_RANKS, test_refusals, NULL);
    switch_expect_no_leaks();
    return unit_end();
}
