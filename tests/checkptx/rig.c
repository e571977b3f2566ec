/* Building and taking down a rig, and the few driver calls that a check makes on it. */
#define _GNU_SOURCE
#include "rig.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../csrc/memory/multicast.h"

enum { PAGE_BYTES = 64 << 10 };

static enum smfar_status enter(const struct rig *rig, int rank)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    CU(cuCtxPushCurrent, rig->rank[rank].context);
fail:
    return status;
}

static void leave(const struct rig *rig)
{
    CUcontext popped;
    rig->driver->cuCtxPopCurrent(&popped);
}

static CUmemAllocationProp memory_of(CUdevice device)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

/* Maps `handle` for every device of the rig. */
static enum smfar_status map_for_all(struct rig *rig, CUmemGenericAllocationHandle handle,
                                     CUdeviceptr *at)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    CU(cuMemAddressReserve, at, rig->window_bytes, 0, 0, 0);
    CU(cuMemMap, *at, rig->window_bytes, 0, handle, 0);
    for (int r = 0; r < rig->ranks; r++) {
        CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, rig->rank[r].device},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CU(cuMemSetAccess, *at, rig->window_bytes, &access, 1);
    }
fail:
    return status;
}

static void unmap(struct rig *rig, CUdeviceptr at)
{
    struct driver *driver = rig->driver;
    if (at == 0) return;
    CU_WARN(cuMemUnmap, at, rig->window_bytes);
    CU_WARN(cuMemAddressFree, at, rig->window_bytes);
}

static enum smfar_status find_devices(struct rig *rig)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    int devices;
    CU(cuDeviceGetCount, &devices);
    rig->multicast = rig->float8 = devices >= rig->ranks;
    for (int r = 0; r < rig->ranks; r++) {
        struct rig_rank *me = &rig->rank[r];
        CU(cuDeviceGet, &me->device, r % devices);
        if (multicast_unavailable(driver, me->device)) rig->multicast = 0; /* or switched off */
        int major = 0, minor = 0;
        CU(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, me->device);
        CU(cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, me->device);
        rig->float8 &= rig->multicast && kernel_float8_in_switch(10 * major + minor);
        CU(cuDevicePrimaryCtxRetain, &me->context, me->device);
    }
fail:
    return status;
}

/* The same size for memory and multicast object: a multiple of both granularities. */
static enum smfar_status choose_size(struct rig *rig)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    size_t step = 0, multicast_step = 0;
    CUmemAllocationProp prop = memory_of(rig->rank[0].device);
    CUmulticastObjectProp object = {.numDevices = (unsigned)rig->ranks,
                                    .size = RIG_BOXES + RIG_BOXES_BYTES};
    CU(cuMemGetAllocationGranularity, &step, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (rig->multicast)
        CU(cuMulticastGetGranularity, &multicast_step, &object,
           CU_MULTICAST_GRANULARITY_RECOMMENDED);
    if (multicast_step > step) step = multicast_step;
    rig->window_bytes = (RIG_BOXES + RIG_BOXES_BYTES + step - 1) / step * step;
fail:
    return status;
}

static enum smfar_status create_rank(struct rig *rig, struct rig_rank *me)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    CUmemAllocationProp prop = memory_of(me->device);
    CU(cuMemCreate, &me->memory, rig->window_bytes, &prop, 0);
    TRY(map_for_all(rig, me->memory, &me->window));
    CU(cuMemAlloc, &me->src, RIG_AREA);
    CU(cuMemAlloc, &me->dst, RIG_AREA);
    CU(cuStreamCreateWithPriority, &me->stream, CU_STREAM_NON_BLOCKING, 0);
    TRY(kernels_load(driver, rig->multicast, &me->kernels));
    if (rig->float8) TRY(kernels_load_float8(me->kernels));
fail:
    return status;
}

static enum smfar_status create_ranks(struct rig *rig)
{
    enum smfar_status status = SMFAR_OK;
    for (int r = 0; r < rig->ranks; r++) {
        TRY(enter(rig, r));
        status = create_rank(rig, &rig->rank[r]);
        leave(rig);
        if (status != SMFAR_OK) break;
    }
fail:
    return status;
}

static enum smfar_status create_multicast(struct rig *rig)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    CUmulticastObjectProp prop = {.numDevices = (unsigned)rig->ranks, .size = rig->window_bytes};
    if (!rig->multicast) return SMFAR_OK;
    CU(cuMulticastCreate, &rig->object, &prop);
    for (int r = 0; r < rig->ranks; r++)
        CU(cuMulticastAddDevice, rig->object, rig->rank[r].device);
    for (int r = 0; r < rig->ranks; r++)
        CU(cuMulticastBindMem, rig->object, 0, rig->rank[r].memory, 0, rig->window_bytes, 0);
    TRY(map_for_all(rig, rig->object, &rig->view));
