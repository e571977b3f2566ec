/* Collectives that only move data, without a kernel, wherever each rank's tensors lie: in the
 * window at one place or at another, outside, in place, across each other. What a rank gets in the
 * window goes straight to its tensor, and the rank's staging slot stays as it was; every other byte
 * stays too. Ranks are threads on the software switch; whole and in many steps, through the switch
 * and over peers. */
#include "../../csrc/comm/comm.h"
#include "calls.h"
#include "ranks.h"
#include "switch.h"

enum {
    RANKS = 4,
    TIMEOUT_MS = 60000,
    SPACE = 512 << 10, /* bytes of each rank in the window, and outside */
    APART = SPACE / 2, /* from its outputs to its inputs */
    GUARD = 1024,
    MOST = 10000, /* elements */
    ROUNDS = 250
};

enum kind {
    ALL_GATHER,
    GATHER_LIST,
    OWN_APART,
    BROADCAST,
    SCATTER,
    GATHER,
    ALL_TO_ALL,
    UNEVEN,
    KINDS
};
static const char *const names[KINDS] = {"all_gather",
                                         "all_gather to a list",
                                         "all_gather, mine elsewhere",
                                         "broadcast",
                                         "scatter",
                                         "gather",
                                         "all_to_all",
                                         "all_to_all_v"};

enum place { IN_WINDOW, SHIFTED, PLAIN, IN_PLACE, ACROSS, PLACES };

struct group {
    int no_multicast;
    size_t chunk_bytes;
    uint64_t seed;
    pthread_barrier_t together;
};

/* One rank, and one call of it. */
struct seat {
    struct group *group;
    smfar_comm *comm;
    int rank;
    char *space[2], *want[2]; /* in the window and outside */
    uint64_t mine;            /* draws this rank's places */
    enum kind kind;
    enum place place;
    int root;
    size_t count;
    int32_t *send[RANKS], *recv[RANKS]; /* NULL where the kind has none */
};

static int32_t value_of(int from, int to, size_t i)
{
    return (int32_t)(10000 * from + 1000 * to) + (int32_t)(i % 997);
}

/* ---- where the tensors lie ---- */

static int is_sender(const struct seat *seat)
{
    return (seat->kind != BROADCAST && seat->kind != SCATTER) || seat->rank == seat->root;
}

static int is_receiver(const struct seat *seat)
{
    return seat->kind != GATHER || seat->rank == seat->root;
}

/* Does every rank get something else? */
static int has_parts(const struct seat *seat)
{
    return seat->kind == SCATTER || seat->kind == ALL_TO_ALL || seat->kind == UNEVEN;
}

/* Elements from one rank to another. */
static size_t count_of(const struct seat *seat, int from, int to)
{
    if (seat->kind != UNEVEN) return seat->count;
    return (from + 2 * to) % 3 ? seat->count / (size_t)(1 + from + to) : 0;
}

static void place_outputs(struct seat *seat, int32_t *base)
{
    size_t gap = seat->kind == GATHER_LIST ? 3 : 0, at = 0; /* not side by side */
    for (int r = 0; r < RANKS; r++) {
        int one = seat->kind == BROADCAST || seat->kind == SCATTER;
        seat->recv[r] = one ? (r == seat->root ? base : NULL) : base + at;
        if (!is_receiver(seat)) seat->recv[r] = NULL;
        at += count_of(seat, r, seat->rank) + gap;
    }
    /* what lies where this rank's part would be is somebody else's */
    if (seat->kind == OWN_APART) seat->recv[seat->rank] = base + at + 5;
}

static void place_inputs(struct seat *seat, int32_t *base)
{
    for (int r = 0; r < RANKS; r++) {
        seat->send[r] = base;
        if (has_parts(seat)) base += count_of(seat, seat->rank, r);
    }
}

/* What this kind allows in place. */
static void place_in_place(struct seat *seat)
{
    int32_t *own =
        seat->recv[seat->kind == BROADCAST || seat->kind == SCATTER ? seat->root : seat->rank];
    if (!own || seat->kind == UNEVEN) return;
    if (seat->kind == ALL_TO_ALL)
        memcpy(seat->send, seat->recv, sizeof seat->send);
    else if (seat->kind == SCATTER)
        seat->send[seat->rank] = own;
    else
        place_inputs(seat, own);
}

