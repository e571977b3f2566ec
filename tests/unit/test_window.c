/* Units of memory/window, vmm and multicast on the software switch, ranks being threads: every rank
 * reaches every other's memory, a store to the multicast mapping reaches all, switching multicast
 * off calls none of its functions, and everything is given back. */
#define _GNU_SOURCE
#include "../../csrc/memory/window.h"

#include "ranks.h"
#include "switch.h"

enum { BYTES = 1 << 20, SLOT = 64 << 10, HERE = WINDOW_SLOT + SLOT };

struct seat {
    struct driver *driver;
    struct exchange *exchange;
    struct window *window;
};

static void sit_down(struct ranks_thread *me, struct seat *seat)
{
    CUcontext context;
    must(driver_open(SMFAR_DRIVER_SOFT, &seat->driver));
    must(exchange_create(me->store, me->rank, me->ranks, 10000, &seat->exchange));
    EXPECT_EQ(seat->driver->cuDevicePrimaryCtxRetain(&context, me->rank), CUDA_SUCCESS);
    EXPECT_EQ(seat->driver->cuCtxPushCurrent(context), CUDA_SUCCESS);
    struct window_parts called = {.slot_bytes = SLOT}, replayed = {0};
    must(window_create(seat->driver, seat->exchange, me->rank, BYTES, &called, &replayed,
                       &seat->window));
}

static void stand_up(struct ranks_thread *me, struct seat *seat)
{
    CUcontext context;
    window_destroy(seat->window);
    EXPECT_EQ(seat->driver->cuCtxPopCurrent(&context), CUDA_SUCCESS);
    EXPECT_EQ(seat->driver->cuDevicePrimaryCtxRelease(me->rank), CUDA_SUCCESS);
    exchange_destroy(seat->exchange);
    driver_close(seat->driver);
}

static void meet(struct seat *seat) { must(exchange_agree(seat->exchange, SMFAR_OK, "meeting")); }

static void put(struct seat *seat, CUdeviceptr at, int value)
{
    EXPECT_EQ(seat->driver->cuMemcpyHtoDAsync(at, &value, sizeof value, NULL), CUDA_SUCCESS);
    EXPECT_EQ(seat->driver->cuStreamSynchronize(NULL), CUDA_SUCCESS);
}

static int get(struct seat *seat, CUdeviceptr at)
{
    int value = -1;
    EXPECT_EQ(seat->driver->cuMemcpyDtoHAsync(&value, at, sizeof value, NULL), CUDA_SUCCESS);
    EXPECT_EQ(seat->driver->cuStreamSynchronize(NULL), CUDA_SUCCESS);
    return value;
}

static void check_peers(struct ranks_thread *me, struct seat *seat)
{
    const struct window *window = seat->window;
    put(seat, window->peer[me->rank] + HERE, 100 + me->rank);
    meet(seat);
    for (int r = 0; r < me->ranks; r++)
        EXPECT_EQ(get(seat, window->peer[r] + HERE), 100 + r);
    meet(seat);
    put(seat, window->peer[(me->rank + 1) % me->ranks] + HERE, 200 + me->rank);
    meet(seat);
    EXPECT_EQ(get(seat, window->peer[me->rank] + HERE),
              200 + (me->rank + me->ranks - 1) % me->ranks);
}

static void check_multicast(struct ranks_thread *me, struct seat *seat)
{
    struct window *window = seat->window;
    EXPECT(multicast_unavailable(seat->driver, me->rank) == NULL, "unavailable");
    must(window_add_multicast(window, seat->exchange));
    EXPECT(window->multicast != 0, "no mapping");
    for (int sender = 0; sender < me->ranks; sender++) {
        if (me->rank == sender) put(seat, window->multicast + HERE, 300 + sender);
        meet(seat);
        EXPECT_EQ(get(seat, window->peer[me->rank] + HERE), 300 + sender);
        meet(seat);
    }
    window_drop_multicast(window);
    EXPECT(window->multicast == 0, "still mapped");
}

static void check_offsets(struct seat *seat, int rank)
{
    struct window *window = seat->window;
    const char *base = (const char *)(uintptr_t)window->peer[rank];
    size_t at, found = 0;
    must(heap_take(&window->heap, 2000, &at));
    EXPECT_EQ(window_offset(window, base + at + 8, 1000, &found), 1);
    EXPECT_EQ(found, at + 8);
    EXPECT_EQ(window_offset(window, base + at - 1, 1, &found), 0);
    EXPECT_EQ(window_offset(window, base + at, 3000, &found), 0);
    EXPECT_EQ(window_offset(window, base - 1, 1, &found), 0);
    EXPECT_EQ(window_offset(window, base + BYTES, 1, &found), 0);
    EXPECT_EQ(window_offset(window, &found, 1, &found), 0);
    heap_give(&window->heap, at);
}

static void whole(struct ranks_thread *me)
{
    struct seat seat;
    sit_down(me, &seat);
    EXPECT(seat.window->bytes >= BYTES, "%zu bytes", seat.window->bytes);
    check_peers(me, &seat);
    check_offsets(&seat, me->rank);
    if (me->ranks > 1) check_multicast(me, &seat);
    meet(&seat);
    stand_up(me, &seat);
}

/* Each off switch is a reason on this rank, and no multicast function has been called by then. */
static void check_off_switches(void)
{
    static const char *const off[][2] = {{"SMFAR_MULTICAST", "0"},
                                         {"NCCL_NVLS_ENABLE", "0"},
                                         {"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"},
                                         {"NVSHMEM_DISABLE_NVLS", "1"}};
    static const char *const functions[] = {"cuMulticastGetGranularity", "cuMulticastCreate",
                                            "cuMulticastAddDevice", "cuMulticastBindMem"};
    struct driver *driver;
    must(driver_open(SMFAR_DRIVER_SOFT, &driver));
    for (int i = 0; i < 4; i++) {
        setenv(off[i][0], off[i][1], 1);
        const char *why = multicast_unavailable(driver, 0);
        unsetenv(off[i][0]);
        REQUIRE(why != NULL, "%s did not switch multicast off", off[i][0]);
        EXPECT_HAS(why, off[i][0]);
    }
    for (int i = 0; i < 4; i++)
        EXPECT_EQ(switch_calls(functions[i]), 0);
    driver_close(driver);
}

int main(void)
{
    check_off_switches();
    ranks_run(1, whole, NULL);
    ranks_run(2, whole, NULL);
    ranks_run(5, whole, NULL);
    switch_expect_no_leaks();
    return unit_end();
}
