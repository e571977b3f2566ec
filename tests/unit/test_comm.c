/* The whole core through smfar.h, ranks being threads on the software switch: collectives on window
 * and plain memory, through the switch and over peers; what happens when ranks disagree, when one
 * leaves or aborts; refusals; and that everything is given back. */
#define _GNU_SOURCE
#include <math.h>
#include <stdatomic.h>

#include "../../csrc/comm/comm.h"
#include "../../csrc/driver/driver.h"
#include "ranks.h"
#include "switch.h"

enum { LARGEST = 40000, TIMEOUT_MS = 60000 };

struct options {
    int no_multicast;
    size_t chunk_bytes;
};

static smfar_comm *join(struct ranks_thread *me)
{
    const struct options *options = me->extra;
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 8 << 20,
                                  .chunk_bytes = options ? options->chunk_bytes : 0,
                                  .no_multicast = options ? options->no_multicast : 0};
    smfar_comm *comm = NULL;
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm));
    EXPECT_EQ(smfar_comm_rank(comm), me->rank);
    EXPECT_EQ(smfar_comm_ranks(comm), me->ranks);
    return comm;
}

static enum smfar_status wait_last(smfar_comm *comm)
{
    return smfar_comm_wait(comm, smfar_comm_sequence(comm), -1);
}

/* Device memory outside the window: the switch's is host memory. */
static float *plain_tensor(struct ranks_thread *me)
{
    static float memory[SMFAR_MAX_RANKS][LARGEST + 16];
    return memory[me->rank];
}

static float value_of(int rank, size_t i) { return (float)(rank * 3 + (int)(i % 101) - 50); }

static void check_sum(struct ranks_thread *me, smfar_comm *comm, float *data, size_t count)
{
    int wrong = 0;
    for (size_t i = 0; i < count; i++)
        data[i] = value_of(me->rank, i);
    data[count] = 777;
    must(smfar_all_reduce(data, data, count, SMFAR_F32, SMFAR_SUM, comm, NULL));
    must(wait_last(comm));
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (int r = 0; r < me->ranks; r++)
            sum += value_of(r, i);
        wrong += data[i] != sum;
    }
    EXPECT(wrong == 0, "rank %d of %d: %d of %zu are wrong", me->rank, me->ranks, wrong, count);
    EXPECT(data[count] == 777, "rank %d wrote past the end", me->rank);
}

static void check_broadcast(struct ranks_thread *me, smfar_comm *comm, float *data)
{
    int root = me->ranks - 1;
    for (size_t i = 0; i < 1001; i++)
        data[i] = value_of(me->rank, i);
    must(smfar_broadcast(data, data, 1001, SMFAR_F32, root, comm, NULL));
    must(wait_last(comm));
    for (size_t i = 0; i < 1001; i++)
        if (data[i] != value_of(root, i)) {
            EXPECT(0, "rank %d: element %zu is %g", me->rank, i, (double)data[i]);
            return;
        }
}

static void check_all_gather(struct ranks_thread *me, smfar_comm *comm, float *data)
{
    static float outputs[SMFAR_MAX_RANKS][SMFAR_MAX_RANKS][600];
    void *recv[SMFAR_MAX_RANKS];
    int wrong = 0;
    for (int r = 0; r < me->ranks; r++)
        recv[r] = outputs[me->rank][r];
    for (size_t i = 0; i < 555; i++)
        data[i] = value_of(me->rank, i);
    must(smfar_all_gather(data, recv, 555, SMFAR_F32, comm, NULL));
    must(wait_last(comm));
    for (int r = 0; r < me->ranks; r++)
        for (size_t i = 0; i < 555; i++)
            wrong += outputs[me->rank][r][i] != value_of(r, i);
    EXPECT(wrong == 0, "rank %d of %d: %d are wrong", me->rank, me->ranks, wrong);
}

static void collectives(struct ranks_thread *me)
{
    static const size_t counts[] = {0, 1, 5, 4097, LARGEST};
    smfar_comm *comm = join(me);
    void *window;
    must(smfar_window_alloc(comm, (LARGEST + 1) * sizeof(float), &window));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        check_sum(me, comm, window, counts[i]);
        check_sum(me, comm, plain_tensor(me), counts[i]);
        /* in the window on one rank, outside it on the others */
        check_sum(me, comm, me->rank == 0 ? window : plain_tensor(me), counts[i]);
        check_sum(me, comm, (float *)window + me->rank, counts[i] / 2); /* unequal offsets */
    }
    check_broadcast(me, comm, window);
    check_broadcast(me, comm, plain_tensor(me));
    check_all_gather(me, comm, window);
    check_all_gather(me, comm, plain_tensor(me));
    must(smfar_barrier(comm, NULL));
    must(wait_last(comm));
    must(smfar_comm_error(comm));
    smfar_window_free(comm, window);
    smfar_comm_destroy(comm);
}

