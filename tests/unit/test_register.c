/* A window that grows, and memory of other allocators in it: collectives on what was added are
 * right, to the bit and in place, and stage nothing; what cannot be added is refused on every rank
 * with a sentence; and all of it is given back. Ranks are threads on the software switch, with
 * multicast and without. */
#define _GNU_SOURCE /* pthread_setname_np */
#include "../../csrc/comm/comm.h"
#include "../../csrc/memory/registered.h"
#include "../../csrc/soft/soft.h"
#include "ranks.h"
#include "switch.h"

enum {
    RANKS = 4,
    PAGE = 2 << 20, /* of the driver's allocations */
    PAGES = 3,
    COUNT = 30001, /* of i32: from one allocation into the next */
    TIMEOUT_MS = 60000,
    WINDOW = 4 << 20
};

struct group {
    int no_multicast;
};

struct seat {
    smfar_comm *comm;
    struct driver *driver;
    int rank;
    CUdeviceptr base; /* PAGES allocations, one behind the other, but for their order */
    CUmemGenericAllocationHandle handle[PAGES];
    int32_t *data; /* COUNT of them, somewhere in there */
};

static void cu(CUresult result) { REQUIRE(result == CUDA_SUCCESS, "the driver says %d", result); }

/* ---- memory that another allocator has made ---- */

/* One of the allocations. */
static void map_page(struct seat *seat, int i, int shareable)
{
    struct driver *driver = seat->driver;
    CUdeviceptr at = seat->base + (CUdeviceptr)i * PAGE;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, seat->comm->device}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, seat->comm->device},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (shareable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    cu(driver->cuMemCreate(&seat->handle[i], PAGE, &prop, 0));
    cu(driver->cuMemMap(at, PAGE, 0, seat->handle[i], 0));
    cu(driver->cuMemSetAccess(at, PAGE, &access, 1));
}

/* By other memory at the same addresses. */
static void replace(struct seat *seat, int i)
{
    cu(seat->driver->cuMemUnmap(seat->base + (CUdeviceptr)i * PAGE, PAGE));
    cu(seat->driver->cuMemRelease(seat->handle[i]));
    map_page(seat, i, 1);
}

static void allocate(struct seat *seat, int shareable)
{
    cu(seat->driver->cuMemAddressReserve(&seat->base, PAGES * PAGE, 0, 0, 0));
    for (int i = 0; i < PAGES; i++)
        map_page(seat, i, shareable);
    /* ranks begin at unequal places, in different allocations */
    CUdeviceptr seam = seat->base + PAGE + (CUdeviceptr)(seat->rank % 2) * PAGE;
    seat->data = (int32_t *)(uintptr_t)(seam - 4096 * (CUdeviceptr)(seat->rank + 1));
}

static void release(struct seat *seat)
{
    struct driver *driver = seat->driver;
    cu(driver->cuMemUnmap(seat->base, PAGES * PAGE));
    for (int i = 0; i < PAGES; i++)
        cu(driver->cuMemRelease(seat->handle[i]));
    cu(driver->cuMemAddressFree(seat->base, PAGES * PAGE));
}

/* ---- collectives ---- */

static int32_t value_of(int rank, size_t i) { return (int32_t)(i % 1000) + 1000 * rank; }

static uint64_t staged(struct seat *seat)
{
    struct smfar_path path;
    uint64_t bytes = 0;
    for (int i = 0; smfar_comm_path(seat->comm, i, &path) == SMFAR_OK; i++)
        bytes += path.staged_bytes;
    return bytes;
}

static void fill(struct seat *seat, int32_t *data)
{
    for (size_t i = 0; i < COUNT; i++)
        data[i] = value_of(seat->rank, i);
    data[-1] = data[COUNT] = 12345;
}

static void expect_sums(struct seat *seat, const int32_t *data, const char *what)
{
    size_t wrong = 0;
    for (size_t i = 0; i < COUNT; i++)
        wrong += data[i] != RANKS * (int32_t)(i % 1000) + 1000 * (RANKS * (RANKS - 1) / 2);
    EXPECT(wrong == 0, "%s: %zu wrong on rank %d", what, wrong, seat->rank);
    EXPECT(data[-1] == 12345 && data[COUNT] == 12345, "%s: written beside", what);
}

