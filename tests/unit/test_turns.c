/* Random collectives over five ranks in the switch's checked mode, turn by turn: whole collectives,
 * with their staging, copies and barriers, through the switch and in a quarter of the rounds over
 * peers. A kernel has other blocks and threads than planned, so that small tensors keep several
 * blocks busy; ranks need not agree on them. All ranks' calls are made by one thread, in any order
 * between the ranks; then the switch runs all streams by turns that follow from the seed. So a
 * round can be repeated exactly, alone.
 *
 *   test_turns [COLLECTIVES] [SEED]
 *
 * Rounds of one to four collectives, with seeds from SEED on, until there were so many. */
#include <signal.h>
#include <time.h>

#include "../../csrc/base/clock.h"
#include "../../csrc/collectives/collectives.h"
#include "../soft/steps.h"
#include "calls.h"
#include "ranks.h"
#include "switch.h"
#include "wrap.h"

enum {
    LEAST_DONE = 500,
    BATCH = 4, /* most collectives of a round */
    MOST_COUNT = 2000,
    MOST_BLOCKS = 3,
    MOST_WARPS = 4,
    SHORT_OF_WRAP = 100,
    PUSHING_CHUNK = 12 << 10, /* in smaller ones the boxes for packets have no room */
    TIMEOUT_MS = 30000,
    MOST_TURNS = 3000000, /* a tenth of the timeout by the clock that kernels see */
    REPEATED = 5          /* rounds that are run once more to see that they repeat */
};

/* The two groups, which serve all rounds. */
static struct group {
    smfar_comm *comm[CALLS_RANKS];
    char *space[CALLS_RANKS][2 * BATCH]; /* in the window, outside, and so on */
} groups[2];                             /* through the switch, and over peers */

static struct {
    void (*hold)(uint64_t seed);
    int (*take_turns)(unsigned, int (*)(void *), void *, uint64_t *);
    unsigned (*last_steps)(unsigned, struct soft_step *, unsigned);
} soft;

/* Everything about a round follows from its seed. */
struct round {
    struct group *group;
    uint64_t seed, random;
    uint32_t epoch;
    uint64_t first; /* sequence number before */
    int count, enqueued[CALLS_RANKS];
    struct calls_one ones[BATCH];
    struct calls_place place[CALLS_RANKS][BATCH];
    long turns_left;
    uint64_t turns;
};

/* ---- reports ---- */

static const char *module_text(const char *kernel)
{
    return smfar_kernel_text(strstr(kernel, "_mc") ? "mc" : "peer");
}

static void report(const struct round *round)
{
    printf("seed %llu, from phase %u on:\n", (unsigned long long)round->seed, round->epoch);
    for (int i = 0; i < round->count; i++) {
        char text[96];
        printf("  %s\n", calls_text(&round->ones[i], text));
    }
    for (int r = 0; r < CALLS_RANKS; r++) {
        struct soft_step steps[STEPS_SHOWN];
        const smfar_comm *comm = round->group->comm[r];
        const struct page_words *words = &comm->page.host->words[r];
        const struct error_record *error = &comm->page.host->error[r];
        printf("  rank %d has called %d and ended %lld", r, round->enqueued[r],
               (long long)(atomic_load(&words->done) - round->first));
        if (error->code)
            printf(", error %u in number %lld waiting for rank %u at phase %u", error->code,
                   (long long)(error->sequence - round->first), error->peer, error->epoch);
        printf("; its last steps:\n");
        unsigned count = soft.last_steps((unsigned)comm->device, steps, STEPS_SHOWN);
        steps_print(steps, count, module_text);
    }
}

static uint64_t running; /* its seed, for: */

/* The switch takes any address of the process for host memory: a kernel that takes a wrong one from
 * stale memory ends the process. */
static void report_wild_address(int signal_number)
{
    char text[96];
    int length = snprintf(text, sizeof text, "seed %llu: a kernel used a wild address (%d)\n",
                          (unsigned long long)running, signal_number);
    _exit(write(STDOUT_FILENO, text, (size_t)length) == length ? 1 : 2);
}

/* ---- a round ---- */

static void begin(struct round *round)
{
    uint64_t *random = &round->random;
    uint32_t near = 0u - calls_random(random) % 8, any = calls_random(random);
    round->epoch = calls_random(random) % 4 ? any : near;
    round->first = smfar_comm_sequence(round->group->comm[0]);
    round->count = 1 + (int)(calls_random(random) % BATCH);
    for (int i = 0; i < round->count; i++) {
        struct calls_one *one = &round->ones[i];
        *one = calls_draw(random, i, MOST_COUNT);
        /* what blocks hosts until all ranks have called: here one thread calls for all of them */
        int is_split = one->algorithm && !strncmp(one->algorithm, "split", 5);
        if (is_split) one->algorithm = NULL;
        calls_keep_going(one);
    }
    for (int r = 0; r < CALLS_RANKS; r++) {
        wrap_set_epoch(round->group->comm[r], round->epoch);
        for (int i = 0; i < round->count; i++)
            calls_fill(&round->ones[i], r, round->group->space[r][2 * i + calls_random(random) % 2],
                       random, &round->place[r][i]);
    }
}

