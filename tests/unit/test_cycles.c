/* Communicators come and go: many times one after the other where few descriptors may be open, 64
 * overlapping groups, and several that are made at once. Descriptors, mappings and memory are as
 * before.
 *
 *   test_cycles [CYCLES] (100) */
#define _GNU_SOURCE
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../../csrc/driver/driver.h"
#include "../../csrc/memory/multicast.h"
#include "ranks.h"
#include "switch.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum {
    CYCLES = 100,
    CYCLE_RANKS = 2,
    DESCRIPTORS = 64,
    GROUPS = 64,
    GROUP_RANKS = 2,
    AT_ONCE = 6,
    COUNT = 257,
    TIMEOUT_MS = 60000,
    STACK_BYTES = 256 << 10,
    SLACK_KIB = 16 << 10,      /* what the allocator of the C library may keep */
    SPACE_SLACK_KIB = 80 << 10 /* and stacks: 40 MiB of ended threads, and of the switch's detached
                                * ones, which may still be ending, 128 of 256 KiB */
};

/* ---- what the process holds ---- */

/* A line of /proc/self/status, in KiB. */
static long memory(const char *field)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    long value = -1;
    REQUIRE(file != NULL, "no /proc/self/status");
    while (fgets(line, sizeof line, file))
        if (strncmp(line, field, strlen(field)) == 0) value = atol(line + strlen(field));
    fclose(file);
    REQUIRE(value >= 0, "no %s", field);
    return value;
}

struct holdings {
    int descriptors;
    long resident, space; /* KiB */
};

static struct holdings take_stock(void)
{
    malloc_trim(0);
    return (struct holdings){switch_open_descriptors(), memory("VmRSS:"), memory("VmSize:")};
}

/* An emulator's own memory is counted too, and a sanitizer keeps what was freed. */
static int memory_counts(void) { return !SANITIZED && !getenv("SMFAR_TEST_EMULATED"); }

static int is_as_before(const struct holdings *after, const struct holdings *before)
{
    if (after->descriptors > before->descriptors) return 0;
    return !memory_counts() || (after->resident < before->resident + SLACK_KIB &&
                                after->space < before->space + SPACE_SLACK_KIB);
}

static void expect_as_before(const struct holdings *before)
{
    struct holdings after = take_stock();
    /* the switch's threads end, and let go of their streams, when they get to it */
    for (int i = 0; i < 10000 && !is_as_before(&after, before); i++) {
        usleep(1000);
        after = take_stock();
    }
    EXPECT(after.descriptors <= before->descriptors, "%d descriptors, %d before", after.descriptors,
           before->descriptors);
    switch_expect_no_leaks();
    if (!memory_counts()) return;
    EXPECT(after.resident < before->resident + SLACK_KIB, "%ld KiB resident, %ld before",
           after.resident, before->resident);
    EXPECT(after.space < before->space + SPACE_SLACK_KIB, "%ld KiB of addresses, %ld before",
           after.space, before->space);
}

/* ---- one group ---- */

static smfar_comm *join(struct ranks_thread *me)
{
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 1 << 20};
    smfar_comm *comm = NULL;
    enum smfar_status status = smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm);
    REQUIRE(status == SMFAR_OK, "%s", smfar_last_error());
    return comm;
}

static void sum(struct ranks_thread *me, smfar_comm *comm, int salt)
{
    int32_t data[COUNT], wrong = 0;
    for (int i = 0; i < COUNT; i++)
        data[i] = i + me->rank * salt;
    enum smfar_status status =
        smfar_all_reduce(data, data, COUNT, SMFAR_I32, SMFAR_SUM, comm, NULL);
    if (status == SMFAR_OK) status = smfar_comm_wait(comm, smfar_comm_sequence(comm), -1);
    REQUIRE(status == SMFAR_OK, "%s", smfar_last_error());
    for (int i = 0; i < COUNT; i++)
        wrong += data[i] != me->ranks * i + salt * me->ranks * (me->ranks - 1) / 2;
    EXPECT(wrong == 0, "rank %d: %d of %d are wrong", me->rank, wrong, COUNT);
}

static void one_cycle(struct ranks_thread *me)
{
    smfar_comm *comm = join(me);
    sum(me, comm, *(int *)me->extra);
    smfar_comm_destroy(comm);
}

/* ---- the two tests ---- */

static void run_cycles(int cycles)
{
    for (int cycle = 0; cycle < cycles; cycle++)
        ranks_run(CYCLE_RANKS, one_cycle, &cycle);
}

static void check_cycles(int cycles)
{
    struct rlimit old, few;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &old) == 0, "no limit");
    few = old;
    few.rlim_cur = DESCRIPTORS;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0, "the limit cannot be set");
    run_cycles(10);
    struct holdings before = take_stock();
    run_cycles(cycles);
    expect_as_before(&before);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &old) == 0, "the limit cannot be set back");
}

