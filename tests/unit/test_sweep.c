/* The sweep: every driver call that set-up makes, on every rank of three, fails once, fails for
 * good, says "not ready" twice, or blocks. All ranks must come to one verdict within the deadline:
 * a communicator that works, or an error that names the rank, the call and the code; nothing may
 * stay behind, and the next communicator must work.
 *
 *   test_sweep [--all] [--verbose]
 *
 * Without --all: of each function the first call. With it: all calls. */
#define _GNU_SOURCE /* pthread_setname_np */

#include "../../csrc/driver/driver.h"
#include "ranks.h"
#include "switch.h"

enum {
    RANKS = 3,
    COUNT = 1003,
    PATIENT_MS = 60000, /* where no wait should run out */
    BLOCKED_MS = 1600,  /* the least timeout where one does */
    BLOCKED_TIMES = 20, /* and how many undisturbed creations it must have room for */
    LATE_MS = 1000,
    MOST_CALLS = 128,
    FAILURE = 999 /* CUDA_ERROR_UNKNOWN */
};

enum mode { ONCE, FOR_GOOD, NOT_READY_TWICE, BLOCKED, MODES };
static const char *const mode_names[] = {"once", "for good", "not ready twice", "blocked"};

struct sweep_case {
    const char *call;
    int rank;
    unsigned number;
    enum mode mode;
};

/* One creation by all ranks. */
struct creation {
    const struct sweep_case *fault; /* NULL: none */
    int64_t timeout_ms;
    pthread_barrier_t together;
    enum smfar_status status[RANKS];
    char text[RANKS][1024]; /* the error, or what the communicator is */
    double seconds[RANKS];
};

static struct {
    int (*plan)(const struct soft_fault *fault);
    unsigned (*matches)(int fault);
    void (*clear)(void);
    const char *(*call_name)(unsigned index);
    void (*leaks)(struct soft_leaks *out);
} soft;

static int all_calls, verbose;
static int64_t blocked_ms;
static unsigned calls[RANKS][MOST_CALLS]; /* how often set-up makes each */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void name_thread(int rank, char *name, size_t size) { snprintf(name, size, "rank%d", rank); }

/* ---- one creation ---- */

static void check_sum(smfar_comm *comm, int rank)
{
    static float data[RANKS][COUNT];
    int wrong = 0;
    for (int i = 0; i < COUNT; i++)
        data[rank][i] = (float)(i % 50 + rank);
    enum smfar_status status =
        smfar_all_reduce(data[rank], data[rank], COUNT, SMFAR_F32, SMFAR_SUM, comm, NULL);
    if (status == SMFAR_OK) status = smfar_comm_wait(comm, smfar_comm_sequence(comm), -1);
    EXPECT(status == SMFAR_OK, "rank %d: %s", rank, smfar_last_error());
    for (int i = 0; i < COUNT && status == SMFAR_OK; i++)
        wrong += data[rank][i] != (float)(RANKS * (i % 50) + RANKS * (RANKS - 1) / 2);
    EXPECT(wrong == 0, "rank %d: %d sums are wrong", rank, wrong);
}

static void create_and_use(struct ranks_thread *me)
{
    struct creation *creation = me->extra;
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = creation->timeout_ms,
                                  .window_bytes = 1 << 20};
    smfar_comm *comm = NULL;
    char name[16];
    name_thread(me->rank, name, sizeof name);
    pthread_setname_np(pthread_self(), name);
    double begin = now();
    enum smfar_status status = smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm);
    creation->seconds[me->rank] = now() - begin;
    creation->status[me->rank] = status;
    snprintf(creation->text[me->rank], sizeof creation->text[0], "%s", smfar_last_error());
    EXPECT((status == SMFAR_OK) == (comm != NULL), "rank %d: %d, %p", me->rank, status,
           (void *)comm);
    if (pthread_barrier_wait(&creation->together) == PTHREAD_BARRIER_SERIAL_THREAD) {
        for (unsigned i = 0; soft.call_name(i) && !creation->fault; i++)
            for (int r = 0; r < RANKS; r++)
                calls[r][i] = soft.matches((int)(i * RANKS) + r);
        soft.clear();
    }
    pthread_barrier_wait(&creation->together);
    int everywhere = 1;
    for (int r = 0; r < RANKS; r++)
        everywhere &= creation->status[r] == SMFAR_OK;
    if (everywhere) {
        smfar_comm_describe(comm, creation->text[me->rank], sizeof creation->text[0]);
        check_sum(comm, me->rank);
    }
    smfar_comm_destroy(comm);
}

static void create(struct creation *creation)
{
    pthread_barrier_init(&creation->together, NULL, RANKS);
    ranks_run(RANKS, create_and_use, creation);
    pthread_barrier_destroy(&creation->together);
}

/* ---- what must hold afterwards ---- */