fail:
    return status;
}

static enum smfar_status create_page(struct rig *rig)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return FAIL_ERRNO("mmap");
    rig->page = page;
    CU(cuMemHostRegister, page, PAGE_BYTES,
       CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    CU(cuMemHostGetDevicePointer, &rig->page_device, page, 0);
fail:
    return status;
}

enum smfar_status rig_create(struct driver *driver, int ranks, struct rig **rig_out)
{
    enum smfar_status status = SMFAR_OK;
    struct rig *rig = calloc(1, sizeof *rig);
    if (rig == NULL) return FAIL(SMFAR_ERR_MEMORY, "no memory for a rig");
    rig->driver = driver;
    rig->ranks = ranks;
    TRY(find_devices(rig));
    TRY(enter(rig, 0));
    status = choose_size(rig);
    leave(rig);
    if (status != SMFAR_OK) goto fail;
    TRY(create_ranks(rig));
    TRY(enter(rig, 0));
    status = create_multicast(rig);
    if (status == SMFAR_OK) status = create_page(rig);
    leave(rig);
    if (status != SMFAR_OK) goto fail;
    TRY(rig_reset(rig, 0));
    *rig_out = rig;
    return SMFAR_OK;
fail:
    rig_destroy(rig);
    return status;
}

static void destroy_rank(struct rig *rig, struct rig_rank *me)
{
    struct driver *driver = rig->driver;
    if (me->kernels) kernels_unload(me->kernels);
    if (me->stream) CU_WARN(cuStreamDestroy, me->stream);
    if (me->src) CU_WARN(cuMemFree, me->src);
    if (me->dst) CU_WARN(cuMemFree, me->dst);
    unmap(rig, me->window);
    if (me->memory) CU_WARN(cuMemRelease, me->memory);
}

static void destroy_shared(struct rig *rig)
{
    struct driver *driver = rig->driver;
    if (rig->page_device) CU_WARN(cuMemHostUnregister, rig->page);
    if (rig->page) munmap(rig->page, PAGE_BYTES);
    unmap(rig, rig->view);
    for (int r = 0; rig->view && r < rig->ranks; r++)
        CU_WARN(cuMulticastUnbind, rig->object, rig->rank[r].device, 0, rig->window_bytes);
    if (rig->object) CU_WARN(cuMemRelease, rig->object);
}

void rig_destroy(struct rig *rig)
{
    if (rig == NULL) return;
    struct driver *driver = rig->driver;
    if (rig->rank[0].context && enter(rig, 0) == SMFAR_OK) {
        destroy_shared(rig);
        leave(rig);
    }
    for (int r = 0; r < rig->ranks; r++) {
        if (rig->rank[r].context == NULL || enter(rig, r) != SMFAR_OK) continue;
        destroy_rank(rig, &rig->rank[r]);
        leave(rig);
        CU_WARN(cuDevicePrimaryCtxRelease, rig->rank[r].device);
    }
    free(rig);
}

static enum smfar_status clear_boxes(const struct rig *rig, int rank)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    const struct rig_rank *me = &rig->rank[rank];
    if (enter(rig, rank) != SMFAR_OK) return SMFAR_ERR_DRIVER;
    CU(cuMemsetD8Async, me->window + RIG_BOXES, 0, RIG_BOXES_BYTES, me->stream);
    CU(cuStreamSynchronize, me->stream);
fail:
    leave(rig);
    return status;
}

enum smfar_status rig_find_packet(const struct rig *rig, int rank, size_t bytes, size_t *at_out)
{
    enum smfar_status status = SMFAR_OK;
    unsigned char *boxes = malloc(bytes + 1);
    size_t at = 0;
    if (!boxes) return FAIL(SMFAR_ERR_MEMORY, "no memory for the boxes");
    TRY(rig_read(rig, rank, boxes, rig->rank[rank].window + RIG_BOXES, bytes));
    while (at < bytes && boxes[at] == 0)
        at++;
    *at_out = at;
fail:
    free(boxes);
    return status;
}