/* The ranks' store with keys of its own for each group. */
struct group_store {
    const struct smfar_store *all;
    int group;
};

static enum smfar_status group_set(void *context, const char *key, const void *value, size_t bytes)
{
    const struct group_store *store = context;
    char full[64];
    snprintf(full, sizeof full, "%d/%s", store->group, key);
    return store->all->set(store->all->context, full, value, bytes);
}

static enum smfar_status group_get(void *context, const char *key, void *value, size_t bytes,
                                   int64_t timeout_ms)
{
    const struct group_store *store = context;
    char full[64];
    snprintf(full, sizeof full, "%d/%s", store->group, key);
    return store->all->get(store->all->context, full, value, bytes, timeout_ms);
}

/* All groups are alive at once and at work; they end in another order than they came. */
static void overlap(struct ranks_thread *me)
{
    smfar_comm *comms[GROUPS];
    for (int group = 0; group < GROUPS; group++) {
        struct group_store context = {me->store, group};
        struct smfar_store store = {&context, group_set, group_get};
        struct ranks_thread here = *me;
        here.store = &store;
        comms[group] = join(&here);
    }
    for (int group = GROUPS - 1; group >= 0; group--)
        sum(me, comms[group], group);
    if (me->rank == 0) { /* one object per rank serves them all */
        int objects, windows;
        multicast_count(&objects, &windows);
        EXPECT_EQ(objects, GROUP_RANKS);
        EXPECT_EQ(windows, GROUP_RANKS * GROUPS);
    }
    sum(me, comms[0], 1); /* nobody leaves before rank 0 has counted */
    for (int i = 0; i < GROUPS; i++)
        smfar_comm_destroy(comms[(i * 37 + 11) % GROUPS]);
}

static void check_overlap(void)
{
    struct rlimit limit;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0, "no limit");
    limit.rlim_cur = limit.rlim_max;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0, "the limit cannot be raised");
    ranks_run(GROUP_RANKS, overlap, NULL);
    struct holdings before = take_stock();
    ranks_run(GROUP_RANKS, overlap, NULL);
    expect_as_before(&before);
}

/* Groups of the same ranks that are made at once, each by a thread of its own on every rank: they
 * share the object of a group that is there, and nobody's slots. */
struct creator {
    struct ranks_thread rank;
    struct group_store store;
    pthread_t thread;
};

static void *create_and_sum(void *argument)
{
    struct creator *me = argument;
    struct smfar_store store = {&me->store, group_set, group_get};
    me->rank.store = &store;
    smfar_comm *comm = join(&me->rank);
    sum(&me->rank, comm, me->store.group);
    for (int i = 0; i < 20; i++)
        sum(&me->rank, comm, i);
    char text[4096];
    EXPECT_EQ(smfar_comm_describe(comm, text, sizeof text), SMFAR_OK);
    EXPECT_HAS(text, "multicast on");
    smfar_comm_destroy(comm);
    return NULL;
}

static void at_once(struct ranks_thread *me)
{
    struct creator creator[AT_ONCE];
    smfar_comm *first = join(me);
    for (int i = 0; i < AT_ONCE; i++) {
        creator[i] = (struct creator){*me, {me->store, 1 + i}, 0};
        REQUIRE(pthread_create(&creator[i].thread, NULL, create_and_sum, &creator[i]) == 0,
                "no thread");
    }
    for (int i = 0; i < AT_ONCE; i++)
        pthread_join(creator[i].thread, NULL);
    sum(me, first, 1);
    smfar_comm_destroy(first);
}

static void check_at_once(int times)
{
    ranks_run(GROUP_RANKS, at_once, NULL);
    struct holdings before = take_stock();
    for (int i = 0; i < times; i++)
        ranks_run(GROUP_RANKS, at_once, NULL);
    expect_as_before(&before);
    int objects, windows;
    multicast_count(&objects, &windows);
    EXPECT_EQ(objects, 0);
    EXPECT_EQ(windows, 0);
}

/* Few addresses a thread: else each may reserve 64 MiB for its memory and 8 for its stack, and
 * how many of those the C library keeps depends on when threads end. */
static void make_threads_small(void)
{
    pthread_attr_t attributes;
    mallopt(M_ARENA_MAX, 1);
    if (SANITIZED) return;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    REQUIRE(pthread_setattr_default_np(&attributes) == 0, "no stacks of %d bytes", STACK_BYTES);
    pthread_attr_destroy(&attributes);
}

int main(int argc, char **argv)
{
    int cycles = argc > 1 ? atoi(argv[1]) : CYCLES;
    struct driver *driver;
    make_threads_small();
    REQUIRE(driver_open(SMFAR_DRIVER_SOFT, &driver) == SMFAR_OK, "%s", smfar_last_error());
    check_cycles(cycles);
    check_overlap();
    check_at_once(cycles / 20);
    driver_close(driver);
    return unit_end();
}