/* Mappings of anybody's shared memory. */
static int shared_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    int count = 0;
    REQUIRE(maps != NULL, "no /proc/self/maps");
    while (fgets(line, sizeof line, maps))
        count += strstr(line, "memfd:smfar") != NULL;
    fclose(maps);
    return count;
}

static uint64_t held(void)
{
    struct soft_leaks leaks;
    soft.leaks(&leaks);
    return leaks.handles + leaks.mappings + leaks.ranges + leaks.streams + leaks.events +
           leaks.modules + leaks.descriptors + leaks.graphs;
}

/* A call that had blocked is undone by its own thread, a moment after its release. */
static void wait_undone(int descriptors)
{
    for (double limit = now() + 30; now() < limit; usleep(1000))
        if (held() == 0 && switch_open_descriptors() == descriptors && shared_mappings() == 0)
            return;
}

static void check_nothing_left(int descriptors)
{
    wait_undone(descriptors);
    switch_expect_no_leaks();
    EXPECT_EQ(switch_open_descriptors(), descriptors);
    EXPECT_EQ(shared_mappings(), 0);
}

static void check_verdict(const struct sweep_case *c, const struct creation *creation)
{
    static const char on[] = "multicast on";
    char rank[16], code[16];
    snprintf(rank, sizeof rank, "rank %d", c->rank);
    snprintf(code, sizeof code, "(%d)", c->mode == NOT_READY_TWICE ? 802 : FAILURE);
    for (int r = 0; r < RANKS; r++) {
        EXPECT_EQ(creation->status[r], creation->status[0]);
        EXPECT(creation->seconds[r] * 1000 < (double)creation->timeout_ms, "%.3f s on rank %d",
               creation->seconds[r], r);
        EXPECT(!strstr(creation->text[r], on) == !strstr(creation->text[0], on), "rank %d: %s", r,
               creation->text[r]);
        if (strstr(creation->text[r], on)) continue;
        /* an error, or why multicast is off */
        EXPECT_HAS(creation->text[r], rank);
        EXPECT_HAS(creation->text[r], c->call);
        if (c->mode != BLOCKED) EXPECT_HAS(creation->text[r], code);
    }
    EXPECT(c->mode != BLOCKED || creation->status[0] == SMFAR_ERR_TIMEOUT, "blocked: status %d",
           creation->status[0]);
}

/* ---- the cases ---- */

/* Work on the others' memory, which they have given back when it comes through too late: it must
 * not. */
static int reaches_others(const char *call)
{
    return strcmp(call, "cuLaunchKernel") == 0 || strcmp(call, "cuMemcpyAsync") == 0;
}

static void order(const struct sweep_case *c)
{
    char thread[16];
    name_thread(c->rank, thread, sizeof thread);
    struct soft_fault fault = {.call = c->call, .thread = thread, .first = c->number, .times = 1};
    if (c->mode == FOR_GOOD) fault.times = 0;
    if (c->mode == NOT_READY_TWICE) fault.times = 2;
    if (c->mode == BLOCKED) fault.block_ms = -1;
    if (c->mode != BLOCKED || reaches_others(c->call))
        fault.result = c->mode == NOT_READY_TWICE ? CUDA_ERROR_SYSTEM_NOT_READY : FAILURE;
    REQUIRE(soft.plan(&fault) >= 0, "no fault for %s", c->call);
}

static struct creation create_with(const struct sweep_case *c)
{
    struct creation creation = {.fault = c,
                                .timeout_ms = c->mode == BLOCKED ? blocked_ms : PATIENT_MS};
    order(c);
    create(&creation);
    return creation;
}

static void create_without(void)
{
    static const struct sweep_case none = {"", 0, 0, ONCE};
    struct creation creation = {.fault = &none, .timeout_ms = PATIENT_MS};
    create(&creation);
    for (int r = 0; r < RANKS; r++)
        EXPECT(creation.status[r] == SMFAR_OK, "without a fault: %s", creation.text[r]);
}

static int run_case(const struct sweep_case *c, int descriptors)
{
    int before = unit_failures;
    struct creation creation = create_with(c);
    check_verdict(c, &creation);
    check_nothing_left(descriptors);
    create_without();
    check_nothing_left(descriptors);
    if (unit_failures > before || verbose)
        printf("call %u of %s on rank %d, %s: %s %s\n", c->number, c->call, c->rank,
               mode_names[c->mode], smfar_status_name(creation.status[0]), creation.text[0]);
    fflush(stdout);
    return creation.status[0] == SMFAR_OK;
}

/* The quick sweep blocks only where drivers have been seen to. */
static int chosen(const struct sweep_case *c)
{
    if (all_calls) return 1;
    if (c->number > 1) return 0;
    if (c->mode == ONCE) return 1;
    if (c->mode == FOR_GOOD) return c->rank == 1;
    return c->rank == (c->mode == BLOCKED) && strstr(c->call, "cuMulticast");
}

