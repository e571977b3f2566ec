/* The collectives that give every rank something else, over smfar.h, ranks being threads on the
 * software switch: reduce, reduce-scatter and all-to-all with equal and with unequal parts, gather,
 * all-gather of unequal ones, scatter; whole and in many steps, through the switch and over peers.
 */
#include "ranks.h"
#include "switch.h"

enum { LARGEST = 30000, MOST_RANKS = 4, TIMEOUT_MS = 60000, POISON = -77777 };

struct options {
    int no_multicast;
    size_t chunk_bytes;
    const char *algorithm; /* wished for; NULL: whichever suits */
};

/* One rank's memory: what it gives to each rank, and gets of each. */
struct seat {
    smfar_comm *comm;
    int rank, ranks;
    int32_t *send[MOST_RANKS], *recv[MOST_RANKS];
};

static int32_t value_of(int from, int to, size_t i)
{
    return (int32_t)(1000 * from + 100 * to) + (int32_t)(i % 89);
}

static void fill(const struct seat *seat)
{
    for (int r = 0; r < seat->ranks; r++)
        for (size_t i = 0; i < LARGEST; i++) {
            seat->send[r][i] = value_of(seat->rank, r, i);
            seat->recv[r][i] = POISON;
        }
}

static void wait_last(const struct seat *seat)
{
    must(smfar_comm_wait(seat->comm, smfar_comm_sequence(seat->comm), -1));
}

/* recv[r] holds `count` numbers of rank `from` for rank `to`, or their sums, and nothing behind. */
static void expect(const struct seat *seat, const char *what, int r, size_t count, int from, int to,
                   int summed)
{
    int wrong = 0;
    for (size_t i = 0; i < LARGEST; i++) {
        int32_t want = i < count ? value_of(from, to, i) : POISON;
        for (int other = 1; summed && i < count && other < seat->ranks; other++)
            want += value_of(other, to, i);
        wrong += seat->recv[r][i] != want;
    }
    EXPECT(wrong == 0, "%s of %zu: rank %d, part %d: %d wrong", what, count, seat->rank, r, wrong);
}

static void check_reduce(const struct seat *seat, size_t count)
{
    int root = (int)(count % (size_t)seat->ranks), is_root = seat->rank == root;
    fill(seat);
    must(smfar_reduce(seat->send[0], is_root ? seat->recv[0] : NULL, count, SMFAR_I32, SMFAR_SUM, 0,
                      root, seat->comm, NULL));
    wait_last(seat);
    expect(seat, "reduce", 0, is_root ? count : 0, 0, 0, 1);
    EXPECT_EQ(seat->send[0][1], value_of(seat->rank, 0, 1));
}

static void check_reduce_scatter(const struct seat *seat, size_t count)
{
    fill(seat);
    must(smfar_reduce_scatter((const void *const *)seat->send, seat->recv[0], count, SMFAR_I32,
                              SMFAR_SUM, 0, seat->comm, NULL));
    wait_last(seat);
    expect(seat, "reduce_scatter", 0, count, 0, seat->rank, 1);
}

/* In place, the parts behind each other. */
static void check_flat(const struct seat *seat, size_t count)
{
    static int32_t flat[MOST_RANKS][MOST_RANKS * LARGEST];
    int32_t *all = flat[seat->rank], *own = all + (size_t)seat->rank * count;
    fill(seat);
    for (int r = 0; r < seat->ranks; r++)
        memcpy(all + (size_t)r * count, seat->send[r], count * sizeof *all);
    must(smfar_reduce_scatter_from(all, own, count, SMFAR_I32, SMFAR_SUM, 0, seat->comm, NULL));
    wait_last(seat);
    memcpy(seat->recv[0], own, count * sizeof *all);
    expect(seat, "reduce_scatter_from", 0, count, 0, seat->rank, 1);
    must(smfar_all_gather_into(seat->send[1], all, count, SMFAR_I32, seat->comm, NULL));
    wait_last(seat);
    for (int r = 0; r < seat->ranks; r++)
        memcpy(seat->recv[r], all + (size_t)r * count, count * sizeof *all);
    for (int r = 0; r < seat->ranks; r++)
        expect(seat, "all_gather_into", r, count, r, 1, 0);
}