static void wait_last(struct seat *seat)
{
    must(smfar_comm_wait(seat->comm, smfar_comm_sequence(seat->comm), TIMEOUT_MS));
}

static void sum(struct seat *seat, int32_t *data, const char *algorithm)
{
    must(smfar_hint_set(&(struct smfar_hint){.algorithm = algorithm}));
    fill(seat, data);
    must(smfar_all_reduce(data, data, COUNT, SMFAR_I32, SMFAR_SUM, seat->comm, NULL));
    wait_last(seat);
    expect_sums(seat, data, algorithm ? algorithm : "all_reduce");
    must(smfar_hint_set(NULL));
}

/* In place, every rank's at its own place: bytes that are staged are counted. */
static void gather(struct seat *seat, int32_t *data)
{
    enum { PART = COUNT / RANKS };
    must(smfar_hint_set(&(struct smfar_hint){.sm_budget = SMFAR_NO_SMS}));
    for (size_t i = 0; i < PART; i++)
        data[(size_t)seat->rank * PART + i] = value_of(seat->rank, i);
    must(smfar_all_gather_into(data + seat->rank * PART, data, PART, SMFAR_I32, seat->comm, NULL));
    wait_last(seat);
    size_t wrong = 0;
    for (size_t i = 0; i < (size_t)PART * RANKS; i++)
        wrong += data[i] != value_of((int)(i / PART), i % PART);
    EXPECT(wrong == 0, "all_gather: %zu wrong on rank %d", wrong, seat->rank);
    must(smfar_hint_set(NULL));
}

static void run_all(struct seat *seat, int32_t *data)
{
    static const char *const algorithms[] = {NULL, "twoshot_mc", "twoshot_peer", "split_peer",
                                             "split_mc"};
    uint64_t before = staged(seat);
    for (int i = 0; i < 5; i++)
        sum(seat, data, algorithms[i]);
    gather(seat, data);
    EXPECT_EQ(staged(seat), before);
}

/* ---- the tests ---- */

static void sit_down(struct ranks_thread *me, struct seat *seat)
{
    const struct group *group = me->extra;
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = me->rank,
                                  .timeout_ms = TIMEOUT_MS,
                                  .no_multicast = group->no_multicast,
                                  .window_bytes = WINDOW};
    memset(seat, 0, sizeof *seat);
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &seat->comm));
    seat->rank = me->rank;
    seat->driver = seat->comm->driver;
    cu(seat->driver->cuCtxPushCurrent(seat->comm->context));
}

static void stand_up(struct seat *seat)
{
    CUcontext context;
    cu(seat->driver->cuCtxPopCurrent(&context));
    smfar_comm_destroy(seat->comm);
}

static void register_memory(struct ranks_thread *me)
{
    struct seat seat;
    uint64_t id = 77;
    char text[4096];
    sit_down(me, &seat);
    allocate(&seat, 1);
    must(smfar_window_register(seat.comm, seat.data - 1, 4 * (COUNT + 2), &id));
    EXPECT_EQ(id, 1);
    must(smfar_comm_describe(seat.comm, text, sizeof text));
    EXPECT_HAS(text, "4194304 bytes of other memory are registered");
    run_all(&seat, seat.data);
    must(smfar_window_deregister(seat.comm, id));
    uint64_t before = staged(&seat);
    sum(&seat, seat.data, "twoshot_peer");
    EXPECT_EQ(staged(&seat) - before, 4 * COUNT);
    EXPECT_EQ(smfar_window_deregister(seat.comm, id), SMFAR_ERR_ARGUMENT);
    EXPECT_HAS(smfar_last_error(), "nothing is registered as number 1");
    /* what is left when the communicator ends is given back with it */
    must(smfar_window_register(seat.comm, seat.data, 4 * COUNT, &id));
    EXPECT_EQ(id, 2);
    sum(&seat, seat.data, NULL);
    CUdevice device = seat.comm->device;
    CUcontext context;
    cu(seat.driver->cuDevicePrimaryCtxRetain(&context, device));
    stand_up(&seat);
    cu(seat.driver->cuCtxPushCurrent(context));
    release(&seat);
    cu(seat.driver->cuCtxPopCurrent(&context));
    cu(seat.driver->cuDevicePrimaryCtxRelease(device));
}