/* What was freed on every rank is there again when there is no other room, or much was freed. */
static void window_memory(struct ranks_thread *me)
{
    smfar_comm *comm = join(me);
    void *first = NULL, *second = NULL, *again = NULL, *huge = NULL;
    must(smfar_window_alloc(comm, 1000, &first));
    must(smfar_window_alloc(comm, 1000, &second));
    EXPECT((uintptr_t)first % 512 == 0 && (uintptr_t)second % 512 == 0, "not aligned");
    EXPECT_EQ(smfar_window_alloc(comm, 1ull << 40, &huge), SMFAR_ERR_MEMORY);
    EXPECT_EQ(smfar_window_alloc(comm, (size_t)me->rank + 1, &huge), SMFAR_ERR_MISMATCH);
    EXPECT(huge == NULL, "an output in spite of the failure");
    smfar_window_free(comm, first);
    EXPECT_EQ(smfar_window_alloc(comm, 1ull << 40, &huge), SMFAR_ERR_MEMORY);
    must(smfar_window_alloc(comm, 1000, &again));
    EXPECT(again == first, "a range that all have freed was not used again");
    size_t most = 0;
    for (int i = 0; i < 1000; i++) {
        void *large = NULL, *small = NULL;
        must(smfar_window_alloc(comm, i % 2 ? 100 : 200 << 10, &large));
        must(smfar_window_alloc(comm, 512, &small));
        smfar_window_free(comm, large);
        smfar_window_free(comm, small);
        if ((size_t)comm->window->heap.count > most) most = (size_t)comm->window->heap.count;
    }
    EXPECT(most < 200, "%zu ranges kept", most);
    smfar_window_free(comm, second);
    smfar_window_free(comm, again);
    smfar_window_free(comm, &comm); /* not of the window: ignored */
    smfar_comm_destroy(comm);
}

static void reports(struct ranks_thread *me)
{
    const struct options *options = me->extra;
    const char *algorithm = options->no_multicast ? "push_peer" : "push_mc";
    smfar_comm *comm = join(me);
    struct smfar_path path;
    char text[4096] = "";
    check_sum(me, comm, plain_tensor(me), 1000);
    EXPECT_EQ(smfar_explain(comm, NULL, 1000, SMFAR_F32, SMFAR_SUM, text, sizeof text), SMFAR_OK);
    EXPECT_HAS(text, algorithm);
    EXPECT_EQ(smfar_explain(comm, NULL, 1, SMFAR_C64, SMFAR_MIN, text, sizeof text),
              SMFAR_ERR_UNSUPPORTED);
    must(smfar_comm_describe(comm, text, sizeof text));
    EXPECT_HAS(text, "software switch");
    must(smfar_comm_path(comm, 0, &path));
    EXPECT_HAS(path.collective, "all_reduce");
    EXPECT_HAS(path.algorithm, algorithm);
    EXPECT_EQ(path.calls, 1);
    EXPECT_EQ(path.bytes, 4000);
    EXPECT_EQ(path.staged_bytes, 0);
    EXPECT_EQ(smfar_comm_path(comm, 1, &path), SMFAR_ERR_ARGUMENT);
    must(smfar_hint_set(&(struct smfar_hint){.algorithm = "twoshot_peer"}));
    check_sum(me, comm, plain_tensor(me), 1000);
    must(smfar_hint_set(NULL));
    must(smfar_comm_path(comm, 1, &path));
    EXPECT_HAS(path.algorithm, "twoshot_peer");
    EXPECT_EQ(path.staged_bytes, 4000);
    smfar_comm_destroy(comm);
}

