/* All-reduces in two halves, kernels that add and copy engines that carry, ranks being threads on
 * the software switch: results to the bit, for every budget and wherever tensors lie; what goes to
 * whom by which way; and that a copy is made while the next leg is added. */
#include "../../csrc/comm/comm.h"
#include "calls.h"
#include "ranks.h"
#include "switch.h"

enum {
    MOST_RANKS = 5,
    TIMEOUT_MS = 60000,
    SPACE = 768 << 10, /* bytes of each rank in the window, and outside */
    GUARD = 256,
    MOST = 70000, /* elements */
    ROUNDS = 40,
    MOST_COPIES = 256
};

static const char *const algorithms[] = {"split_peer", "twoshot_peer", "oneshot_peer", "split_mc",
                                         "twoshot_mc"};
enum { WAYS = 5, IN_RANK_ORDER = 3 };

struct group {
    size_t chunk_bytes;
    uint64_t seed;
    pthread_barrier_t together;
};

struct seat {
    struct group *group;
    smfar_comm *comm;
    int rank, ranks;
    char *space[2]; /* in the window and outside */
    uint64_t mine;  /* draws this rank's places and budgets */
    size_t count;
    float *send, *recv, *expected;
};

static smfar_comm *join(struct ranks_thread *me, size_t chunk_bytes)
{
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 8 << 20,
                                  .chunk_bytes = chunk_bytes ? chunk_bytes : 1 << 20};
    smfar_comm *comm = NULL;
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm));
    return comm;
}

/* ---- values ---- */

/* Sums of these round differently in another order; `whole` ones do not round. */
static float value_of(int rank, size_t i, int whole)
{
    if (whole) return (float)calls_value(rank, 1, i);
    uint64_t state = (uint64_t)rank << 40 ^ i;
    return (float)((int32_t)calls_random(&state)) / (float)(1 << calls_random(&state) % 30);
}

static void compute(const struct seat *seat, int whole)
{
    for (size_t i = 0; i < seat->count; i++) {
        float sum = value_of(0, i, whole);
        for (int r = 1; r < seat->ranks; r++)
            sum += value_of(r, i, whole);
        seat->expected[i] = sum;
    }
}

/* ---- results, wherever tensors lie ---- */

/* `where`: 0: at one place in the window, 1: anywhere in it, 2: anywhere. */
static void place(struct seat *seat, int where, int in_place)
{
    int plain = where == 2 && calls_random(&seat->mine) % 2;
    size_t shift = where ? calls_random(&seat->mine) % 200 : seat->count % 7;
    seat->recv = (float *)(seat->space[plain] + GUARD) + shift;
    seat->send = seat->recv;
    plain = (int)(calls_random(&seat->mine) % 2);
    if (!in_place)
        seat->send = (float *)(seat->space[plain] + SPACE / 2) + calls_random(&seat->mine) % 9;
}

static void check(const struct seat *seat, const char *algorithm, int where, int whole)
{
    size_t wrong = 0;
    const char *at = (const char *)seat->recv, *end = (const char *)(seat->recv + seat->count);
    for (size_t i = 0; i < seat->count; i++)
        wrong += memcmp(&seat->recv[i], &seat->expected[i], sizeof(float)) != 0;
    for (int i = 1; i <= GUARD; i++)
        wrong += at[-i] != 0x5c || end[i - 1] != 0x5c;
    for (size_t i = 0; i < seat->count && seat->send != seat->recv; i++)
        wrong += seat->send[i] != value_of(seat->rank, i, whole);
    EXPECT(wrong == 0, "%s of %zu, places %d, %s: rank %d of %d: %zu wrong", algorithm, seat->count,
           where, seat->send == seat->recv ? "in place" : "apart", seat->rank, seat->ranks, wrong);
}

