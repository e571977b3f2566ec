/* Allocations of the software switch and how they travel: each is a memfd whose last page says what
 * it is, so that an exported handle is an ordinary descriptor and an import knows its own. Not
 * where they are mapped. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "soft_internal.h"

enum { HEADER_PAGE = 4096, SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
static const char magic[16] = "smfar memory 1";

uint64_t allocation_place(const unsigned char id[OBJECT_ID_BYTES])
{
    uint64_t bits;
    memcpy(&bits, id, sizeof bits);
    return 1ull << 63 | (bits >> 1 & ~(uint64_t)(GRANULARITY - 1));
}

int descriptor_dup(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy >= 0) held_add(HELD_DESCRIPTORS, 1);
    return copy;
}

void descriptor_close(int fd)
{
    close(fd);
    held_add(HELD_DESCRIPTORS, -1);
}

static void destroy(struct object *object)
{
    struct allocation *allocation = (struct allocation *)object;
    if (allocation->multicast) multicast_close(allocation->multicast);
    if (allocation->fd >= 0) descriptor_close(allocation->fd);
    free(allocation);
}

static struct allocation *wrap(int fd, const struct allocation_header *header, int shareable)
{
    struct allocation *allocation =
        object_create(sizeof *allocation, OBJECT_ALLOCATION, NULL, destroy);
    if (!allocation) return NULL;
    allocation->fd = fd;
    allocation->size = header->size;
    allocation->device = header->device;
    allocation->shareable = shareable;
    memcpy(allocation->id, header->id, OBJECT_ID_BYTES);
    return allocation;
}

static int make_memfd(const struct allocation_header *header)
{
    int fd = memfd_create(header->multicast ? "smfar-multicast" : "smfar-memory",
                          MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, header->size + HEADER_PAGE) == 0 &&
        pwrite(fd, header, sizeof *header, header->size) == sizeof *header &&
        fcntl(fd, F_ADD_SEALS, SEALS) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

CUresult allocation_create(size_t size, int device, int shareable, int multicast,
                           struct allocation **allocation_out)
{
    struct allocation_header header = {.size = size, .device = device, .multicast = multicast != 0};
    memcpy(header.magic, magic, sizeof magic);
    if (getrandom(header.id, sizeof header.id, 0) != sizeof header.id)
        return CUDA_ERROR_OPERATING_SYSTEM;
    int fd = make_memfd(&header);
    if (fd < 0) return refuse(CUDA_ERROR_OUT_OF_MEMORY, "memfd: %s", strerror(errno));
    struct allocation *allocation = wrap(fd, &header, shareable);
    if (!allocation) {
        close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    held_add(HELD_DESCRIPTORS, 1);
    *allocation_out = allocation;
    return CUDA_SUCCESS;
}

int allocation_identify(int fd, struct allocation_header *header_out)
{
    struct stat stat;
    struct allocation_header header;
    if (fstat(fd, &stat) != 0 || !S_ISREG(stat.st_mode) || stat.st_size < HEADER_PAGE) return 0;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS) return 0;
    off_t end = stat.st_size - HEADER_PAGE;
    if (pread(fd, &header, sizeof header, end) != sizeof header) return 0;
    if (memcmp(header.magic, magic, sizeof magic) != 0 || header.size != (uint64_t)end) return 0;
    if (header.multicast ? header.size != multicast_state_bytes() : !device_valid(header.device))
        return 0;
    *header_out = header;
    return 1;
}

struct allocation *allocation_get(CUmemGenericAllocationHandle handle)
{
    return object_get(handle, OBJECT_ALLOCATION);
}

CUresult allocation_publish(struct allocation *allocation, CUmemGenericAllocationHandle *handle_out)
{
    uintptr_t handle = object_publish(&allocation->object);
    if (!handle) {
        object_release(&allocation->object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    held_add(HELD_HANDLES, 1);
    *handle_out = handle;
    return CUDA_SUCCESS;
}

CUresult allocation_reopen(struct allocation *allocation, CUmemGenericAllocationHandle *handle_out)
{
    struct allocation_header header = {.size = allocation->size, .device = allocation->device};
    memcpy(header.id, allocation->id, OBJECT_ID_BYTES);
    int shareable = allocation->shareable, fd = descriptor_dup(allocation->fd);
    object_release(&allocation->object);
    if (fd < 0) return refuse(CUDA_ERROR_OPERATING_SYSTEM, "dup: %s", strerror(errno));
    struct allocation *again = wrap(fd, &header, shareable);
    if (again) return allocation_publish(again, handle_out);
    descriptor_close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return refuse(CUDA_ERROR_INVALID_VALUE, "not pinned device memory");
    if (!device_valid(prop->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC)
        return refuse(CUDA_ERROR_NOT_SUPPORTED, "no fabric handles");
    if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    ENTER(cuMemGetAllocationGranularity, NEED_INIT);
    if (!granularity || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                         option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_prop(prop);
    if (result == CUDA_SUCCESS) *granularity = GRANULARITY;
    return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    ENTER(cuMemCreate, NEED_INIT);
    if (!handle || flags) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_prop(prop);
    if (result != CUDA_SUCCESS) return result;
    if (!size || size % GRANULARITY)
        return refuse(CUDA_ERROR_INVALID_VALUE, "size %zu is no multiple of 2 MiB", size);
    if (size / sysconf(_SC_PAGESIZE) > (size_t)sysconf(_SC_PHYS_PAGES))
        return refuse(CUDA_ERROR_OUT_OF_MEMORY, "%zu bytes are more than the machine has", size);
    struct allocation *allocation;
    result =
        allocation_create(size, prop->location.id, prop->requestedHandleTypes != 0, 0, &allocation);
    return result == CUDA_SUCCESS ? allocation_publish(allocation, handle) : result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle)
{
    ENTER(cuMemGetAllocationPropertiesFromHandle, NEED_INIT);
    if (!prop) return CUDA_ERROR_INVALID_VALUE;
    struct allocation *allocation = allocation_get(handle);
    if (!allocation) return refuse(CUDA_ERROR_INVALID_VALUE, "no such allocation handle");
    memset(prop, 0, sizeof *prop);
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop->location.id = allocation->device;
    if (allocation->shareable)
        prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    object_release(&allocation->object);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    ENTER(cuMemRelease, NEED_INIT);
    struct allocation *allocation = object_withdraw(handle, OBJECT_ALLOCATION);
    if (!allocation) return refuse(CUDA_ERROR_INVALID_VALUE, "no such allocation handle");
    held_add(HELD_HANDLES, -1);
    object_release(&allocation->object);
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    ENTER(cuMemExportToShareableHandle, NEED_INIT);
    if (!shareable || flags) return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    struct allocation *allocation = allocation_get(handle);
    if (!allocation) return refuse(CUDA_ERROR_INVALID_VALUE, "no such allocation handle");
    CUresult result = CUDA_SUCCESS;
    if (!allocation->shareable)
        result = refuse(CUDA_ERROR_INVALID_VALUE, "created without a shareable handle type");
    else {
        /* the caller's from now on, so not counted as held by the switch */
        int fd = fcntl(allocation->fd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
            result = refuse(CUDA_ERROR_OPERATING_SYSTEM, "dup: %s", strerror(errno));
        else
            *(int *)shareable = fd;
    }
    object_release(&allocation->object);
    return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                        CUmemAllocationHandleType type)
{
    ENTER(cuMemImportFromShareableHandle, NEED_INIT);
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    struct allocation_header header;
    int theirs = (int)(intptr_t)os_handle;
    if (!allocation_identify(theirs, &header))
        return refuse(CUDA_ERROR_INVALID_VALUE, "descriptor %d is no exported handle", theirs);
    if (header.multicast && !settings.multicast) return CUDA_ERROR_NOT_SUPPORTED;
    int fd = descriptor_dup(theirs);
    if (fd < 0) return refuse(CUDA_ERROR_OPERATING_SYSTEM, "dup: %s", strerror(errno));
    struct allocation *allocation = wrap(fd, &header, 1);
    if (!allocation) {
        descriptor_close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = header.multicast ? multicast_open(allocation, NULL) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) return allocation_publish(allocation, handle);
    object_release(&allocation->object);
    return result;
}