static size_t registered_now(struct seat *seat) { return registered_bytes(seat->comm->window); }

/* What lies in registered memory is not mapped again, and keeps it: each registration lives until
 * its own end, in whatever order they end. */
static void register_again(struct ranks_thread *me)
{
    struct seat seat, other;
    uint64_t outer, inner, mixed;
    sit_down(me, &seat);
    other = seat;
    allocate(&seat, 1);
    allocate(&other, 1);
    for (int first = 0; first < 2; first++) {
        must(smfar_window_register(seat.comm, seat.data - 1, 4 * (COUNT + 2), &outer));
        size_t bytes = registered_now(&seat);
        must(smfar_window_register(seat.comm, seat.data + 5, 4 * (COUNT - 10), &inner));
        EXPECT_EQ(inner, outer + 1);
        EXPECT_EQ(registered_now(&seat), bytes);
        must(smfar_window_deregister(seat.comm, first ? inner : outer));
        EXPECT_EQ(smfar_window_deregister(seat.comm, first ? inner : outer), SMFAR_ERR_ARGUMENT);
        run_all(&seat, seat.data);
        must(smfar_window_deregister(seat.comm, first ? outer : inner));
        EXPECT_EQ(registered_now(&seat), 0);
    }
    /* some ranks' memory is registered, others' is not: it stays on all, with that which is new */
    must(smfar_window_register(seat.comm, seat.data - 1, 4 * (COUNT + 2), &outer));
    int32_t *data = me->rank < 2 ? seat.data : other.data;
    must(smfar_window_register(seat.comm, data - 1, 4 * (COUNT + 2), &mixed));
    size_t both = registered_now(&seat);
    must(smfar_window_deregister(seat.comm, outer));
    EXPECT_EQ(registered_now(&seat), both);
    run_all(&seat, data);
    must(smfar_window_deregister(seat.comm, mixed));
    EXPECT_EQ(registered_now(&seat), 0);
    release(&other);
    release(&seat);
    stand_up(&seat);
}

/* Once the outer of two has ended, its owner may free what the inner has no part of, and have other
 * memory at the same addresses. */
static void free_outer(struct ranks_thread *me)
{
    struct seat seat;
    uint64_t outer, inner;
    sit_down(me, &seat);
    allocate(&seat, 1);
    void *base = (void *)(uintptr_t)seat.base;
    must(smfar_window_register(seat.comm, base, PAGES * PAGE, &outer));
    must(smfar_window_register(seat.comm, base, PAGE, &inner));
    must(smfar_window_deregister(seat.comm, outer));
    for (int i = 1; i < PAGES; i++)
        replace(&seat, i);
    sum(&seat, (int32_t *)(uintptr_t)(seat.base + 2 * PAGE) - COUNT / 2, "twoshot_peer");
    uint64_t before = staged(&seat);
    sum(&seat, (int32_t *)(uintptr_t)(seat.base + 4096), "twoshot_peer");
    EXPECT_EQ(staged(&seat), before);
    must(smfar_window_register(seat.comm, seat.data - 1, 4 * (COUNT + 2), &outer));
    run_all(&seat, seat.data);
    must(smfar_window_deregister(seat.comm, inner));
    run_all(&seat, seat.data);
    must(smfar_window_deregister(seat.comm, outer));
    EXPECT_EQ(registered_now(&seat), 0);
    EXPECT_EQ(seat.comm->window->room.count, 0); /* addresses have come back, too */
    release(&seat);
    stand_up(&seat);
}