static void run_one(struct seat *seat, const char *algorithm, int where, int in_place, int whole)
{
    struct smfar_hint hint = {.algorithm = algorithm,
                              .sm_budget = 1 + (int)(calls_random(&seat->mine) % 16)};
    place(seat, where, in_place);
    memset(seat->space[0], 0x5c, SPACE);
    memset(seat->space[1], 0x5c, SPACE);
    for (size_t i = 0; i < seat->count; i++)
        seat->send[i] = value_of(seat->rank, i, whole);
    must(smfar_hint_set(&hint));
    must(smfar_all_reduce(seat->send, seat->recv, seat->count, SMFAR_F32, SMFAR_SUM, seat->comm,
                          NULL));
    must(smfar_comm_wait(seat->comm, smfar_comm_sequence(seat->comm), -1));
    check(seat, algorithm, where, whole);
    pthread_barrier_wait(&seat->group->together);
}

/* Those in rank order give the same bits as a plain loop, and so as each other; the switch adds in
 * an order of its own. */
static void run_round(struct seat *seat, uint64_t *ours)
{
    seat->count = calls_random(ours) % (2u << calls_random(ours) % 17);
    if (seat->count > MOST) seat->count = MOST;
    int where = (int)(calls_random(ours) % 3), in_place = (int)(calls_random(ours) % 2);
    size_t bytes = seat->count * sizeof(float), ranks = (size_t)seat->ranks;
    for (int i = 0; i < WAYS; i++) {
        int small = bytes <= seat->comm->agreed.oneshot_bytes && bytes * ranks <= 512 << 10;
        if (i == 2 && !small) continue; /* it would not be a one-shot */
        compute(seat, i >= IN_RANK_ORDER);
        run_one(seat, algorithms[i], where, in_place, i >= IN_RANK_ORDER);
    }
}

static void expect_path(const struct seat *seat, const char *algorithm)
{
    struct smfar_path path;
    for (int i = 0; smfar_comm_path(seat->comm, i, &path) == SMFAR_OK; i++)
        if (strcmp(path.algorithm, algorithm) == 0 && path.calls > ROUNDS / 4) return;
    EXPECT(0, "%s was hardly ever taken", algorithm);
}

static void compare(struct ranks_thread *me)
{
    struct group *group = me->extra;
    struct seat seat = {.group = group,
                        .rank = me->rank,
                        .ranks = me->ranks,
                        .mine = group->seed + 1 + (uint64_t)me->rank,
                        .comm = join(me, group->chunk_bytes),
                        .expected = malloc(MOST * sizeof(float))};
    uint64_t ours = group->seed;
    if (me->ranks % 2)
        seat.comm->agreed.multicast_copy = 0; /* as if it had not worked when tried */
    must(smfar_window_alloc(seat.comm, SPACE, (void **)&seat.space[0]));
    seat.space[1] = malloc(SPACE);
    REQUIRE(seat.expected && seat.space[1], "no memory");
    for (int round = 0; round < ROUNDS; round++)
        run_round(&seat, &ours);
    expect_path(&seat, "split_peer");
    if (seat.comm->agreed.multicast) expect_path(&seat, "split_mc");
    free(seat.expected);
    free(seat.space[1]);
    smfar_comm_destroy(seat.comm);
}

/* ---- what is copied where, and when ---- */

static CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
static CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, CUstream, void **, void **);

/* What rank 0's thread does from the moment when `comm` is set. */
static struct watch {
    smfar_comm *comm;
    int copies, launches;
    struct {
        CUdeviceptr to, from;
        size_t bytes;
    } copy[MOST_COPIES];
} watch;
static _Thread_local int is_watched;

static CUresult note_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (is_watched && watch.copies < MOST_COPIES) {
        watch.copy[watch.copies].to = to;
        watch.copy[watch.copies].from = from;
        watch.copy[watch.copies++].bytes = bytes;
    }
    return copy(to, from, bytes, stream);
}

/* Words of the page that nothing else uses: launch number n waits until the word is n or more. */
static _Atomic uint64_t *gate(void)
{
    return (_Atomic uint64_t *)(void *)((char *)watch.comm->page.host + 64);
}

