/* See vmm.h. */
#include "vmm.h"

#include <string.h>

static CUmemAllocationProp properties(CUdevice device)
{
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    /* a POSIX descriptor: it needs no privilege and no fabric daemon */
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

size_t vmm_round_up(size_t bytes, size_t granularity)
{
    return (bytes + granularity - 1) / granularity * granularity;
}

enum smfar_status vmm_granularity(struct driver *driver, CUdevice device, size_t *bytes_out)
{
    enum smfar_status status;
    CUmemAllocationProp prop = properties(device);
    CU(cuMemGetAllocationGranularity, bytes_out, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status vmm_create(struct driver *driver, CUdevice device, size_t bytes,
                             vmm_handle *handle_out)
{
    enum smfar_status status;
    CUmemAllocationProp prop = properties(device);
    CU(cuMemCreate, handle_out, bytes, &prop, 0);
    return SMFAR_OK;
fail:
    return status;
}

void vmm_release(struct driver *driver, vmm_handle handle)
{
    if (handle) CU_WARN(cuMemRelease, handle);
}

enum smfar_status vmm_export(struct driver *driver, vmm_handle handle, int *fd_out)
{
    enum smfar_status status;
    CU(cuMemExportToShareableHandle, fd_out, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status vmm_import(struct driver *driver, int fd, vmm_handle *handle_out)
{
    enum smfar_status status;
    CU(cuMemImportFromShareableHandle, handle_out, (void *)(intptr_t)fd,
       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status vmm_reserve(struct driver *driver, size_t bytes, CUdeviceptr *ptr_out)
{
    enum smfar_status status;
    CU(cuMemAddressReserve, ptr_out, bytes, 0, 0, 0);
    return SMFAR_OK;
fail:
    return status;
}

void vmm_unreserve(struct driver *driver, CUdeviceptr ptr, size_t bytes)
{
    if (ptr) CU_WARN(cuMemAddressFree, ptr, bytes);
}

enum smfar_status vmm_map(struct driver *driver, vmm_handle handle, size_t offset, size_t bytes,
                          CUdevice device, CUdeviceptr ptr)
{
    enum smfar_status status;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    int mapped = 0;
    CU(cuMemMap, ptr, bytes, offset, handle, 0);
    mapped = 1;
    CU(cuMemSetAccess, ptr, bytes, &access, 1);
    return SMFAR_OK;
fail:
    if (mapped) vmm_unmap(driver, ptr, bytes);
    return status;
}

void vmm_unmap(struct driver *driver, CUdeviceptr ptr, size_t bytes)
{
    CU_WARN(cuMemUnmap, ptr, bytes);
}

static enum smfar_status check_shareable(const CUmemAllocationProp *prop, CUdevice device)
{
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id != device)
        return FAIL(SMFAR_ERR_ARGUMENT, "the memory is not on device %d, which the group uses",
                    device);
    if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return SMFAR_OK;
    return FAIL(SMFAR_ERR_UNSUPPORTED,
                "the memory was made by cuMemCreate without a handle type that can be shared as a "
                "file descriptor; its allocator must ask for "
                "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
}

enum smfar_status vmm_find(struct driver *driver, CUdevice device, CUdeviceptr ptr,
                           CUdeviceptr *base_out, size_t *bytes_out, vmm_handle *handle_out)
{
    enum smfar_status status;
    CUmemAllocationProp prop;
    vmm_handle handle = 0;
    if (CU_RESULT(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)ptr) != CUDA_SUCCESS)
        return FAIL(SMFAR_ERR_UNSUPPORTED,
                    "the memory cannot be shared with other ranks, since cuMemCreate did not make "
                    "it (cudaMalloc's never can be); take it from smfar.empty or smfar.mem_pool, "
                    "or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
    memset(&prop, 0, sizeof(prop));
    CU(cuMemGetAllocationPropertiesFromHandle, &prop, handle);
    TRY(check_shareable(&prop, device));
    CU(cuMemGetAddressRange, base_out, bytes_out, ptr);
    *handle_out = handle;
    return SMFAR_OK;
fail:
    vmm_release(driver, handle);
    return status;
}

int vmm_is_host_memory(struct driver *driver, CUdeviceptr ptr)
{
    unsigned int type = 0;
    CUresult result =
        CU_RESULT(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr);
    return result != CUDA_SUCCESS || type == CU_MEMORYTYPE_HOST;
}
