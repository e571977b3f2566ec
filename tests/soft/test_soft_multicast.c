/* The rules of multicast objects, with every device in one process. */
#include <pthread.h>

#include "rig.h"

enum { DEVICES = 2, SIZE = 4 * MIB2 };

static CUmemGenericAllocationHandle object, memory[DEVICES];
static CUdeviceptr own[DEVICES], view;
static char sevens[SIZE];

static volatile int *word(CUdeviceptr ptr) { return (volatile int *)(uintptr_t)ptr; }

static CUresult bind(int device, size_t offset, size_t memory_offset, size_t size)
{
    return cu.cuMulticastBindMem(object, offset, memory[device], memory_offset, size, 0);
}

static void test_creation(void)
{
    size_t granularity;
    CUmemGenericAllocationHandle handle;
    CUmulticastObjectProp prop = {DEVICES, MIB2, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0};
    OK(cu.cuMulticastGetGranularity(&granularity, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED));
    EXPECT_EQ(granularity, MIB2);
    prop.size = MIB2 + 4096;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastCreate(&handle, &prop));
    prop.size = 0;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastCreate(&handle, &prop));
    prop = (CUmulticastObjectProp){9, MIB2, 0, 0};
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastCreate(&handle, &prop));
    prop = (CUmulticastObjectProp){DEVICES, MIB2, CU_MEM_HANDLE_TYPE_FABRIC, 0};
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cu.cuMulticastCreate(&handle, &prop));
    object = rig_multicast(DEVICES, SIZE);
}

static void *bind_early(void *unused)
{
    (void)unused;
    OK(bind(0, 0, 0, MIB2));
    return NULL;
}

/* A bind blocks until the last device was added, here by another thread. */
static void test_team(void)
{
    pthread_t early;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastAddDevice(memory[0], 0));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cu.cuMulticastAddDevice(object, 8));
    OK(cu.cuMulticastAddDevice(object, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastAddDevice(object, 0));
    REQUIRE(pthread_create(&early, NULL, bind_early, NULL) == 0, "no thread");
    OK(cu.cuMulticastAddDevice(object, 1));
    pthread_join(early, NULL);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastAddDevice(object, 2));
}

static void test_binds(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemGenericAllocationHandle private, foreign = rig_memory(2, MIB2);
    OK(cu.cuMemCreate(&private, MIB2, &prop, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastBindMem(object, 0, private, 0, MIB2, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastBindMem(object, 0, foreign, 0, MIB2, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastBindMem(object, 0, object, 0, MIB2, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, bind(0, 0, 0, MIB2)); /* bound before */
    GIVES(CUDA_ERROR_INVALID_VALUE, bind(1, 4096, 0, MIB2));
    GIVES(CUDA_ERROR_INVALID_VALUE, bind(1, 0, 0, 4096));
    GIVES(CUDA_ERROR_INVALID_VALUE, bind(1, SIZE, 0, MIB2));
    GIVES(CUDA_ERROR_INVALID_VALUE, bind(1, 0, 0, SIZE + MIB2));
    GIVES(CUDA_ERROR_INVALID_VALUE, bind(1, 0, SIZE, MIB2));
    OK(cu.cuMemRelease(private));
    OK(cu.cuMemRelease(foreign));
}

static CUresult copy_to(CUdeviceptr ptr, size_t bytes)
{
    return cu.cuMemcpyHtoDAsync(ptr, sevens, bytes, NULL);
}

static void test_access(void)
{
    static int data;
    GIVES(CUDA_ERROR_INVALID_VALUE, copy_to(view, 4)); /* no access yet */
    rig_access(view, SIZE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    GIVES(CUDA_ERROR_INVALID_VALUE, copy_to(view, 4)); /* device 1 has not bound */
    OK(bind(1, 0, MIB2, 2 * MIB2));
    OK(copy_to(view, MIB2));
    GIVES(CUDA_ERROR_INVALID_VALUE, copy_to(view, MIB2 + 4)); /* the second piece: not bound by 0 */
    OK(cu.cuCtxSynchronize());
    EXPECT_EQ(*word(own[0] + MIB2 - 4), 0x07070707);
    EXPECT_EQ(*word(own[1] + 2 * MIB2 - 4), 0x07070707);
    EXPECT_EQ(*word(own[1] + MIB2 - 4), 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyDtoHAsync(&data, view, 4, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemcpyAsync(own[0], view, 4, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD8Async(view, 0, 4, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuStreamWriteValue32(NULL, view, 1, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuStreamWaitValue32(NULL, view, 1, 0));
}

/* One copy over two pieces that were bound apart, on each device differently. */
static void test_pieces(void)
{
    OK(bind(0, MIB2, 3 * MIB2, MIB2));
    OK(copy_to(view + 16, 2 * MIB2 - 16));
    OK(cu.cuCtxSynchronize());
    EXPECT_EQ(*word(own[0] + 4 * MIB2 - 4), 0x07070707);
    EXPECT_EQ(*word(own[0] + MIB2), 0);
    EXPECT_EQ(*word(own[1] + 3 * MIB2 - 4), 0x07070707);
}

static void test_unbinds(void)
{
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastUnbind(object, 1, 0, MIB2)); /* not as bound */
    GIVES(CUDA_ERROR_INVALID_DEVICE, cu.cuMulticastUnbind(object, 5, 0, MIB2));
    OK(cu.cuMulticastUnbind(object, 1, 0, 2 * MIB2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMulticastUnbind(object, 1, 0, 2 * MIB2));
    GIVES(CUDA_ERROR_INVALID_VALUE, copy_to(view, 4));
    OK(bind(1, 0, 0, MIB2));
    OK(copy_to(view, 4));
    OK(cu.cuCtxSynchronize());
    EXPECT_EQ(*word(own[1]), 0x07070707);
}

/* The second bind of device 0 is left to the object's end. */
static void tear_down(void)
{
    OK(cu.cuMulticastUnbind(object, 0, 0, MIB2));
    OK(cu.cuMulticastUnbind(object, 1, 0, MIB2));
    rig_unmap(view, SIZE);
    OK(cu.cuMemRelease(object));
    for (int i = 0; i < DEVICES; i++) {
        rig_unmap(own[i], SIZE);
        OK(cu.cuMemRelease(memory[i]));
    }
}

int main(void)
{
    memset(sevens, 7, sizeof sevens);
    rig_open(0);
    test_creation();
    for (int i = 0; i < DEVICES; i++) {
        memory[i] = rig_memory(i, SIZE);
        own[i] = rig_map(memory[i], SIZE, i);
    }
    test_team();
    view = rig_map(object, SIZE, -1);
    test_binds();
    test_access();
    test_pieces();
    test_unbinds();
    tear_down();
    rig_leave(0);
    EXPECT_EQ(rig_leaks(), 0);
    return unit_end();
}