static CUresult hold_launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, CUstream stream,
                            void **params, void **extra)
{
    CUresult result = CUDA_SUCCESS;
    if (is_watched)
        result = watch.comm->driver->cuStreamWaitValue64(stream, watch.comm->page.device + 64,
                                                         (uint64_t)++watch.launches,
                                                         CU_STREAM_WAIT_VALUE_GEQ);
    if (result != CUDA_SUCCESS) return result;
    return launch(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}

enum { LEGS = 4, SHARE = 64 << 10, TWO = 2, ELEMENTS = TWO * SHARE / 4 };

/* With split_mc on tensors at one place of the window: nothing but copies to the multicast address,
 * of my share alone, each byte once, from my staging slot. */
static void expect_multicast_alone(const struct window *window, uint64_t offset)
{
    size_t bytes = 0;
    uint64_t share = window->multicast + offset, slot = window->peer[0] + window->slot;
    for (int i = 0; i < watch.copies; i++) {
        uint64_t to = watch.copy[i].to, from = watch.copy[i].from;
        EXPECT(to == share + bytes, "copy %d goes to another place", i);
        EXPECT(from >= slot && from < slot + SHARE, "copy %d comes from elsewhere", i);
        bytes += watch.copy[i].bytes;
    }
    EXPECT_EQ(bytes, SHARE);
}

static void expect_no_stores_through_the_switch(void)
{
    int (*read)(unsigned, struct soft_kernel_stats *);
    struct soft_kernel_stats stats;
    int found = 0;
    *(void **)&read = switch_symbol("soft_kernel_stats");
    for (unsigned i = 0; read(i, &stats); i++) {
        if (!strstr(stats.name, "split_mc")) continue;
        found++;
        EXPECT_EQ(stats.multimem_stores + stats.multimem_reds, 0);
        EXPECT(stats.multimem_loads > 0, "%s does not load through the switch", stats.name);
    }
    EXPECT(found > 0, "no kernel of split_mc has run");
}

enum { THEIRS = 200 }; /* every element of rank 1's tensor, before */

/* Element `i` of rank 1's tensor, which lies in this process, has its result. */
static int has_arrived(const float *tensor, size_t i)
{
    const volatile float *at = tensor + i;
    for (int ms = 0; ms < TIMEOUT_MS && *at == THEIRS; ms++)
        usleep(1000);
    return *at != THEIRS;
}

/* Rank 0's launches are let go one by one: with the next still held, the leg before is there. */
static void watch_legs(const float *theirs)
{
    int legs = watch.launches;
    size_t each = SHARE / 4 / LEGS;
    EXPECT_EQ(legs, LEGS);
    for (int i = 1; i <= legs; i++) {
        size_t last = i == legs ? SHARE / 4 - 1 : (size_t)i * each - 1; /* legs are a bit longer */
        EXPECT(theirs[last] == THEIRS, "leg %d has arrived before it was added", i);
        atomic_store(gate(), (uint64_t)i);
        EXPECT(has_arrived(theirs, last), "leg %d waits for what comes after it", i);
    }
}

static const float *tensors[TWO];
enum { THROUGH_SWITCH, NORM_THROUGH_SWITCH, OVER_PEERS, NORM_OVER_PEERS, CALLED_WAYS };

static int is_norm(uint64_t way) { return way == NORM_THROUGH_SWITCH || way == NORM_OVER_PEERS; }

static enum smfar_status call_way(uint64_t way, float *data, smfar_comm *comm)
{
    struct smfar_rms_norm norm = {.rows = ELEMENTS / 64, .hidden = 64, .dtype = SMFAR_F32};
    if (is_norm(way)) return smfar_all_reduce_rms_norm(data, data, &norm, comm, NULL);
    return smfar_all_reduce(data, data, ELEMENTS, SMFAR_F32, SMFAR_SUM, comm, NULL);
}

static void expect_value(const float *data, float value)
{
    size_t wrong = 0;
    for (size_t i = 0; i < ELEMENTS; i++)
        wrong += !(data[i] > value * 0.9999f && data[i] < value * 1.0001f);
    EXPECT(wrong == 0, "%zu elements are not %g", wrong, (double)value);
}

static void carry_under_adding(struct ranks_thread *me)
{
    struct group *group = me->extra;
    int through_switch = group->seed < OVER_PEERS;
    struct smfar_hint hint = {.algorithm = through_switch ? "split_mc" : "split_peer"};
    smfar_comm *comm = join(me, 0);
    size_t offset;
    void *data;
    must(smfar_window_alloc(comm, ELEMENTS * sizeof(float), &data));
    REQUIRE(window_offset(comm->window, data, 4, &offset), "not in the window");
    for (size_t i = 0; i < ELEMENTS; i++)
        ((float *)data)[i] = (float)(100 + 100 * me->rank);
    tensors[me->rank] = data;
    must(smfar_hint_set(&hint));
    if (me->rank == 0) {
        watch = (struct watch){.comm = comm};
        is_watched = 1;
    }
    pthread_barrier_wait(&group->together);
    must(call_way(group->seed, data, comm));
    is_watched = 0;
    if (me->rank == 0) watch_legs(tensors[1]);
    must(smfar_comm_wait(comm, smfar_comm_sequence(comm), -1));
    expect_value(data, is_norm(group->seed) ? 1 : 300);
    if (me->rank == 0 && through_switch) expect_multicast_alone(comm->window, offset);
    pthread_barrier_wait(&group->together);
    smfar_comm_destroy(comm);
}

/* More steps than streams have meetings for: it is done without a split. */
static void too_many_steps(struct ranks_thread *me)
{
    smfar_comm *comm = join(me, 1 << 10);
    size_t count = (size_t)8 << 20;
    float *data = calloc(count, sizeof *data);
    char text[512];
    must(smfar_hint_set(&(struct smfar_hint){.algorithm = "split_peer"}));
    must(smfar_explain(comm, data, count, SMFAR_F32, SMFAR_SUM, text, sizeof text));
    EXPECT_HAS(text, "twoshot_peer");
    EXPECT_HAS(text, "split_peer was asked for, but it takes too many steps: SMFAR_CHUNK_BYTES");
    data[count - 1] = 3;
    must(smfar_all_reduce(data, data, count, SMFAR_F32, SMFAR_SUM, comm, NULL));
    must(smfar_comm_wait(comm, smfar_comm_sequence(comm), -1));
    EXPECT_EQ((int)data[count - 1], 3);
    must(smfar_explain(comm, data, 1000, SMFAR_F32, SMFAR_SUM, text, sizeof text));
    EXPECT_HAS(text, "split_peer, ");
    smfar_comm_destroy(comm);
    free(data);
}

int main(int argc, char **argv)
{
    static struct group group;
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    struct driver *driver;
    printf("seed %llu\n", (unsigned long long)seed);
    must(driver_open(SMFAR_DRIVER_SOFT, &driver));
    for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
        group =
            (struct group){.chunk_bytes = ranks % 2 ? 0 : 32 << 10, .seed = seed + (uint64_t)ranks};
        pthread_barrier_init(&group.together, NULL, (unsigned)ranks);
        ranks_run(ranks, compare, &group);
    }
    copy = driver->cuMemcpyAsync;
    launch = driver->cuLaunchKernel;
    driver->cuMemcpyAsync = note_copy;
    driver->cuLaunchKernel = hold_launch;
    pthread_barrier_init(&group.together, NULL, TWO);
    for (group.seed = 0; group.seed < CALLED_WAYS; group.seed++)
        ranks_run(TWO, carry_under_adding, &group);
    driver->cuMemcpyAsync = copy;
    driver->cuLaunchKernel = launch;
    expect_no_stores_through_the_switch();
    ranks_run(1, too_many_steps, NULL);
    driver_close(driver);
    switch_expect_no_leaks();
    return unit_end();
}
