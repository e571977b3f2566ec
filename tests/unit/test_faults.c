/* Faults that users of such systems have reported, one test per row of docs/faults.md that no
 * other test covers; the number in a name is the row's. */
#include <dirent.h>
#include <unistd.h>

#include "../../csrc/base/clock.h"
#include "../../csrc/bootstrap/host.h"
#include "../../csrc/comm/comm.h"
#include "ranks.h"
#include "switch.h"

enum { MOST = 6000, TIMEOUT_MS = 60000, CHUNK_BYTES = 16384 };

static float memory[SMFAR_MAX_RANKS][MOST];

/* What a group is to be. */
struct group {
    const int *devices;    /* of each rank; NULL: one each */
    const int *budgets;    /* of each rank; NULL: none */
    struct smfar_id id[4]; /* one for each communicator of a test */
};

static smfar_comm *join(struct ranks_thread *me, int index)
{
    const struct group *group = me->extra;
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = group->devices ? group->devices[me->rank] : -1,
                                  .sm_budget = group->budgets ? group->budgets[me->rank] : 0,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 4 << 20,
                                  .chunk_bytes = CHUNK_BYTES};
    smfar_comm *comm = NULL;
    must(smfar_comm_init_rank(&group->id[index], me->rank, me->ranks, &config, &comm));
    return comm;
}

static void run(int ranks, void (*body)(struct ranks_thread *), struct group group)
{
    for (int i = 0; i < 4; i++)
        must(smfar_unique_id(&group.id[i]));
    ranks_run(ranks, body, &group);
}

static enum smfar_status wait_last(smfar_comm *comm)
{
    return smfar_comm_wait(comm, smfar_comm_sequence(comm), -1);
}

static void sum(struct ranks_thread *me, smfar_comm *comm, float *data, size_t count)
{
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(me->rank + (int)(i % 100));
    must(smfar_all_reduce(data, data, count, SMFAR_F32, SMFAR_SUM, comm, NULL));
    must(wait_last(comm));
    int ranks = me->ranks, wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += data[i] != (float)(ranks * (ranks - 1) / 2 + ranks * (int)(i % 100));
    EXPECT(wrong == 0, "rank %d of %d: %d of %zu are wrong", me->rank, ranks, wrong, count);
}

static void sum_once(struct ranks_thread *me)
{
    smfar_comm *comm = join(me, 0);
    sum(me, comm, memory[me->rank], 1000);
    smfar_comm_destroy(comm);
}

/* Groups on the same devices share one multicast object. */
static void share_an_object(struct ranks_thread *me)
{
    smfar_comm *comm[4];
    char text[4096];
    for (int i = 0; i < 4; i++)
        comm[i] = join(me, i);
    for (int i = 0; i < 4; i++)
        sum(me, comm[i], memory[me->rank], 500);
    must(smfar_comm_describe(comm[0], text, sizeof text));
    /* three handles of one object: the ranks are threads of this process */
    EXPECT_HAS(text, "multicast objects in this process: 3, serving 12 windows");
    sum(me, comm[0], memory[me->rank], 5); /* nobody leaves before all have read */
    for (int i = 0; i < 4; i++)
        smfar_comm_destroy(comm[i]);
}

static void test_r05_groups_on_the_same_devices_share_a_multicast_object(void)
{
    uint64_t before = switch_calls("cuMulticastCreate");
    run(3, share_an_object, (struct group){0});
    EXPECT_EQ(switch_calls("cuMulticastCreate") - before, 1);
}

static void test_r09_any_devices_in_any_order(void)
{
    static const int orders[][3] = {{2, 5, 7}, {7, 0, 3}, {1, 6, 4}};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        struct group group = {.devices = orders[i]};
        run(3, sum_once, group);
        run(2, sum_once, group);
    }
}