static void place_tensors(struct seat *seat)
{
    int shift = seat->place == SHIFTED ? 515 * (seat->rank + 1) : 0;
    int32_t *base = (int32_t *)(seat->space[seat->place == PLAIN] + GUARD) + shift;
    char *apart = seat->space[calls_random(&seat->mine) % 2] + APART;
    place_outputs(seat, base);
    place_inputs(seat, (int32_t *)apart + calls_random(&seat->mine) % 9);
    if (seat->place == IN_PLACE) place_in_place(seat);
    /* my input lies where another rank's goes */
    int other = (seat->rank + 1) % RANKS;
    if (seat->place == ACROSS && seat->kind <= OWN_APART) place_inputs(seat, seat->recv[other]);
}

static size_t gets_of_others(const struct seat *seat)
{
    size_t gets = 0;
    for (int r = 0; r < RANKS; r++)
        gets += r == seat->rank ? 0 : count_of(seat, r, seat->rank);
    return gets;
}

/* What the others send comes straight to the output: it lies in the window, side by side, and not
 * where this rank's input does, unless that is its own part of it. */
static int is_straight(const struct seat *seat)
{
    if (!gets_of_others(seat)) return 0;
    if (!seat->count || !is_receiver(seat) || seat->kind == GATHER_LIST) return 0;
    if ((seat->kind == BROADCAST || seat->kind == SCATTER) && seat->rank == seat->root) return 0;
    if (seat->place == PLAIN) return 0;
    if (seat->place == ACROSS) return seat->kind > OWN_APART;
    return seat->place != IN_PLACE || seat->kind != ALL_TO_ALL;
}

/* ---- a call ---- */

static void fill(struct seat *seat)
{
    for (int i = 0; i < 2; i++)
        memset(seat->space[i], 0xa5, SPACE);
    for (int r = 0; r < RANKS && is_sender(seat); r++)
        for (size_t i = 0; i < count_of(seat, seat->rank, r); i++)
            seat->send[r][i] = value_of(seat->rank, has_parts(seat) ? r : 0, i);
    for (int i = 0; i < 2; i++)
        memcpy(seat->want[i], seat->space[i], SPACE);
    for (int r = 0; r < RANKS; r++) {
        char *at = (char *)seat->recv[r];
        if (!at) continue;
        int plain = at < seat->space[0] || at >= seat->space[0] + SPACE;
        int32_t *want = (int32_t *)(seat->want[plain] + (at - seat->space[plain]));
        for (size_t i = 0; i < count_of(seat, r, seat->rank); i++)
            want[i] = value_of(r, has_parts(seat) ? seat->rank : 0, i);
    }
    struct window *window = seat->comm->window;
    memset((char *)(uintptr_t)window->peer[seat->rank] + window->slot, 0x3c,
           seat->comm->agreed.chunk_bytes);
}

static enum smfar_status enqueue(struct seat *seat)
{
    const void *const *send = (const void *const *)seat->send;
    void *const *recv = (void *const *)seat->recv;
    size_t gives[RANKS], gets[RANKS];
    smfar_comm *comm = seat->comm;
    switch (seat->kind) {
    case ALL_GATHER:
        return smfar_all_gather_into(send[0], recv[0], seat->count, SMFAR_I32, comm, NULL);
    case GATHER_LIST:
    case OWN_APART:
        return smfar_all_gather(send[0], recv, seat->count, SMFAR_I32, comm, NULL);
    case BROADCAST:
        return smfar_broadcast(send[0], recv[seat->root], seat->count, SMFAR_I32, seat->root, comm,
                               NULL);
    case SCATTER:
        return smfar_scatter(send, recv[seat->root], seat->count, SMFAR_I32, seat->root, comm,
                             NULL);
    case GATHER:
        return smfar_gather(send[0], recv, seat->count, SMFAR_I32, seat->root, comm, NULL);
    case UNEVEN:
        for (int r = 0; r < RANKS; r++) {
            gives[r] = count_of(seat, seat->rank, r);
            gets[r] = count_of(seat, r, seat->rank);
        }
        return smfar_all_to_all_v(send, gives, recv, gets, SMFAR_I32, comm, NULL);
    default:
        return smfar_all_to_all(send, recv, seat->count, SMFAR_I32, comm, NULL);
    }
}

/* Of all calls so far. */
static uint64_t staged_bytes(const struct seat *seat)
{
    struct smfar_path path;
    uint64_t bytes = 0;
    for (int i = 0; smfar_comm_path(seat->comm, i, &path) == SMFAR_OK; i++)
        bytes += path.staged_bytes;
    return bytes;
}