static void refusals(struct ranks_thread *me)
{
    smfar_comm *comm = join(me);
    float *data = plain_tensor(me);
    uint64_t before = smfar_comm_sequence(comm);
    EXPECT_EQ(smfar_all_reduce(data, data, 4, SMFAR_F32, SMFAR_SUM, NULL, NULL),
              SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_all_reduce(NULL, data, 4, SMFAR_F32, SMFAR_SUM, comm, NULL),
              SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_all_reduce((char *)data + 2, data, 4, SMFAR_F32, SMFAR_SUM, comm, NULL),
              SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_all_reduce(data, data, 4, (enum smfar_dtype)99, SMFAR_SUM, comm, NULL),
              SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_all_reduce(data, data, SIZE_MAX, SMFAR_F32, SMFAR_SUM, comm, NULL),
              SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_all_reduce(data, data, 4, SMFAR_F32, SMFAR_BAND, comm, NULL),
              SMFAR_ERR_UNSUPPORTED);
    EXPECT_EQ(smfar_broadcast(data, data, 4, SMFAR_F32, me->ranks, comm, NULL), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_hint_set(&(struct smfar_hint){.algorithm = "threeshot"}), SMFAR_ERR_ARGUMENT);
    for (int i = ALGORITHM_ANY + 1; i < ALGORITHMS; i++)
        EXPECT_HAS(smfar_last_error(), algorithm_rows[i].name);
    EXPECT_EQ(smfar_comm_sequence(comm), before);
    EXPECT_EQ(smfar_comm_query(comm, before + 1), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_comm_wait(comm, before + 1, 1), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_comm_query(NULL, 0), SMFAR_ERR_ARGUMENT);
    check_sum(me, comm, data, 100); /* a refusal leaves the communicator as it was */
    smfar_comm_destroy(comm);
}

/* Rank 1 sums another count, type or op: everybody gets an error that names both sides. */
static void disagree(struct ranks_thread *me, size_t count, enum smfar_dtype dtype,
                     enum smfar_op op)
{
    smfar_comm *comm = join(me);
    int odd = me->rank == 1;
    enum smfar_status status =
        smfar_all_reduce(plain_tensor(me), plain_tensor(me), odd ? count : 500,
                         odd ? dtype : SMFAR_F32, odd ? op : SMFAR_SUM, comm, NULL);
    if (status == SMFAR_OK) status = wait_last(comm);
    EXPECT_EQ(status, SMFAR_ERR_MISMATCH);
    EXPECT_HAS(smfar_last_error(), "rank 1");
    EXPECT_HAS(smfar_last_error(), "500");
    EXPECT_EQ(smfar_comm_error(comm), SMFAR_ERR_MISMATCH);
    EXPECT_EQ(smfar_barrier(comm, NULL), SMFAR_ERR_MISMATCH);
    smfar_comm_destroy(comm);
}
static void other_count(struct ranks_thread *me) { disagree(me, 501, SMFAR_F32, SMFAR_SUM); }
static void other_dtype(struct ranks_thread *me) { disagree(me, 500, SMFAR_I32, SMFAR_SUM); }
static void other_op(struct ranks_thread *me) { disagree(me, 500, SMFAR_F32, SMFAR_AVG); }

static void aborted(struct ranks_thread *me)
{
    smfar_comm *comm = join(me);
    if (me->rank == 0)
        smfar_comm_abort(comm, "the unit says so");
    else
        smfar_all_reduce(plain_tensor(me), plain_tensor(me), 500, SMFAR_F32, SMFAR_SUM, comm, NULL);
    enum smfar_status status = smfar_comm_error(comm);
    if (me->rank != 0 && status == SMFAR_OK) status = wait_last(comm);
    EXPECT_EQ(status, SMFAR_ERR_ABORTED);
    EXPECT_HAS(smfar_last_error(), "the unit says so");
    smfar_comm_destroy(comm);
}

static void late_rank(struct ranks_thread *me)
{
    smfar_comm *comm = join(me);
    smfar_comm_set_timeout(comm, 300);
    if (me->rank == 0) {
        must(smfar_barrier(comm, NULL));
        EXPECT_EQ(wait_last(comm), SMFAR_ERR_TIMEOUT);
        EXPECT_HAS(smfar_last_error(), "rank 1");
    } else {
        while (smfar_comm_error(comm) == SMFAR_OK)
            nanosleep(&(struct timespec){0, 5000000}, NULL);
        EXPECT_EQ(smfar_comm_error(comm), SMFAR_ERR_TIMEOUT);
    }
    smfar_comm_destroy(comm);
}

/* Rank 0 leaves while the others call once more, before or after: no waiting for the deadline, and
 * nobody writes to the multicast address from which its memory has gone. */