static void test_r11_containers_of_one_host_are_told_apart(void)
{
    struct host_identity mine, other;
    host_identify(&mine);
    other = mine;
    EXPECT(host_same(&mine, &other), "a host is not itself");
    other.network_namespace++;
    EXPECT(!host_same(&mine, &other), "two network namespaces are taken for one");
    other = mine;
    other.boot_id[0] ^= 1;
    EXPECT(!host_same(&mine, &other), "two kernels are taken for one");
    other = mine;
    other.name[0] ^= 1;
    EXPECT(host_same(&mine, &other), "the name decides");
}

/* Two groups of three out of six devices, at once, and all six by turns. */
static void halves(struct ranks_thread *me)
{
    static const int devices[2][3] = {{0, 1, 2}, {3, 4, 5}};
    smfar_comm *all = join(me, 0);
    int half = me->rank / 3;
    struct group group = *(struct group *)me->extra;
    group.devices = devices[half];
    struct ranks_thread mine = {NULL, me->rank % 3, 3, &group, NULL};
    smfar_comm *comm = join(&mine, 1 + half);
    for (int i = 0; i < 5; i++) {
        sum(&mine, comm, memory[me->rank], 700);
        sum(me, all, memory[me->rank], 300);
    }
    smfar_comm_destroy(comm);
    smfar_comm_destroy(all);
}

static void test_r16_groups_that_are_not_the_whole_node(void) { run(6, halves, (struct group){0}); }

static const char *const allocating[] = {
    "cuMemCreate",       "cuMemAddressReserve",        "cuMemMap",
    "cuMemHostRegister", "cuModuleLoadDataEx",         "cuModuleGetFunction",
    "cuMulticastCreate", "cuStreamCreateWithPriority", "cuMemImportFromShareableHandle"};
enum { ALLOCATING = sizeof allocating / sizeof *allocating };

static void use_without_allocating(struct ranks_thread *me)
{
    uint64_t before[ALLOCATING];
    void *parts[SMFAR_MAX_RANKS];
    float *data = memory[me->rank];
    smfar_comm *comm = join(me, 0);
    must(smfar_barrier(comm, NULL)); /* every rank is set up */
    must(wait_last(comm));
    for (int i = 0; i < ALLOCATING; i++)
        before[i] = switch_calls(allocating[i]);
    sum(me, comm, data, 1000);
    must(smfar_broadcast(data, data, 100, SMFAR_F32, 0, comm, NULL));
    for (int r = 0; r < me->ranks; r++)
        parts[r] = data + 100 + 100 * r;
    must(smfar_all_gather(data, parts, 100, SMFAR_F32, comm, NULL));
    must(smfar_barrier(comm, NULL));
    must(wait_last(comm));
    for (int i = 0; i < ALLOCATING; i++)
        EXPECT(switch_calls(allocating[i]) == before[i], "%s was called", allocating[i]);
    must(smfar_barrier(comm, NULL)); /* every rank has counted */
    must(wait_last(comm));
    smfar_comm_destroy(comm);
}

static void test_r17_collectives_allocate_and_load_nothing(void)
{
    run(3, use_without_allocating, (struct group){0});
}

/* Each rank frees in its own order, at its own time, between collectives. */
static void free_in_any_order(struct ranks_thread *me)
{
    enum { RANGES = 12 };
    void *range[RANGES];
    smfar_comm *comm = join(me, 0);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < RANGES; i++)
            must(smfar_window_alloc(comm, 200000, &range[i]));
        for (int i = 0; i < RANGES; i++) {
            int at = (i * 5 + me->rank * 7 + round) % RANGES;
            smfar_window_free(comm, range[at]);
            if (i % 4 == me->rank % 4) usleep(100);
            if (i % 6 == 5) sum(me, comm, memory[me->rank], 10);
        }
    }
    smfar_comm_destroy(comm);
}

static void test_r18_freeing_is_local_and_in_any_order(void)
{
    run(3, free_in_any_order, (struct group){0});
}