static void check(const struct seat *seat, int round, uint64_t staged)
{
    const struct window *window = seat->comm->window;
    const char *slot = (char *)(uintptr_t)window->peer[seat->rank] + window->slot;
    size_t i = 0, chunk = seat->comm->agreed.chunk_bytes, wrong = 0;
    for (int k = 0; k < 2; k++) {
        if (memcmp(seat->space[k], seat->want[k], SPACE) == 0) continue;
        for (size_t b = 0; b < SPACE; b++)
            wrong += seat->space[k][b] != seat->want[k][b];
    }
    EXPECT(wrong == 0, "round %d: %s of %zu, root %d, place %d: rank %d: %zu bytes wrong", round,
           names[seat->kind], seat->count, seat->root, seat->place, seat->rank, wrong);
    while (i < chunk && slot[i] == 0x3c)
        i++;
    int nothing = !gets_of_others(seat) && !count_of(seat, seat->rank, seat->rank);
    int untouched = is_straight(seat) || !is_receiver(seat) || nothing;
    EXPECT(!untouched || i == chunk, "round %d: %s, place %d: rank %d: byte %zu of its slot", round,
           names[seat->kind], seat->place, seat->rank, i);
    EXPECT((staged == 0) == untouched, "round %d: %s of %zu, place %d: rank %d: %llu staged", round,
           names[seat->kind], seat->count, seat->place, seat->rank, (unsigned long long)staged);
}

static void run_round(struct seat *seat, uint64_t *ours, int round)
{
    seat->kind = (enum kind)(calls_random(ours) % KINDS);
    seat->root = (int)(calls_random(ours) % RANKS);
    seat->count = calls_random(ours) % (2u << calls_random(ours) % 14);
    if (seat->count > MOST) seat->count = MOST;
    int alike = calls_random(ours) % 4 == 0; /* so that one copy may serve all */
    enum place ours_all = (enum place)(calls_random(ours) % PLACES);
    seat->place = alike ? ours_all : (enum place)(calls_random(&seat->mine) % PLACES);
    place_tensors(seat);
    fill(seat);
    uint64_t staged = staged_bytes(seat);
    pthread_barrier_wait(&seat->group->together);
    must(enqueue(seat));
    must(smfar_comm_wait(seat->comm, smfar_comm_sequence(seat->comm), -1));
    check(seat, round, staged_bytes(seat) - staged);
    pthread_barrier_wait(&seat->group->together);
}

static void run_rank(struct ranks_thread *me)
{
    struct group *group = me->extra;
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 4 << 20,
                                  .chunk_bytes = group->chunk_bytes,
                                  .no_multicast = group->no_multicast};
    struct seat seat = {
        .group = group, .rank = me->rank, .mine = group->seed + 1 + (uint64_t)me->rank};
    uint64_t ours = group->seed;
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &seat.comm));
    must(smfar_hint_set(&(struct smfar_hint){.sm_budget = SMFAR_NO_SMS}));
    must(smfar_window_alloc(seat.comm, SPACE, (void **)&seat.space[0]));
    seat.space[1] = malloc(SPACE);
    seat.want[0] = malloc(SPACE);
    seat.want[1] = malloc(SPACE);
    REQUIRE(seat.space[1] && seat.want[0] && seat.want[1], "no memory");
    pthread_barrier_wait(&group->together);
    uint64_t launches = switch_calls("cuLaunchKernel");
    pthread_barrier_wait(&group->together);
    for (int round = 0; round < ROUNDS; round++)
        run_round(&seat, &ours, round);
    must(smfar_barrier(seat.comm, NULL));
    must(smfar_comm_wait(seat.comm, smfar_comm_sequence(seat.comm), -1));
    pthread_barrier_wait(&group->together);
    EXPECT_EQ(switch_calls("cuLaunchKernel") - launches, 0);
    free(seat.space[1]);
    free(seat.want[0]);
    free(seat.want[1]);
    smfar_comm_destroy(seat.comm);
}

int main(int argc, char **argv)
{
    static struct group groups[] = {
        {0, 0, 0, {{0}}}, {0, 16 << 10, 0, {{0}}}, {1, 16 << 10, 0, {{0}}}};
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < 3; i++) {
        groups[i].seed = seed + (uint64_t)i;
        pthread_barrier_init(&groups[i].together, NULL, RANKS);
        ranks_run(RANKS, run_rank, &groups[i]);
    }
    switch_expect_no_leaks();
    return unit_end();
}