static const enum collective collectives_of[] = {
    [CALLS_ALL_REDUCE] = COLLECTIVE_ALL_REDUCE,
    [CALLS_REDUCE] = COLLECTIVE_REDUCE,
    [CALLS_REDUCE_SCATTER] = COLLECTIVE_REDUCE_SCATTER,
    [CALLS_BROADCAST] = COLLECTIVE_BROADCAST,
    [CALLS_ALL_GATHER] = COLLECTIVE_ALL_GATHER,
    [CALLS_ALL_TO_ALL] = COLLECTIVE_ALL_TO_ALL,
    [CALLS_GATHER] = COLLECTIVE_GATHER,
    [CALLS_SCATTER] = COLLECTIVE_SCATTER,
};

/* Another shape in the plan that the library finds in its cache when the call is made. */
static void reshape(const struct calls_one *one, smfar_comm *comm, uint64_t *random)
{
    struct call call = {.comm = comm,
                        .collective = collectives_of[one->kind],
                        .dtype = (int)one->dtype,
                        .op = calls_is_reduction(one) ? (int)one->op : -1,
                        .root = one->root,
                        .count = one->count};
    const struct planned *planned;
    REQUIRE(calls_wish(one) == SMFAR_OK, "%s", smfar_last_error());
    REQUIRE(collective_plan(&call, &planned) == SMFAR_OK, "%s", smfar_last_error());
    struct plan *plan = &((struct planned *)(uintptr_t)planned)->plan;
    if (plan->kernel == KERNELS) return; /* copies between barriers of one warp */
    plan->blocks = 1 + (int)(calls_random(random) % MOST_BLOCKS);
    plan->threads = 32 * (1 + (int)(calls_random(random) % MOST_WARPS));
    if (algorithm_is_push(plan->algorithm)) plan->threads += 32; /* a warp that moves no data */
}

static void enqueue_one(struct round *round, int r)
{
    int i = round->enqueued[r]++;
    if (round->ones[i].kind != CALLS_BARRIER)
        reshape(&round->ones[i], round->group->comm[r], &round->random);
    enum smfar_status status =
        calls_enqueue(&round->ones[i], r, &round->place[r][i], round->group->comm[r]);
    if (status == SMFAR_OK) return;
    report(round);
    REQUIRE(0, "seed %llu: rank %d: %s", (unsigned long long)round->seed, r, smfar_last_error());
}

/* The ranks' calls in any order that one rank's own allows. */
static void enqueue(struct round *round)
{
    for (int left = CALLS_RANKS * round->count; left > 0; left--) {
        int r = (int)(calls_random(&round->random) % CALLS_RANKS);
        while (round->enqueued[r] == round->count)
            r = (r + 1) % CALLS_RANKS;
        enqueue_one(round, r);
    }
}

static int is_patient(void *context)
{
    struct round *round = context;
    return --round->turns_left > 0;
}

static void run(struct round *round)
{
    running = round->seed;
    signal(SIGSEGV, report_wild_address);
    signal(SIGBUS, report_wild_address);
    soft.hold(round->seed);
    enqueue(round);
    round->turns_left = MOST_TURNS;
    if (soft.take_turns(CALLS_RANKS, is_patient, round, &round->turns)) return;
    report(round);
    REQUIRE(0, "seed %llu: a stream does not come to its end", (unsigned long long)round->seed);
}

static void check_call(const struct round *round, int r, int i)
{
    long first;
    uint64_t sequence = round->first + (uint64_t)i + 1;
    enum smfar_status status = smfar_comm_query(round->group->comm[r], sequence);
    int right = calls_right(&round->ones[i], &round->place[r][i], r, &first);
    if (status == SMFAR_OK && right) return;
    report(round);
    REQUIRE(status == SMFAR_OK, "seed %llu: number %d on rank %d: %s",
            (unsigned long long)round->seed, i, r,
            status == SMFAR_PENDING ? "not marked as done" : smfar_last_error());
    REQUIRE(right, "seed %llu: number %d on rank %d: byte %ld is wrong",
            (unsigned long long)round->seed, i, r, first);
}

