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

enum smfar_status vmm_map(struct driver *driver, vmm_handle handle, size_t offset, size_t bytes,
                          CUdevice device, CUdeviceptr *ptr_out)
{
    enum smfar_status status;
    CUdeviceptr ptr = 0;
    int mapped = 0;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemAddressReserve, &ptr, bytes, 0, 0, 0);
    CU(cuMemMap, ptr, bytes, offset, handle, 0);
    mapped = 1;
    CU(cuMemSetAccess, ptr, bytes, &access, 1);
    *ptr_out = ptr;
    return SMFAR_OK;
fail:
    if (mapped) CU_WARN(cuMemUnmap, ptr, bytes);
    if (ptr) CU_WARN(cuMemAddressFree, ptr, bytes);
    return status;
}

void vmm_unmap(struct driver *driver, CUdeviceptr ptr, size_t bytes)
{
    if (!ptr) return;
    CU_WARN(cuMemUnmap, ptr, bytes);
    CU_WARN(cuMemAddressFree, ptr, bytes);
}

int vmm_is_host_memory(struct driver *driver, CUdeviceptr ptr)
{
    unsigned int type = 0;
    CUresult result =
        CU_RESULT(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr);
    return result != CUDA_SUCCESS || type == CU_MEMORYTYPE_HOST;
}