static void left_early(struct ranks_thread *me)
{
    smfar_comm *comm = join(me);
    check_sum(me, comm, plain_tensor(me), 100);
    if (me->rank != 0) {
        float *data = plain_tensor(me);
        enum smfar_status status =
            smfar_all_reduce(data, data, 100, SMFAR_F32, SMFAR_SUM, comm, NULL);
        if (status == SMFAR_OK) status = wait_last(comm);
        EXPECT_EQ(status, SMFAR_ERR_PEER);
        EXPECT_HAS(smfar_last_error(), "rank 0 has left the group");
    }
    smfar_comm_destroy(comm);
}

/* More blocks than can be resident would wait for each other for ever. */
static void huge_budget(struct ranks_thread *me)
{
    struct smfar_config config = {
        .driver = SMFAR_DRIVER_SOFT, .device = -1, .window_bytes = 64 << 20};
    smfar_comm *comm = NULL;
    char text[4096] = "";
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm));
    must(smfar_explain(comm, NULL, 10 << 20, SMFAR_F32, SMFAR_SUM, text, sizeof text));
    EXPECT_HAS(text, " 8 blocks"); /* the virtual GPU has eight multiprocessors */
    smfar_comm_destroy(comm);
}

struct allocation {
    smfar_comm *comm;
    _Atomic int ended;
};

static void *allocate(void *argument)
{
    struct allocation *allocation = argument;
    void *range = NULL;
    must(smfar_window_alloc(allocation->comm, 1000, &range));
    atomic_store(&allocation->ended, 1);
    return NULL;
}

static void report_meanwhile(smfar_comm *comm)
{
    struct smfar_path path;
    char text[4096] = "";
    must(smfar_comm_path(comm, 0, &path));
    EXPECT(path.reason[0] != 0, "no reason");
    must(smfar_comm_describe(comm, text, sizeof text));
    must(smfar_explain(comm, NULL, 1000, SMFAR_F32, SMFAR_SUM, text, sizeof text));
}

/* Neither freeing nor a report waits for an allocation that waits for another rank. */
static void free_meanwhile(struct ranks_thread *me)
{
    static _Atomic int reported;
    struct allocation allocation = {join(me), 0};
    pthread_t thread;
    void *range = NULL;
    must(smfar_window_alloc(allocation.comm, 1000, &range));
    check_sum(me, allocation.comm, plain_tensor(me), 100);
    if (me->rank == 0) {
        REQUIRE(pthread_create(&thread, NULL, allocate, &allocation) == 0, "no thread");
        nanosleep(&(struct timespec){0, 100000000}, NULL); /* until that waits */
        smfar_window_free(allocation.comm, range);
        report_meanwhile(allocation.comm);
        EXPECT_EQ(atomic_load(&allocation.ended), 0);
        reported = 1;
        must(smfar_barrier(allocation.comm, NULL));
        pthread_join(thread, NULL);
    } else {
        for (int i = 0; i < TIMEOUT_MS && !reported; i++)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        allocate(&allocation);
        must(smfar_barrier(allocation.comm, NULL));
    }
    must(wait_last(allocation.comm));
    smfar_comm_destroy(allocation.comm);
}

/* Calls until it is told that this rank has left; whatever is under way then uses what is static.
 */
static void *call_on(void *argument)
{
    static float summed[100], sent[100], received[100];
    smfar_comm *comm = argument;
    enum smfar_status status = SMFAR_OK;
    for (int tag = 0; status == SMFAR_OK; tag++) {
        status = smfar_all_reduce(summed, summed, 100, SMFAR_F32, SMFAR_SUM, comm, NULL);
        if (status == SMFAR_OK)
            status = smfar_recv(received, sizeof received, 0, tag, comm, NULL, NULL, NULL);
        if (status == SMFAR_OK)
            status = smfar_send(sent, sizeof sent, 0, tag, comm, NULL, NULL, NULL);
    }
    EXPECT_EQ(status, SMFAR_ERR_UNSUPPORTED);
    return NULL;
}

/* Of a call in parts either all are made or none. */
static void *gather_on(void *argument)
{
    static const size_t counts[] = {1, 2};
    static float sent[2][2], received[2][2][2];
    smfar_comm *comm = argument;
    int rank = smfar_comm_rank(comm);
    void *const parts[] = {received[rank][0], received[rank][1]};
    enum smfar_status status = SMFAR_OK;
    while (status == SMFAR_OK)
        status = smfar_all_gather_v(sent[rank], parts, counts, SMFAR_F32, comm, NULL);
    if (status == SMFAR_ERR_UNSUPPORTED) EXPECT_EQ(smfar_comm_sequence(comm) % 2, 0);
    return NULL;
}