/* One rank has its tensor in the window; the others register theirs. */
static void register_some(struct ranks_thread *me)
{
    struct seat seat;
    uint64_t id;
    void *inside;
    sit_down(me, &seat);
    allocate(&seat, 1);
    must(smfar_window_reserve(seat.comm, 4 * (COUNT + 256)));
    must(smfar_window_alloc(seat.comm, 4 * (COUNT + 256), &inside));
    int32_t *data = me->rank == 1 ? (int32_t *)inside + 128 : seat.data;
    must(smfar_window_register(seat.comm, data - 1, 4 * (COUNT + 2), &id));
    EXPECT_EQ(id, 1);
    run_all(&seat, data);
    must(smfar_window_register(seat.comm, inside, 4 * COUNT, &id));
    EXPECT_EQ(id, 0);
    must(smfar_window_register(seat.comm, data, 4 * COUNT, &id));
    EXPECT_EQ(id, 2);
    must(smfar_window_deregister(seat.comm, 2));
    must(smfar_window_deregister(seat.comm, 0));
    must(smfar_window_deregister(seat.comm, 1));
    release(&seat);
    stand_up(&seat);
}

static void refuse(struct ranks_thread *me)
{
    struct seat seat;
    uint64_t id = 77;
    CUdeviceptr plain = 0;
    void *inside;
    sit_down(me, &seat);
    struct driver *driver = seat.driver;
    allocate(&seat, me->rank != 2);
    EXPECT_EQ(smfar_window_register(seat.comm, seat.data, 4 * COUNT, &id), SMFAR_ERR_UNSUPPORTED);
    EXPECT_HAS(smfar_last_error(), "rank 2");
    EXPECT_HAS(smfar_last_error(), "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
    cu(driver->cuMemAlloc(&plain, PAGE));
    EXPECT_EQ(smfar_window_register(seat.comm, (void *)(uintptr_t)plain, PAGE, &id),
              SMFAR_ERR_UNSUPPORTED);
    EXPECT_HAS(smfar_last_error(), "expandable_segments");
    /* no further than the allocations go */
    EXPECT_EQ(smfar_window_register(seat.comm, (void *)(uintptr_t)seat.base, (size_t)1 << 30, &id),
              SMFAR_ERR_UNSUPPORTED);
    EXPECT_EQ(smfar_window_register(seat.comm, seat.data, 4096u * (unsigned)(1 + me->rank), &id),
              SMFAR_ERR_MISMATCH);
    EXPECT_HAS(smfar_last_error(), "window_register: rank 0 asks for 4096 bytes, rank 1 for 8192");
    EXPECT_EQ(smfar_window_reserve(seat.comm, (size_t)1 << 50), SMFAR_ERR_MEMORY);
    EXPECT_HAS(smfar_last_error(), "can grow to");
    enum smfar_status status = me->rank == 3 ? smfar_window_reserve(seat.comm, 64)
                                             : smfar_window_alloc(seat.comm, 64, &inside);
    EXPECT_EQ(status, SMFAR_ERR_MISMATCH);
    EXPECT_HAS(smfar_last_error(), "rank 0 calls window_alloc, rank 3 window_reserve");
    EXPECT_EQ(id, 77);
    must(smfar_window_alloc(seat.comm, 64, &inside)); /* the group is as it was */
    cu(driver->cuMemFree(plain));
    release(&seat);
    stand_up(&seat);
}

/* What the heap hands out over the seam of old and new memory is one piece. */
static void grow(struct ranks_thread *me)
{
    struct seat seat;
    void *first, *large;
    size_t bytes = 4 * (COUNT + 256), last;
    sit_down(me, &seat);
    struct window *window = seat.comm->window;
    size_t before = window->bytes;
    heap_room(&window->heap, &last);
    must(smfar_window_alloc(seat.comm, last - bytes / 2, &first)); /* half of it is left */
    must(smfar_window_reserve(seat.comm, 4096));
    EXPECT_EQ(window->bytes, before); /* there is room */
    EXPECT_EQ(smfar_window_alloc(seat.comm, bytes, &large), SMFAR_ERR_MEMORY);
    EXPECT_HAS(smfar_last_error(), "smfar.reserve");
    must(smfar_window_reserve(seat.comm, bytes));
    EXPECT(window->bytes > before && window->bytes < before + bytes + PAGE, "%zu bytes",
           window->bytes);
    must(smfar_window_alloc(seat.comm, bytes, &large));
    EXPECT((uintptr_t)large < window->peer[me->rank] + before, "it does not cross the seam");
    run_all(&seat, (int32_t *)large + 128);
    const struct group *group = me->extra;
    if (!group->no_multicast) {
        char text[1024];
        must(smfar_explain(seat.comm, (int32_t *)large + 128, COUNT, SMFAR_I32, SMFAR_SUM, text,
                           sizeof text));
        EXPECT_HAS(text, "twoshot_mc");
        EXPECT(!strstr(text, "as in collective"), "not through the switch: %s", text);
    }
    smfar_window_free(seat.comm, large);
    smfar_window_free(seat.comm, first);
    must(smfar_window_reserve(seat.comm, bytes)); /* what was freed is counted */
    must(smfar_window_alloc(seat.comm, bytes, &large));
    stand_up(&seat);
}

/* ---- faults ---- */

static int (*plan_fault)(const struct soft_fault *fault);
static unsigned (*fault_matches)(int number);
static void (*clear_faults)(void);
static pthread_barrier_t meeting;

enum { WITHOUT = 2 }; /* the rank whose calls fail */

/* Both, with one driver call of one rank failing: every rank has the same verdict, and the next try
 * is as if nothing had happened. */
static void try_both(struct seat *seat, const char *call, unsigned first)
{
    static int fault;
    uint64_t id = 0;
    size_t before = seat->comm->window->bytes;
    if (seat->rank == WITHOUT)
        fault = plan_fault(&(struct soft_fault){
            .call = call, .thread = "faulty", .first = first, .times = 1, .result = 1});
    pthread_barrier_wait(&meeting);
    enum smfar_status status = smfar_window_reserve(seat->comm, before);
    if (status == SMFAR_OK)
        status = smfar_window_register(seat->comm, seat->data, 4 * COUNT, &id);
    else
        EXPECT_EQ(seat->comm->window->bytes, before);
    pthread_barrier_wait(&meeting);
    int found = fault_matches(fault) >= first;
    EXPECT_EQ(status != SMFAR_OK, found);
    if (found) EXPECT_HAS(smfar_last_error(), "failed on rank 2");
    pthread_barrier_wait(&meeting);
    if (seat->rank == WITHOUT) clear_faults();
    pthread_barrier_wait(&meeting);
    must(smfar_window_deregister(seat->comm, id));
    must(smfar_window_register(seat->comm, seat->data, 4 * COUNT, &id));
    sum(seat, seat->data, "twoshot_peer");
    must(smfar_window_deregister(seat->comm, id));
}

static void fail_once(struct ranks_thread *me)
{
    static const char *const calls[] = {
        "cuMemCreate",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMulticastBindMem",
        "cuMemRetainAllocationHandle",
        "cuMemGetAllocationPropertiesFromHandle",
        "cuMemGetAddressRange",
    };
    struct seat seat;
    sit_down(me, &seat);
    allocate(&seat, 1);
    if (me->rank == WITHOUT) pthread_setname_np(pthread_self(), "faulty");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (unsigned first = 1; first <= 7; first += 2) /* of these the last ones register */
            try_both(&seat, calls[i], first);
    release(&seat);
    stand_up(&seat);
}

int main(void)
{
    struct driver *driver; /* which loads the switch */
    must(driver_open(SMFAR_DRIVER_SOFT, &driver));
    *(void **)&plan_fault = switch_symbol("soft_fault_plan");
    *(void **)&fault_matches = switch_symbol("soft_fault_matches");
    *(void **)&clear_faults = switch_symbol("soft_faults_clear");
    pthread_barrier_init(&meeting, NULL, RANKS);
    for (int no_multicast = 0; no_multicast < 2; no_multicast++) {
        struct group group = {no_multicast};
        ranks_run(RANKS, register_memory, &group);
        ranks_run(RANKS, register_again, &group);
        ranks_run(RANKS, free_outer, &group);
        ranks_run(RANKS, register_some, &group);
        ranks_run(RANKS, refuse, &group);
        ranks_run(RANKS, grow, &group);
        ranks_run(RANKS, fail_once, &group);
    }
    driver_close(driver);
    switch_expect_no_leaks();
    return unit_end();
}
