/* Host memory that was registered, and what kind of memory a pointer is. Every virtual GPU can
 * reach all host memory; registration is kept because the driver's rules ask for it. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft_internal.h"

struct registration {
    struct registration *next;
    uint64_t begin, end;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct registration *registrations;

/* The registration that touches [begin, end). Lock held. */
static struct registration *find(uint64_t begin, uint64_t end)
{
    struct registration *found = registrations;
    while (found && (end <= found->begin || found->end <= begin))
        found = found->next;
    return found;
}

int host_registered(uint64_t address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    struct registration *found = find(address, address + bytes);
    int inside = found && found->begin <= address && address + bytes <= found->end;
    pthread_mutex_unlock(&lock);
    return inside;
}

/* msync asks the kernel whether every page is there, and changes nothing. */
static int is_mapped(uint64_t begin, uint64_t end)
{
    uint64_t page = sysconf(_SC_PAGESIZE), first = begin / page * page;
    return msync((void *)(uintptr_t)first, end - first, MS_ASYNC) == 0;
}

static int is_host(struct device *device, uint64_t begin, uint64_t end)
{
    struct reader reader;
    reader_enter(&reader);
    const struct span *span = span_find(device, begin);
    int host = span->kind == SPAN_HOST && end <= span->range.end;
    reader_leave(&reader);
    return host && is_mapped(begin, end);
}

CUresult cuMemHostRegister(void *ptr, size_t size, unsigned int flags)
{
    ENTER(cuMemHostRegister, NEED_CONTEXT);
    uint64_t begin = (uintptr_t)ptr, end = begin + size;
    if (flags & ~(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP))
        return refuse(CUDA_ERROR_INVALID_VALUE, "host register: unknown flags 0x%x", flags);
    if (!ptr || !size || end < begin || !is_host(device_current(), begin, end))
        return refuse(CUDA_ERROR_INVALID_VALUE, "host register: no such host memory");
    struct registration *created = malloc(sizeof *created);
    if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    int taken = find(begin, end) != NULL;
    if (!taken) {
        *created = (struct registration){registrations, begin, end};
        registrations = created;
    }
    pthread_mutex_unlock(&lock);
    if (taken) {
        free(created);
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    held_add(HELD_RANGES, 1);
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *ptr)
{
    ENTER(cuMemHostUnregister, NEED_CONTEXT);
    pthread_mutex_lock(&lock);
    struct registration **link = &registrations;
    while (*link && (*link)->begin != (uintptr_t)ptr)
        link = &(*link)->next;
    struct registration *found = *link;
    if (found) *link = found->next;
    pthread_mutex_unlock(&lock);
    if (!found) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    free(found);
    held_add(HELD_RANGES, -1);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *device_ptr, void *ptr, unsigned int flags)
{
    ENTER(cuMemHostGetDevicePointer, NEED_CONTEXT);
    if (!device_ptr || !ptr || flags) return CUDA_ERROR_INVALID_VALUE;
    if (!host_registered((uintptr_t)ptr, 1))
        return refuse(CUDA_ERROR_INVALID_VALUE, "host memory that is not registered");
    *device_ptr = (uintptr_t)ptr;
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    ENTER(cuPointerGetAttribute, NEED_CONTEXT);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    struct reader reader;
    reader_enter(&reader);
    const struct span *span = span_find(device_current(), ptr);
    enum span_kind kind = span->kind;
    int device = span->device;
    reader_leave(&reader);
    int registered = kind == SPAN_HOST && host_registered(ptr, 1);
    if (kind == SPAN_NOTHING || (kind == SPAN_HOST && !registered)) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned *)value = registered ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)value = device >= 0 ? device : device_current()->ordinal;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