static void sweep(int descriptors)
{
    int cases = 0, works = 0;
    struct sweep_case c;
    for (unsigned i = 0; (c.call = soft.call_name(i)) != NULL; i++)
        for (c.rank = 0; c.rank < RANKS; c.rank++)
            for (c.number = 1; c.number <= calls[c.rank][i]; c.number++)
                for (int mode = 0; mode < MODES; mode++) {
                    c.mode = (enum mode)mode;
                    if (!chosen(&c)) continue;
                    works += run_case(&c, descriptors);
                    cases++;
                }
    printf("%d cases: %d with a communicator in spite of the fault, %d with an error\n", cases,
           works, cases - works);
    EXPECT(works > 0 && works < cases, "the sweep touched nothing");
}

/* Counts what set-up calls, by faults that do nothing. */
static void record(void)
{
    struct creation creation = {.timeout_ms = PATIENT_MS};
    unsigned total[RANKS] = {0};
    for (unsigned i = 0; soft.call_name(i); i++) {
        REQUIRE(i < MOST_CALLS, "more functions than this test has room for");
        for (int r = 0; r < RANKS; r++) {
            char thread[16];
            name_thread(r, thread, sizeof thread);
            struct soft_fault nothing = {.call = soft.call_name(i), .thread = thread, .first = 1};
            EXPECT_EQ(soft.plan(&nothing), i * RANKS + (unsigned)r);
        }
    }
    create(&creation);
    for (int r = 0; r < RANKS; r++) {
        for (unsigned i = 0; soft.call_name(i); i++)
            total[r] += calls[r][i];
        EXPECT(creation.status[r] == SMFAR_OK && total[r] > 0, "%s", creation.text[r]);
    }
    blocked_ms = (int64_t)(1000 * BLOCKED_TIMES * creation.seconds[0]);
    if (blocked_ms < BLOCKED_MS) blocked_ms = BLOCKED_MS;
    printf("set-up makes %u, %u and %u driver calls\n", total[0], total[1], total[2]);
}

/* Giving up blocks too: whoever waits for that is told, and the others are not kept. */
static void blocked_while_giving_up(int descriptors)
{
    static const struct sweep_case fails = {"cuMemCreate", 1, 1, FOR_GOOD};
    static const struct sweep_case blocks = {"cuDevicePrimaryCtxRelease", 1, 1, BLOCKED};
    order(&fails);
    struct creation creation = create_with(&blocks);
    for (int r = 0; r < RANKS; r++) {
        EXPECT(creation.seconds[r] * 1000 < (double)blocked_ms, "%.3f s", creation.seconds[r]);
        EXPECT_HAS(creation.text[r], r == blocks.rank ? blocks.call : fails.call);
    }
    check_nothing_left(descriptors);
}

/* A rank's kernel comes to the trial of multicast when the others' have given up: they say so. */
static void late_in_the_trial(int descriptors)
{
    static const struct sweep_case fault = {"cuLaunchKernel", 1, 1, ONCE};
    struct creation creation = {.fault = &fault, .timeout_ms = 8 * LATE_MS};
    struct soft_fault late = {
        .call = fault.call, .thread = "rank1", .first = 1, .times = 1, .block_ms = 3 * LATE_MS};
    REQUIRE(soft.plan(&late) >= 0, "no fault");
    create(&creation);
    for (int r = 0; r < RANKS; r++) {
        EXPECT(creation.status[r] == SMFAR_OK, "%s", creation.text[r]);
        /* whichever of the two others missed it first */
        EXPECT_HAS(creation.text[r], "multicast off: trying multicast failed on rank");
        EXPECT_HAS(creation.text[r], ": the kernel of rank 1 was not there within");
        EXPECT_HAS(creation.text[r], ": the kernel of rank 1 was not there within");
    }
    check_nothing_left(descriptors);
}

int main(int argc, char **argv)
{
    struct driver *driver;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--all") == 0) all_calls = 1;
        if (strcmp(argv[i], "--verbose") == 0) verbose = 1;
    }
    setenv("SMFAR_SOFT_CC", "100", 1); /* on which set-up loads and tries most */
    REQUIRE(driver_open(SMFAR_DRIVER_SOFT, &driver) == SMFAR_OK, "%s", smfar_last_error());
    *(void **)&soft.plan = switch_symbol("soft_fault_plan");
    *(void **)&soft.matches = switch_symbol("soft_fault_matches");
    *(void **)&soft.clear = switch_symbol("soft_faults_clear");
    *(void **)&soft.call_name = switch_symbol("soft_call_name");
    *(void **)&soft.leaks = switch_symbol("soft_leaks");
    if (!verbose) REQUIRE(freopen("/dev/null", "w", stderr), "no /dev/null"); /* the warnings */
    int descriptors = switch_open_descriptors();
    record();
    sweep(descriptors);
    blocked_while_giving_up(descriptors);
    late_in_the_trial(descriptors);
    driver_close(driver);
    return unit_end();
}