static void *window_take(const struct seat *seat, size_t bytes)
{
    void *memory;
    must(smfar_window_alloc(seat->comm, bytes, &memory));
    return memory;
}

static uint64_t staged_bytes(const struct seat *seat, const char *collective)
{
    struct smfar_path path;
    uint64_t bytes = 0;
    for (int i = 0; smfar_comm_path(seat->comm, i, &path) == SMFAR_OK; i++)
        if (!strcmp(path.collective, collective)) bytes += path.staged_bytes;
    return bytes;
}

/* Inputs in the window of all ranks, or of every other one, are read where they lie, and stay. */
static void check_in_window(const struct seat *seat, size_t count, int every)
{
    size_t bytes = count * sizeof(int32_t), parts = (size_t)seat->ranks;
    int32_t *window = window_take(seat, bytes * parts), *plain = seat->send[0];
    int32_t *all = seat->rank % every ? plain : window;
    uint64_t before = staged_bytes(seat, "reduce_scatter");
    fill(seat);
    for (size_t r = 0; r < parts; r++) /* the seat's rows of LARGEST lie one behind the other */
        memmove(all + r * count, seat->send[r], bytes);
    must(smfar_reduce_scatter_from(all, seat->recv[0], count, SMFAR_I32, SMFAR_SUM, 0, seat->comm,
                                   NULL));
    wait_last(seat);
    expect(seat, "reduce_scatter in the window", 0, count, 0, seat->rank, 1);
    for (size_t r = 0; r < parts && count; r++)
        EXPECT_EQ(all[r * count], value_of(seat->rank, (int)r, 0));
    EXPECT_EQ(staged_bytes(seat, "reduce_scatter") - before, all == window ? 0 : bytes * parts);
    smfar_window_free(seat->comm, window);
}

static void check_all_to_all(const struct seat *seat, size_t count)
{
    fill(seat);
    must(smfar_all_to_all((const void *const *)seat->send, (void *const *)seat->recv, count,
                          SMFAR_I32, seat->comm, NULL));
    wait_last(seat);
    for (int r = 0; r < seat->ranks; r++)
        expect(seat, "all_to_all", r, count, r, seat->rank, 0);
}

/* What a rank sends to another depends on both; some pairs exchange nothing. */
static size_t part_of(size_t count, int from, int to)
{
    return (from + 2 * to) % 3 ? count / (size_t)(1 + from + to) : 0;
}

static void check_all_to_all_v(const struct seat *seat, size_t count)
{
    size_t gives[MOST_RANKS], gets[MOST_RANKS];
    for (int r = 0; r < seat->ranks; r++) {
        gives[r] = part_of(count, seat->rank, r);
        gets[r] = part_of(count, r, seat->rank);
    }
    fill(seat);
    must(smfar_all_to_all_v((const void *const *)seat->send, gives, (void *const *)seat->recv, gets,
                            SMFAR_I32, seat->comm, NULL));
    wait_last(seat);
    for (int r = 0; r < seat->ranks; r++)
        expect(seat, "all_to_all_v", r, gets[r], r, seat->rank, 0);
}

static uint64_t calls_of(const struct seat *seat, const char *collective)
{
    struct smfar_path path;
    uint64_t calls = 0;
    for (int i = 0; smfar_comm_path(seat->comm, i, &path) == SMFAR_OK; i++)
        if (strcmp(path.collective, collective) == 0) calls += path.calls;
    return calls;
}

