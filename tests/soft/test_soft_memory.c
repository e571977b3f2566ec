/* The rules of allocations, reservations, mappings and access, in one process. */
#include "rig.h"

static void test_allocations(void)
{
    size_t granularity;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle, second;
    int fd;
    OK(cu.cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    EXPECT_EQ(granularity, MIB2);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemCreate(&handle, 4096, &prop, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemCreate(&handle, 0, &prop, 0));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cu.cuMemCreate(&handle, 1ull << 50, &prop, 0));
    OK(cu.cuMemCreate(&handle, MIB2, &prop, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemExportToShareableHandle(
                                        &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cu.cuMemRelease(handle));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemRelease(handle));
    OK(cu.cuMemCreate(&second, MIB2, &prop, 0));
    EXPECT(second != handle, "a handle was used again");
    OK(cu.cuMemRelease(second));
    prop.location.id = 8;
    GIVES(CUDA_ERROR_INVALID_DEVICE, cu.cuMemCreate(&handle, MIB2, &prop, 0));
    prop.location.id = 0;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cu.cuMemCreate(&handle, MIB2, &prop, 0));
}

static void test_reservations(void)
{
    CUdeviceptr ptr;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemAddressReserve(&ptr, 4096, 0, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemAddressReserve(&ptr, MIB2, 3, 0, 0));
    OK(cu.cuMemAddressReserve(&ptr, 2 * MIB2, 64 << 20, 0, 0));
    EXPECT_EQ(ptr % (64 << 20), 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemAddressFree(ptr, MIB2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemAddressFree(ptr + MIB2, MIB2));
    OK(cu.cuMemAddressFree(ptr, 2 * MIB2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemAddressFree(ptr, 2 * MIB2));
}

static void test_mappings(void)
{
    CUmemGenericAllocationHandle memory = rig_memory(0, 2 * MIB2), gone = rig_memory(0, MIB2);
    CUdeviceptr ptr;
    OK(cu.cuMemRelease(gone));
    OK(cu.cuMemAddressReserve(&ptr, 4 * MIB2, 0, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemMap(ptr, MIB2, 0, gone, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemMap(ptr, 4 * MIB2, 0, memory, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemMap(ptr + 4096, MIB2, 0, memory, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemMap(ptr, MIB2, MIB2, memory, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemMap(ptr + 3 * MIB2, 2 * MIB2, 0, memory, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemMap(1 << 30, MIB2, 0, memory, 0));
    OK(cu.cuMemMap(ptr, 2 * MIB2, 0, memory, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemMap(ptr + MIB2, 2 * MIB2, 0, memory, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemAddressFree(ptr, 4 * MIB2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemUnmap(ptr, MIB2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemUnmap(ptr, 4 * MIB2));
    OK(cu.cuMemMap(ptr + 2 * MIB2, 2 * MIB2, 0, memory, 0));
    OK(cu.cuMemRelease(memory)); /* stays while mapped */
    rig_access(ptr, 4 * MIB2, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ((volatile int *)(uintptr_t)ptr)[7] = 42;
    EXPECT_EQ(((volatile int *)(uintptr_t)(ptr + 2 * MIB2))[7], 42); /* one memory, mapped twice */
    OK(cu.cuMemUnmap(ptr, 4 * MIB2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemUnmap(ptr, 4 * MIB2));
    OK(cu.cuMemAddressFree(ptr, 4 * MIB2));
}

/* Whose memory an address is, and a further handle of it. */
static void test_addresses(void)
{
    CUmemGenericAllocationHandle memory = rig_memory(1, MIB2), again;
    CUmemAllocationProp prop;
    CUdeviceptr ptr = rig_map(memory, MIB2, 0), base = 0, block;
    size_t size = 0;
    OK(cu.cuMemGetAddressRange(&base, &size, ptr + 12345));
    EXPECT(base == ptr && size == MIB2, "%zu bytes", size);
    OK(cu.cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(ptr + 12345)));
    EXPECT(again != memory, "the same handle");
    OK(cu.cuMemGetAllocationPropertiesFromHandle(&prop, again));
    EXPECT_EQ(prop.location.id, 1);
    EXPECT_EQ(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    OK(cu.cuMemRelease(memory));
    rig_unmap(ptr, MIB2);
    GIVES(CUDA_ERROR_NOT_FOUND, cu.cuMemGetAddressRange(&base, &size, ptr));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cu.cuMemRetainAllocationHandle(&memory, (void *)(uintptr_t)ptr));
    ptr = rig_map(again, MIB2, 0); /* the memory has stayed */
    rig_unmap(ptr, MIB2);
    OK(cu.cuMemRelease(again));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemGetAllocationPropertiesFromHandle(&prop, again));
    OK(cu.cuMemAlloc(&block, 1000));
    OK(cu.cuMemGetAddressRange(&base, &size, block + 999));
    EXPECT(base == block && size == 1000, "%zu bytes", size);
    GIVES(CUDA_ERROR_NOT_FOUND, cu.cuMemGetAddressRange(&base, &size, block + 1000));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cu.cuMemRetainAllocationHandle(&memory, (void *)(uintptr_t)block));
    OK(cu.cuMemFree(block));
}

/* Whether a copy of 4 bytes to, or from, this address is accepted. */
static CUresult copy_to(CUdeviceptr ptr)
{
    static int word;
    return cu.cuMemcpyHtoDAsync(ptr, &word, sizeof word, NULL);
}

static CUresult copy_from(CUdeviceptr ptr)
{
    static int word;
    return cu.cuMemcpyDtoHAsync(&word, ptr, sizeof word, NULL);
}

static void test_access(void)
{
    CUmemGenericAllocationHandle memory = rig_memory(0, MIB2);
    CUdeviceptr ptr = rig_map(memory, MIB2, -1);
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 9}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    GIVES(CUDA_ERROR_INVALID_VALUE, copy_to(ptr));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cu.cuMemSetAccess(ptr, MIB2, &access, 1));
    access.location.id = 0;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemSetAccess(ptr, 2 * MIB2, &access, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemSetAccess(ptr, MIB2 / 2, &access, 1));
    access.flags = 2;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemSetAccess(ptr, MIB2, &access, 1));
    rig_access(ptr, MIB2, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    GIVES(CUDA_ERROR_INVALID_VALUE, copy_to(ptr)); /* the other device's access is not ours */
    rig_access(ptr, MIB2, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    GIVES(CUDA_ERROR_INVALID_VALUE, copy_to(ptr));
    OK(copy_from(ptr));
    rig_access(ptr, MIB2, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(copy_to(ptr));
    OK(cu.cuCtxSynchronize());
    rig_access(ptr, MIB2, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    GIVES(CUDA_ERROR_INVALID_VALUE, copy_from(ptr));
    OK(cu.cuMemRelease(memory));
    rig_unmap(ptr, MIB2);
}

static void test_blocks(void)
{
    CUdeviceptr ptr;
    size_t free_bytes, total;
    OK(cu.cuMemGetInfo(&free_bytes, &total));
    EXPECT(0 < free_bytes && free_bytes <= total, "%zu of %zu", free_bytes, total);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemAlloc(&ptr, 0));
    OK(cu.cuMemAlloc(&ptr, 1000));
    EXPECT_EQ(ptr % 256, 0);
    OK(copy_to(ptr + 996));
    GIVES(CUDA_ERROR_INVALID_VALUE, copy_to(ptr + 1000));
    GIVES(CUDA_ERROR_INVALID_VALUE, copy_to(ptr + 998));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(ptr + 8));
    OK(cu.cuMemFree(ptr));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemFree(ptr));
    OK(cu.cuMemFree(0));
}

static void test_host_memory(void)
{
    static char page[8192] __attribute__((aligned(4096)));
    CUdeviceptr ptr;
    unsigned type;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemHostGetDevicePointer(&ptr, page, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)page));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemHostRegister((void *)0x10000, 4096, 0));
    OK(cu.cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_PORTABLE));
    GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cu.cuMemHostRegister(page + 64, 8, 0));
    OK(cu.cuMemHostGetDevicePointer(&ptr, page + 100, 0));
    EXPECT_EQ(ptr, (uintptr_t)(page + 100));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemHostGetDevicePointer(&ptr, page + 4096, 0));
    OK(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)page));
    EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
    GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cu.cuMemHostUnregister(page + 64));
    OK(cu.cuMemHostUnregister(page));
    GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cu.cuMemHostUnregister(page));
}

static void test_pointer_attributes(void)
{
    CUmemGenericAllocationHandle memory = rig_memory(3, MIB2);
    CUdeviceptr ptr = rig_map(memory, MIB2, 0);
    unsigned type;
    int device;
    OK(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr + 5));
    EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
    OK(cu.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr + 5));
    EXPECT_EQ(device, 3);
    OK(cu.cuMemRelease(memory));
    rig_unmap(ptr, MIB2);
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
}

int main(void)
{
    rig_open(0);
    test_allocations();
    test_reservations();
    test_mappings();
    test_addresses();
    test_access();
    test_blocks();
    test_host_memory();
    test_pointer_attributes();
    rig_leave(0);
    EXPECT_EQ(rig_leaks(), 0);
    return unit_end();
}