enum smfar_status rig_reset(struct rig *rig, uint32_t epoch)
{
    enum smfar_status status = SMFAR_OK;
    struct signals fresh[RIG_CHANNELS];
    memset(fresh, 0, sizeof fresh);
    for (int channel = 0; channel < RIG_CHANNELS; channel++) {
        fresh[channel].epoch[0] = epoch;
        for (int r = 0; r < rig->ranks; r++)
            fresh[channel].arrive[epoch & 1][r] = (uint64_t)epoch << 32;
        for (int r = 0; r < rig->ranks; r++)
            fresh[channel].arrive[~epoch & 1][r] = (uint64_t)(epoch - 1) << 32;
    }
    memset(rig->page, 0, PAGE_BYTES);
    for (int r = 0; r < rig->ranks; r++)
        TRY(rig_write(rig, r, rig->rank[r].window, fresh, sizeof fresh));
    for (int r = 0; r < rig->ranks; r++)
        TRY(clear_boxes(rig, r));
fail:
    return status;
}

void rig_arguments(const struct rig *rig, int rank, int channel, struct kargs *args_out)
{
    struct kargs args = {
        .window = rig->rank[rank].window,
        .multicast = rig->view,
        .page = rig->page_device,
        .rank = (uint32_t)rank,
        .ranks = (uint32_t)rig->ranks,
        .scale = 1.0 / rig->ranks,
        .signals = (uint32_t)channel * SIGNALS_BYTES,
    };
    for (int r = 0; r < rig->ranks; r++)
        args.peer[r] = rig->rank[r].window;
    *args_out = args;
}

enum smfar_status rig_launch(const struct rig *rig, int rank, enum kernel_id id, int blocks,
                             int threads, const struct kargs *args)
{
    enum smfar_status status = SMFAR_OK;
    const struct rig_rank *me = &rig->rank[rank];
    TRY(enter(rig, rank));
    status = kernel_launch(me->kernels, id, blocks, threads, args, me->stream);
    leave(rig);
fail:
    return status;
}

enum smfar_status rig_synchronize(const struct rig *rig, int rank)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    if (enter(rig, rank) != SMFAR_OK) return SMFAR_ERR_DRIVER;
    CU(cuStreamSynchronize, rig->rank[rank].stream);
fail:
    leave(rig);
    return status;
}

CUresult rig_query(const struct rig *rig, int rank)
{
    if (enter(rig, rank) != SMFAR_OK) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = rig->driver->cuStreamQuery(rig->rank[rank].stream);
    leave(rig);
    return result;
}

enum smfar_status rig_write(const struct rig *rig, int rank, CUdeviceptr to, const void *from,
                            size_t bytes)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    CUstream stream = rig->rank[rank].stream;
    if (enter(rig, rank) != SMFAR_OK) return SMFAR_ERR_DRIVER;
    CU(cuMemcpyHtoDAsync, to, from, bytes, stream);
    CU(cuStreamSynchronize, stream);
fail:
    leave(rig);
    return status;
}

enum smfar_status rig_read(const struct rig *rig, int rank, void *to, CUdeviceptr from,
                           size_t bytes)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    CUstream stream = rig->rank[rank].stream;
    if (enter(rig, rank) != SMFAR_OK) return SMFAR_ERR_DRIVER;
    CU(cuMemcpyDtoHAsync, to, from, bytes, stream);
    CU(cuStreamSynchronize, stream);
fail:
    leave(rig);
    return status;
}

enum smfar_status rig_read_later(const struct rig *rig, int rank, void *to, CUdeviceptr from,
                                 size_t bytes)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    if (enter(rig, rank) != SMFAR_OK) return SMFAR_ERR_DRIVER;
    CU(cuMemcpyDtoHAsync, to, from, bytes, rig->rank[rank].stream);
fail:
    leave(rig);
    return status;
}

enum smfar_status rig_write_later(const struct rig *rig, int rank, CUdeviceptr to, const void *from,
                                  size_t bytes)
{
    enum smfar_status status = SMFAR_OK;
    struct driver *driver = rig->driver;
    if (enter(rig, rank) != SMFAR_OK) return SMFAR_ERR_DRIVER;
    CU(cuMemcpyHtoDAsync, to, from, bytes, rig->rank[rank].stream);
fail:
    leave(rig);
    return status;
}

const volatile struct error_record *rig_error(const struct rig *rig, int rank)
{
    return (const volatile struct error_record *)(rig->page + PAGE_ERROR) + rank;
}

static uint64_t page_word(const struct rig *rig, int rank, size_t at)
{
    return *(const volatile uint64_t *)(rig->page + at + (size_t)rank * PAGE_WORDS);
}

uint64_t rig_released(const struct rig *rig, int rank)
{
    return page_word(rig, rank, PAGE_RELEASED);
}

uint64_t rig_done(const struct rig *rig, int rank) { return page_word(rig, rank, PAGE_DONE); }

uint64_t rig_apart(const struct rig *rig, int rank)
{
    return ((const volatile uint64_t *)(rig->page + PAGE_APART))[rank];
}