/* Parts that differ in size, some of them empty; each is counted as one call of what it is. */
static void check_uneven(const struct seat *seat, size_t count)
{
    size_t counts[MOST_RANKS];
    uint64_t gathered = calls_of(seat, "all_gather"), scattered = calls_of(seat, "reduce_scatter");
    uint64_t others = calls_of(seat, "broadcast") + calls_of(seat, "reduce");
    for (int r = 0; r < seat->ranks; r++)
        counts[r] = part_of(count, r, 1);
    fill(seat);
    must(smfar_all_gather_v(seat->send[0], (void *const *)seat->recv, counts, SMFAR_I32, seat->comm,
                            NULL));
    wait_last(seat);
    for (int r = 0; r < seat->ranks; r++)
        expect(seat, "all_gather_v", r, counts[r], r, 0, 0);
    fill(seat);
    must(smfar_reduce_scatter_v((const void *const *)seat->send, seat->recv[0], counts, SMFAR_I32,
                                SMFAR_SUM, 0, seat->comm, NULL));
    wait_last(seat);
    expect(seat, "reduce_scatter_v", 0, counts[seat->rank], 0, seat->rank, 1);
    EXPECT_EQ(calls_of(seat, "all_gather"), gathered + 1);
    EXPECT_EQ(calls_of(seat, "reduce_scatter"), scattered + 1);
    EXPECT_EQ(calls_of(seat, "broadcast") + calls_of(seat, "reduce"), others);
}

static void refuse_uneven(const struct seat *seat)
{
    const void *const *send = (const void *const *)seat->send;
    void *const *recv = (void *const *)seat->recv;
    static const size_t counts[MOST_RANKS] = {2, 3, 4, 5};
    smfar_comm *comm = seat->comm;
    int32_t *other = seat->recv[(seat->rank + 1) % seat->ranks] + 1;
    EXPECT_EQ(smfar_all_gather_v(other, recv, counts, SMFAR_I32, comm, NULL), SMFAR_ERR_ARGUMENT);
    EXPECT_HAS(smfar_last_error(),
               seat->ranks > 1 ? "must be apart" : "share part of their memory");
    EXPECT_EQ(smfar_all_gather_v(send[0], recv, NULL, SMFAR_I32, comm, NULL), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_all_gather_v(send[0], recv, counts, SMFAR_I32, NULL, NULL), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_reduce_scatter_v(send, seat->send[(seat->rank + 1) % seat->ranks] + 1, counts,
                                     SMFAR_I32, SMFAR_SUM, 0, comm, NULL),
              SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_reduce_scatter_v(send, recv[0], counts, SMFAR_I32, SMFAR_OPS, 0, comm, NULL),
              SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_reduce_scatter_v(NULL, recv[0], counts, SMFAR_I32, SMFAR_SUM, 0, comm, NULL),
              SMFAR_ERR_ARGUMENT);
}

static void check_rooted(const struct seat *seat, size_t count)
{
    int root = (int)(count % (size_t)seat->ranks), is_root = seat->rank == root;
    fill(seat);
    must(smfar_gather(seat->send[2], is_root ? (void *const *)seat->recv : NULL, count, SMFAR_I32,
                      root, seat->comm, NULL));
    wait_last(seat);
    for (int r = 0; r < seat->ranks; r++)
        expect(seat, "gather", r, is_root ? count : 0, r, 2, 0);
    fill(seat);
    must(smfar_scatter(is_root ? (const void *const *)seat->send : NULL, seat->recv[0], count,
                       SMFAR_I32, root, seat->comm, NULL));
    wait_last(seat);
    expect(seat, "scatter", 0, count, root, seat->rank, 0);
}

/* The root's output lies where another rank's input does, which that gets as it was. */
static void check_across(const struct seat *seat, size_t count)
{
    int root = (int)(count % (size_t)seat->ranks), is_root = seat->rank == root;
    int32_t *window = window_take(seat, count * sizeof *window * (size_t)seat->ranks);
    int32_t *recv = is_root ? window + count * (size_t)((root + 1) % seat->ranks) : seat->recv[0];
    const void *send[MOST_RANKS];
    uint64_t before = staged_bytes(seat, "scatter");
    fill(seat);
    for (int r = 0; r < seat->ranks; r++) {
        memcpy(window + count * (size_t)r, seat->send[r], count * sizeof *window);
        send[r] = window + count * (size_t)r;
    }
    must(smfar_scatter(is_root ? send : NULL, recv, count, SMFAR_I32, root, seat->comm, NULL));
    wait_last(seat);
    if (is_root) memcpy(seat->recv[0], recv, count * sizeof *recv);
    expect(seat, "scatter across", 0, count, root, seat->rank, 0);
    EXPECT(!is_root || !count || seat->ranks == 1 || staged_bytes(seat, "scatter") > before,
           "scatter of %zu: others read what the root writes over", count);
    smfar_window_free(seat->comm, window);
}