/* A rank leaves while another of its threads calls. */
static void leave_while(struct ranks_thread *me, void *(*calling)(void *comm))
{
    pthread_t thread;
    smfar_comm *comm = join(me);
    REQUIRE(pthread_create(&thread, NULL, calling, comm) == 0, "no thread");
    nanosleep(&(struct timespec){0, 3000000}, NULL);
    smfar_comm_finalize(comm);
    pthread_join(thread, NULL);
    smfar_comm_destroy(comm);
}

static void leave_meanwhile(struct ranks_thread *me) { leave_while(me, call_on); }
static void leave_between_parts(struct ranks_thread *me) { leave_while(me, gather_on); }

/* Whichever thread it is: when it comes back the rank has left. */
static void *finalize(void *comm)
{
    smfar_comm_finalize(comm);
    EXPECT(smfar_comm_quiet(comm), "back before the rank has left");
    return NULL;
}

/* Several threads of a rank leave at once, with work under way that another rank is late for. */
static void leave_together(struct ranks_thread *me)
{
    static float data[2][100];
    pthread_t thread[3];
    smfar_comm *comm = join(me);
    if (me->rank == 1) nanosleep(&(struct timespec){0, 200000000}, NULL);
    must(smfar_all_reduce(data[me->rank], data[me->rank], 100, SMFAR_F32, SMFAR_SUM, comm, NULL));
    for (int i = 0; i < 3; i++)
        REQUIRE(pthread_create(&thread[i], NULL, finalize, comm) == 0, "no thread");
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    smfar_comm_destroy(comm);
}

/* Rank 0 alone allocates: that fails the group, whose ranks cannot be in step again. */
static void lone_allocation(struct ranks_thread *me)
{
    smfar_comm *comm = join(me);
    void *range = NULL;
    smfar_comm_set_timeout(comm, 1000);
    if (me->rank == 0) EXPECT_EQ(smfar_window_alloc(comm, 1000, &range), SMFAR_ERR_TIMEOUT);
    for (int i = 0; i < TIMEOUT_MS && smfar_comm_error(comm) == SMFAR_OK; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    EXPECT_EQ(smfar_comm_error(comm), SMFAR_ERR_TIMEOUT);
    EXPECT_HAS(smfar_last_error(), "rank 1");
    smfar_comm_destroy(comm);
}

static void run_all(const struct options *options, int ranks)
{
    ranks_run(ranks, collectives, (void *)options);
    ranks_run(ranks, window_memory, (void *)options);
}

int main(void)
{
    static const struct options mc, peer = {.no_multicast = 1}, chunked = {.chunk_bytes = 16384};
    struct driver *driver;
    setenv("SMFAR_SOFT_GPUS", "16", 1);            /* ranks that share one have no multicast */
    must(driver_open(SMFAR_DRIVER_SOFT, &driver)); /* keeps the table for the counts */
    ranks_run(2, reports, (void *)&peer);
    run_all(&peer, 3);
    EXPECT_EQ(switch_calls("cuMulticastCreate") + switch_calls("cuMulticastGetGranularity"), 0);
    ranks_run(4, reports, (void *)&mc);
    run_all(&mc, 2);
    run_all(&mc, 8);
    run_all(&chunked, 4);
    ranks_run(1, collectives, (void *)&mc);
    EXPECT(switch_calls("cuMulticastCreate") > 0, "multicast was never used");
    ranks_run(2, refusals, NULL);
    ranks_run(3, other_count, NULL);
    ranks_run(2, other_dtype, NULL);
    ranks_run(2, other_op, NULL);
    ranks_run(3, aborted, NULL);
    ranks_run(2, late_rank, NULL);
    ranks_run(2, free_meanwhile, NULL);
    ranks_run(2, lone_allocation, NULL);
    for (int turn = 0; turn < 20; turn++)
        ranks_run(1, leave_meanwhile, NULL);
    for (int turn = 0; turn < 20; turn++)
        ranks_run(2, leave_between_parts, NULL);
    ranks_run(2, leave_together, NULL);
    for (int turn = 0; turn < 10; turn++)
        ranks_run(3, left_early, (void *)(turn % 2 ? &mc : &peer));
    setenv("SMFAR_SM_BUDGET", "2147483648", 1);
    ranks_run(2, huge_budget, NULL);
    unsetenv("SMFAR_SM_BUDGET");
    driver_close(driver);
    switch_expect_no_leaks();
    return unit_end();
}