/* Returns the number of collectives. */
static int run_round(uint64_t seed, uint64_t *turns_out)
{
    struct round round = {.group = &groups[seed % 4 == 3], .seed = seed, .random = ~seed};
    begin(&round);
    run(&round);
    for (int r = 0; r < CALLS_RANKS; r++)
        for (int i = 0; i < round.count; i++)
            check_call(&round, r, i);
    *turns_out = round.turns;
    return round.count;
}

/* ---- the groups ---- */

static void create(struct ranks_thread *me)
{
    struct group *group = me->extra;
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .no_multicast = group == &groups[1],
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 4 << 20,
                                  .chunk_bytes = PUSHING_CHUNK};
    smfar_comm *comm = NULL;
    enum smfar_status status = smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm);
    REQUIRE(status == SMFAR_OK, "%s", smfar_last_error());
    REQUIRE(comm->agreed.multicast == !config.no_multicast, "multicast is %s",
            comm->multicast_reason);
    group->comm[me->rank] = comm;
    for (int i = 0; i < BATCH; i++) {
        char **space = &group->space[me->rank][2 * i];
        REQUIRE(smfar_window_alloc(comm, CALLS_SPACE, (void **)&space[0]) == SMFAR_OK, "%s",
                smfar_last_error());
        space[1] = malloc(CALLS_SPACE);
    }
    wrap_set_sequence(comm, (1ull << 32) - SHORT_OF_WRAP);
}

static void destroy(struct ranks_thread *me)
{
    struct group *group = me->extra;
    for (int i = 0; i < BATCH; i++)
        free(group->space[me->rank][2 * i + 1]);
    smfar_comm_destroy(group->comm[me->rank]);
}

/* Set-up is no part of any round: its threads run as they like. */
static void for_both(void (*body)(struct ranks_thread *me))
{
    for (int i = 0; i < 2; i++)
        ranks_run(CALLS_RANKS, body, &groups[i]);
}

/* The same seed takes the same number of turns, which no other order of steps would. */
static void check_repeats(uint64_t seed)
{
    uint64_t first[REPEATED], again, different = 0;
    for (unsigned i = 0; i < REPEATED; i++)
        run_round(seed + i, &first[i]);
    for (unsigned i = 0; i < REPEATED; i++) {
        run_round(seed + i, &again);
        EXPECT(again == first[i], "seed %llu took %llu turns, then %llu",
               (unsigned long long)(seed + i), (unsigned long long)first[i],
               (unsigned long long)again);
        different += first[i] != first[0];
    }
    EXPECT(different > 0, "all rounds take %llu turns", (unsigned long long)first[0]);
}

static uint64_t calls_by(const smfar_comm *comm, const char *algorithm)
{
    uint64_t calls = 0;
    for (int i = 0; i < comm->path_count; i++)
        if (strcmp(comm->paths[i].algorithm, algorithm) == 0) calls += comm->paths[i].calls;
    return calls;
}

/* Each way that needs no stream's wait has been taken, through the switch and over peers. */
static void check_ways(void)
{
    static const char *const ways[2][3] = {{"push_mc", "oneshot_mc", "twoshot_mc"},
                                           {"push_peer", "oneshot_peer", "twoshot_peer"}};
    for (int g = 0; g < 2; g++)
        for (int i = 0; i < 3; i++)
            EXPECT(calls_by(groups[g].comm[0], ways[g][i]) > 0, "no call by %s", ways[g][i]);
}

int main(int argc, char **argv)
{
    int collectives = argc > 1 ? atoi(argv[1]) : LEAST_DONE, done = 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : (uint64_t)time(NULL), turns, all = 0;
    struct driver *driver;
    uint64_t next = seed;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("seed %llu\n", (unsigned long long)seed);
    setenv("SMFAR_SOFT_CHECKED", "1", 1);
    REQUIRE(driver_open(SMFAR_DRIVER_SOFT, &driver) == SMFAR_OK, "%s", smfar_last_error());
    *(void **)&soft.hold = switch_symbol("soft_hold");
    *(void **)&soft.take_turns = switch_symbol("soft_take_turns");
    *(void **)&soft.last_steps = switch_symbol("soft_last_steps");
    for_both(create);
    int64_t begin = clock_now_ms();
    for (; done < collectives; all += turns)
        done += run_round(next++, &turns);
    if (collectives > 1) check_repeats(seed);
    if (collectives >= LEAST_DONE) check_ways();
    EXPECT(done >= collectives && all > 0, "nothing ran");
    printf("seeds %llu to %llu: %d collectives over %d ranks, %llu turns, in %.1f s\n",
           (unsigned long long)seed, (unsigned long long)next - 1, done, CALLS_RANKS,
           (unsigned long long)all, (double)(clock_now_ms() - begin) / 1000);
    for_both(destroy);
    driver_close(driver);
    return unit_end();
}