/* An input and an output that share all but one element. */
static void refuse_shifted(const struct seat *seat)
{
    enum { MANY = 1000 };
    int rank = seat->rank, other = (rank + 1) % seat->ranks;
    int32_t *shifted = seat->send[other] + 1;
    smfar_comm *comm = seat->comm;
    const void *const *send = (const void *const *)seat->send;
    void *recv[MOST_RANKS];
    memcpy(recv, seat->recv, sizeof recv);
    recv[other] = shifted;
    const enum smfar_status found[] = {
        smfar_all_reduce(send[other], shifted, MANY, SMFAR_I32, SMFAR_SUM, comm, NULL),
        smfar_reduce(send[other], shifted, MANY, SMFAR_I32, SMFAR_SUM, 0, rank, comm, NULL),
        smfar_broadcast(send[other], shifted, MANY, SMFAR_I32, rank, comm, NULL),
        smfar_all_gather(send[other], recv, MANY, SMFAR_I32, comm, NULL),
        smfar_all_gather_into(send[other], shifted, MANY, SMFAR_I32, comm, NULL),
        smfar_reduce_scatter(send, shifted, MANY, SMFAR_I32, SMFAR_SUM, 0, comm, NULL),
        smfar_reduce_scatter_from(send[other], shifted, MANY, SMFAR_I32, SMFAR_SUM, 0, comm, NULL),
        smfar_all_to_all(send, recv, MANY, SMFAR_I32, comm, NULL),
        smfar_gather(send[other], recv, MANY, SMFAR_I32, rank, comm, NULL),
        smfar_scatter(send, shifted, MANY, SMFAR_I32, rank, comm, NULL),
    };
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        EXPECT(found[i] == SMFAR_ERR_ARGUMENT, "call %zu: %s", i, smfar_status_name(found[i]));
    EXPECT_HAS(smfar_last_error(), "share part of their memory; they must be apart, or the same");
}

/* Two ranks' results in one place, or nearly. */
static void refuse_shared(const struct seat *seat)
{
    static const size_t counts[MOST_RANKS] = {2, 3, 4, 5};
    const void *const *send = (const void *const *)seat->send;
    void *recv[MOST_RANKS];
    smfar_comm *comm = seat->comm;
    int last = seat->ranks - 1;
    for (int r = 0; r < seat->ranks; r++)
        recv[r] = seat->recv[r];
    recv[last] = seat->recv[0] + 1;
    const enum smfar_status found[] = {
        smfar_all_gather(send[0], recv, 2, SMFAR_I32, comm, NULL),
        smfar_gather(send[0], recv, 2, SMFAR_I32, seat->rank, comm, NULL),
        smfar_all_to_all(send, recv, 2, SMFAR_I32, comm, NULL),
        smfar_all_gather_v(send[0], recv, counts, SMFAR_I32, comm, NULL),
        smfar_all_to_all_v(send, counts, recv, counts, SMFAR_I32, comm, NULL),
    };
    for (size_t i = 0; i < sizeof found / sizeof *found; i++)
        EXPECT(found[i] == SMFAR_ERR_ARGUMENT, "call %zu: %s", i, smfar_status_name(found[i]));
    EXPECT_HAS(smfar_last_error(), "share memory; each needs its own");
}

static void refuse(const struct seat *seat)
{
    const void *const *send = (const void *const *)seat->send;
    void *const *recv = (void *const *)seat->recv;
    smfar_comm *comm = seat->comm;
    EXPECT_EQ(smfar_reduce(send[0], recv[0], 1, SMFAR_I32, SMFAR_SUM, 0, seat->ranks, comm, NULL),
              SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_reduce(send[0], recv[0], 1, SMFAR_I32, SMFAR_OPS, 0, 0, comm, NULL),
              SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_scatter(send, recv[0], 1, SMFAR_I32, -1, comm, NULL), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_gather(send[0], NULL, 1, SMFAR_I32, seat->rank, comm, NULL),
              SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_all_to_all(send, NULL, 1, SMFAR_I32, comm, NULL), SMFAR_ERR_ARGUMENT);
    refuse_shifted(seat);
    refuse_uneven(seat);
    if (seat->ranks > 1) refuse_shared(seat);
    must(smfar_barrier(comm, NULL));
    wait_last(seat);
}