/* Tensors inside one allocation, overlapping, at every place of it, again and again. */
static void use_interiors(struct ranks_thread *me)
{
    void *range;
    char text[1024];
    smfar_comm *comm = join(me, 0);
    must(smfar_window_alloc(comm, MOST * sizeof(float), &range));
    float *data = range;
    must(smfar_hint_set(&(struct smfar_hint){.algorithm = "twoshot_mc"}));
    for (int i = 0; i < 60; i++)
        sum(me, comm, data + i * 37 % 1000, (size_t)(i * 83 % 4000));
    must(smfar_explain(comm, data + MOST - 10, 10, SMFAR_F32, SMFAR_SUM, text, sizeof text));
    EXPECT_HAS(text, "lies in the window");
    must(smfar_explain(comm, data + MOST - 10, 200, SMFAR_F32, SMFAR_SUM, text, sizeof text));
    EXPECT_HAS(text, "lies outside the window"); /* it runs past what was allocated */
    smfar_comm_destroy(comm);
}

static void test_r20_parts_of_one_allocation(void) { run(3, use_interiors, (struct group){0}); }

/* ---- what a group holds ---- */

static int open_descriptors(void)
{
    int open = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        open++;
    closedir(folder);
    return open - 3; /* ".", ".." and the folder itself */
}

static int held_by_the_switch(void)
{
    void (*read_leaks)(struct soft_leaks *);
    struct soft_leaks leaks = {0};
    *(void **)&read_leaks = switch_symbol("soft_leaks");
    read_leaks(&leaks);
    return (int)leaks.descriptors;
}

static int descriptors_before; /* the first group */

/* Threads of the switch that are ending let go of theirs when they get to it. */
static void expect_descriptors(int more)
{
    int held = -1;
    for (int i = 0; i < 10000 && held != more; i++) {
        if (i) usleep(1000);
        held = open_descriptors() - held_by_the_switch() - descriptors_before;
    }
    EXPECT_EQ(held, more);
}

static pthread_barrier_t pause_for_counting;

/* All ranks are threads of this process, so that the process holds what all ranks hold. */
static void count_what_groups_hold(struct ranks_thread *me)
{
    smfar_comm *comm[3];
    char text[4096];
    for (int i = 0; i < 3; i++) {
        pthread_barrier_wait(&pause_for_counting);
        comm[i] = join(me, i);
        pthread_barrier_wait(&pause_for_counting);
        if (me->rank == 0) /* rank 0 and each other rank hold an end of one connection */
            expect_descriptors((i + 1) * 2 * (me->ranks - 1));
    }
    must(smfar_comm_describe(comm[0], text, sizeof text));
    char expected[200];
    snprintf(expected, sizeof expected,
             "holds %d bytes of device memory, %zu bytes of host memory shared by the group, %d "
             "sockets",
             4 << 20, page_bytes(me->ranks), me->rank == 0 ? me->ranks - 1 : 1);
    EXPECT_HAS(text, expected);
    EXPECT(page_bytes(me->ranks) <= 128 << 10, "the host page takes %zu bytes",
           page_bytes(me->ranks));
    pthread_barrier_wait(&pause_for_counting);
    for (int i = 0; i < 3; i++)
        smfar_comm_destroy(comm[i]);
}

static void test_r23_what_a_group_holds_is_what_the_docs_say(void)
{
    pthread_barrier_init(&pause_for_counting, NULL, 3);
    run(3, count_what_groups_hold, (struct group){0});
}

/* ---- order, shapes, limits ---- */

static _Atomic int late;

/* Rank 0 calls group a before b, rank 1 b before a, on one stream: that cannot end well, but it
 * ends. Once one has given up, the other may get through. */