static void check(struct ranks_thread *me)
{
    static int32_t memory[MOST_RANKS][2][MOST_RANKS][LARGEST];
    static const size_t counts[] = {0, 1, 3, 1000, 4097, LARGEST};
    const struct options *options = me->extra;
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 4 << 20,
                                  .chunk_bytes = options->chunk_bytes,
                                  .no_multicast = options->no_multicast};
    struct seat seat = {.rank = me->rank, .ranks = me->ranks};
    for (int r = 0; r < MOST_RANKS; r++) {
        seat.send[r] = memory[me->rank][0][r];
        seat.recv[r] = memory[me->rank][1][r];
    }
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &seat.comm));
    must(smfar_hint_set(&(struct smfar_hint){.algorithm = options->algorithm}));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        check_reduce(&seat, counts[i]);
        check_reduce_scatter(&seat, counts[i]);
        check_flat(&seat, counts[i]);
        check_in_window(&seat, counts[i], 1);
        check_in_window(&seat, counts[i], 2);
        check_all_to_all(&seat, counts[i]);
        check_all_to_all_v(&seat, counts[i]);
        check_uneven(&seat, counts[i]);
        check_rooted(&seat, counts[i]);
        check_across(&seat, counts[i]);
    }
    refuse(&seat);
    smfar_comm_destroy(seat.comm);
}

/* Ranks whose counts do not fit all hear of it at once; nothing is moved, and the group goes on. */
static void disagree(struct ranks_thread *me)
{
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 1 << 20};
    static int32_t memory[3][2][8];
    int32_t *own = memory[me->rank][1];
    smfar_comm *comm;
    size_t gives[3] = {1, 1, 1}, gets[3] = {1, 1, 1};
    const void *send[3] = {memory[me->rank][0], memory[me->rank][0], memory[me->rank][0]};
    void *recv[3] = {own, own + 1, own + 2};
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm));
    for (int streams = 0; streams < 2; streams++) {
        must(smfar_hint_set(&(struct smfar_hint){.sm_budget = streams ? SMFAR_NO_SMS : 0}));
        own[0] = -1;
        gives[2] = me->rank == 1 ? 2 : 1;
        EXPECT_EQ(smfar_all_to_all_v(send, gives, recv, gets, SMFAR_I32, comm, NULL),
                  SMFAR_ERR_MISMATCH);
        EXPECT_HAS(smfar_last_error(), "rank 1 sends rank 2 8 bytes, and that expects 4");
        must(smfar_comm_wait(comm, smfar_comm_sequence(comm), -1));
        EXPECT_EQ(own[0], -1);
        gives[2] = 1;
        memory[me->rank][0][0] = 5;
        must(smfar_all_to_all_v(send, gives, recv, gets, SMFAR_I32, comm, NULL));
        must(smfar_comm_wait(comm, smfar_comm_sequence(comm), -1));
        EXPECT_EQ(own[0], 5);
    }
    must(smfar_hint_set(NULL));
    smfar_comm_destroy(comm);
}

int main(void)
{
    static const struct options options[] = {
        {0, 0, NULL},    {0, 16 << 10, NULL},        {1, 0, NULL},        {1, 16 << 10, NULL},
        {0, 4096, NULL}, {0, 16 << 10, "pull_peer"}, {1, 0, "pull_peer"},
    };
    for (int i = 0; i < 7; i++)
        ranks_run(1 + (i + 2) % 4, check, (void *)(uintptr_t)&options[i]);
    ranks_run(MOST_RANKS, check, (void *)(uintptr_t)&options[1]);
    ranks_run(MOST_RANKS, check, (void *)(uintptr_t)&options[5]);
    ranks_run(3, disagree, NULL);
    switch_expect_no_leaks();
    return unit_end();
}