static void opposite_orders(struct ranks_thread *me)
{
    smfar_comm *a = join(me, 0), *b = join(me, 1);
    CUstream stream = a->stream;
    smfar_comm_set_timeout(a, 2000); /* within which each rank calls both */
    smfar_comm_set_timeout(b, 2000);
    int64_t begin = clock_now_ms();
    for (int i = 0; i < 2; i++)
        must(smfar_barrier(i == me->rank ? a : b, stream));
    late += wait_last(a) == SMFAR_ERR_TIMEOUT;
    late += wait_last(b) == SMFAR_ERR_TIMEOUT;
    EXPECT(clock_now_ms() - begin < TIMEOUT_MS / 2, "after %lld ms",
           (long long)(clock_now_ms() - begin));
    smfar_comm_destroy(b); /* it used the other's stream */
    smfar_comm_destroy(a);
}

static void test_r30_opposite_orders_end_at_the_deadline(void)
{
    run(2, opposite_orders, (struct group){0});
    EXPECT(late > 0, "nobody gave up");
}

static void test_r31_ranks_with_different_budgets(void)
{
    static const int budgets[] = {4, 0, 1, 2};
    struct group group = {.budgets = budgets};
    run(4, sum_once, group);
}

static void copy_first(struct ranks_thread *me)
{
    smfar_comm *comm = join(me, 0);
    float *data = memory[me->rank];
    data[0] = (float)me->rank;
    must(smfar_broadcast(data, data, 1, SMFAR_F32, 1, comm, NULL));
    must(wait_last(comm));
    EXPECT_EQ(data[0], 1);
    smfar_comm_destroy(comm);
}

static void test_r33_the_first_call_is_a_copy(void)
{
    for (int i = 0; i < 10; i++)
        run(2, copy_first, (struct group){0});
}

static void test_r35_ranks_share_one_gpu(void)
{
    static const int same[] = {3, 3, 3, 3};
    struct group group = {.devices = same};
    run(4, sum_once, group);
}

static void sizes(struct ranks_thread *me)
{
    smfar_comm *comm = join(me, 0);
    size_t chunk = CHUNK_BYTES / sizeof(float);
    for (size_t count = chunk - 2; count <= chunk + 2; count++)
        sum(me, comm, memory[me->rank], count);
    smfar_comm_destroy(comm);
}

static void test_r39_sizes_around_a_step(void) { run(3, sizes, (struct group){0}); }

static void unequal_sizes(struct ranks_thread *me)
{
    smfar_comm *comm = join(me, 0);
    float *data = memory[me->rank];
    size_t count = me->rank == me->ranks - 1 ? 999 : 1000;
    enum smfar_status status =
        smfar_all_reduce(data, data, count, SMFAR_F32, SMFAR_SUM, comm, NULL);
    if (status == SMFAR_OK) status = wait_last(comm);
    EXPECT_EQ(status, SMFAR_ERR_MISMATCH);
    smfar_comm_destroy(comm);
}

static void test_r41_unequal_sizes_at_every_group_size(void)
{
    for (int ranks = 2; ranks <= 8; ranks++)
        run(ranks, unequal_sizes, (struct group){0});
}

int main(void)
{
    struct driver *driver;
    must(driver_open(SMFAR_DRIVER_SOFT, &driver));
    descriptors_before = open_descriptors() - held_by_the_switch();
    test_r05_groups_on_the_same_devices_share_a_multicast_object();
    test_r09_any_devices_in_any_order();
    test_r11_containers_of_one_host_are_told_apart();
    test_r16_groups_that_are_not_the_whole_node();
    test_r17_collectives_allocate_and_load_nothing();
    test_r18_freeing_is_local_and_in_any_order();
    test_r20_parts_of_one_allocation();
    test_r23_what_a_group_holds_is_what_the_docs_say();
    test_r30_opposite_orders_end_at_the_deadline();
    test_r31_ranks_with_different_budgets();
    test_r33_the_first_call_is_a_copy();
    test_r35_ranks_share_one_gpu();
    test_r39_sizes_around_a_step();
    test_r41_unequal_sizes_at_every_group_size();
    driver_close(driver);
    switch_expect_no_leaks();
    return unit_end();
}
