/* The address space of the software switch: reservations, mappings, access, and the small blocks of
 * cuMemAlloc. A device address is a host address of this process. What an address means to a device
 * is looked up in soft_table.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "soft_internal.h"

struct region *regions;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void memory_lock(void) { pthread_mutex_lock(&lock); }
void memory_unlock(void) { pthread_mutex_unlock(&lock); }

static struct region *find_region(uint64_t address, uint64_t size)
{
    for (struct region *region = regions; region; region = region->next)
        if (address >= region->begin && address < region->end)
            return size <= region->end - address ? region : NULL;
    return NULL;
}

static void insert_region(struct region *region)
{
    struct region **link = &regions;
    while (*link && (*link)->begin < region->begin)
        link = &(*link)->next;
    region->next = *link;
    *link = region;
}

static void remove_region(struct region *region)
{
    struct region **link = &regions;
    while (*link != region)
        link = &(*link)->next;
    *link = region->next;
}

static int is_multiple(uint64_t value) { return value % GRANULARITY == 0; }

/* Inaccessible address space, aligned; 0 when there is none. */
static uint64_t reserve(size_t size, size_t alignment, uint64_t hint)
{
    size_t span = size + alignment;
    char *base = mmap((void *)(uintptr_t)hint, span, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return 0;
    uintptr_t begin = ((uintptr_t)base + alignment - 1) & ~(uintptr_t)(alignment - 1);
    if (begin > (uintptr_t)base) munmap(base, begin - (uintptr_t)base);
    size_t tail = (uintptr_t)base + span - (begin + size);
    if (tail) munmap((void *)(begin + size), tail);
    return begin;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags)
{
    ENTER(cuMemAddressReserve, NEED_INIT);
    if (!ptr || !size || flags || !is_multiple(size) || (alignment & (alignment - 1)))
        return refuse(CUDA_ERROR_INVALID_VALUE, "reserve: bad size, alignment or flags");
    if (alignment < GRANULARITY) alignment = GRANULARITY;
    struct region *region = calloc(1, sizeof *region);
    if (!region) return CUDA_ERROR_OUT_OF_MEMORY;
    region->begin = reserve(size, alignment, hint);
    if (!region->begin) {
        free(region);
        return refuse(CUDA_ERROR_OUT_OF_MEMORY, "reserve: %s", strerror(errno));
    }
    region->end = region->begin + size;
    region->device = -1;
    memory_lock();
    insert_region(region);
    table_rebuild(NULL);
    memory_unlock();
    held_add(HELD_RANGES, 1);
    *ptr = region->begin;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    ENTER(cuMemAddressFree, NEED_INIT);
    CUresult result = CUDA_SUCCESS;
    memory_lock();
    struct region *region = find_region(ptr, size);
    if (!region || region->device >= 0 || region->begin != ptr || region->end - ptr != size)
        result = refuse(CUDA_ERROR_INVALID_VALUE, "address free: not one whole reservation");
    else if (region->mappings)
        result = refuse(CUDA_ERROR_INVALID_VALUE, "address free: still mapped");
    else {
        remove_region(region);
        table_rebuild(NULL);
        munmap((void *)(uintptr_t)ptr, size);
        free(region);
        held_add(HELD_RANGES, -1);
    }
    memory_unlock();
    return result;
}

/* ---- mappings ---- */

static int overlaps_mapping(const struct region *region, uint64_t begin, uint64_t end)
{
    for (const struct mapping *mapping = region->mappings; mapping; mapping = mapping->next)
        if (begin < mapping->end && mapping->begin < end) return 1;
    return 0;
}

static size_t mappable_bytes(const struct allocation *allocation)
{
    return allocation->multicast ? multicast_size(allocation->multicast) : allocation->size;
}

static CUresult check_map(const struct allocation *allocation, CUdeviceptr ptr, size_t size,
                          size_t offset)
{
    if (!size || !is_multiple(ptr) || !is_multiple(size) || !is_multiple(offset))
        return refuse(CUDA_ERROR_INVALID_VALUE, "map: not a multiple of the granularity");
    if (offset && !allocation->multicast)
        return refuse(CUDA_ERROR_INVALID_VALUE, "map: the offset into memory must be zero");
    size_t limit = mappable_bytes(allocation);
    if (offset > limit || size > limit - offset)
        return refuse(CUDA_ERROR_INVALID_VALUE, "map: past the end of the allocation");
    return CUDA_SUCCESS;
}

/* Multicast addresses never become accessible to the host: there is no memory behind them. */
static int map_pages(const struct mapping *mapping)
{
    if (mapping->allocation->multicast) return 0;
    void *at = (void *)(uintptr_t)mapping->begin;
    return mmap(at, mapping->end - mapping->begin, PROT_NONE, MAP_SHARED | MAP_FIXED,
                mapping->allocation->fd, mapping->offset) == MAP_FAILED;
}

static void unmap_pages(uint64_t begin, uint64_t end)
{
    mmap((void *)(uintptr_t)begin, end - begin, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* Takes over the reference to mapping->allocation when it succeeds. */
static CUresult insert_mapping(struct mapping *mapping)
{
    struct region *region = find_region(mapping->begin, mapping->end - mapping->begin);
    if (!region || region->device >= 0)
        return refuse(CUDA_ERROR_INVALID_VALUE, "map: not inside one reservation");
    if (overlaps_mapping(region, mapping->begin, mapping->end))
        return refuse(CUDA_ERROR_INVALID_VALUE, "map: something is mapped there");
    if (map_pages(mapping) != 0)
        return refuse(CUDA_ERROR_OUT_OF_MEMORY, "map: %s", strerror(errno));
    struct mapping **link = &region->mappings;
    while (*link && (*link)->begin < mapping->begin)
        link = &(*link)->next;
    mapping->next = *link;
    *link = mapping;
    held_add(HELD_MAPPINGS, 1);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    ENTER(cuMemMap, NEED_INIT);
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    struct allocation *allocation = allocation_get(handle);
    if (!allocation) return refuse(CUDA_ERROR_INVALID_VALUE, "map: no such allocation handle");
    struct mapping *mapping = calloc(1, sizeof *mapping);
    CUresult result = mapping ? check_map(allocation, ptr, size, offset) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && allocation->multicast)
        result = multicast_wait_devices(allocation->multicast);
    if (result == CUDA_SUCCESS) {
        mapping->begin = ptr;
        mapping->end = ptr + size;
        mapping->allocation = allocation;
        mapping->offset = offset;
        memory_lock();
        result = insert_mapping(mapping);
        if (result == CUDA_SUCCESS) table_rebuild(NULL);
        memory_unlock();
    }
    if (result != CUDA_SUCCESS) {
        free(mapping);
        object_release(&allocation->object);
    }
    return result;
}

/* The first of the whole mappings that fill [ptr, ptr + size) without a gap, and the region they
 * are in; NULL when there are none such. Memory lock held. */
static struct mapping *find_run(uint64_t ptr, uint64_t size, struct region **region_out)
{
    struct region *region = size ? find_region(ptr, size) : NULL;
    struct mapping *first = region ? region->mappings : NULL;
    while (first && first->begin < ptr)
        first = first->next;
    uint64_t at = ptr;
    struct mapping *mapping = first;
    for (; mapping && mapping->begin == at && at < ptr + size; mapping = mapping->next)
        at = mapping->end;
    if (at != ptr + size) return NULL;
    *region_out = region;
    return first;
}

static void release_allocation(void *allocation)
{
    object_release(&((struct allocation *)allocation)->object);
}

/* Memory that an operation still uses here is pulled from under it, as on a device. */
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    ENTER(cuMemUnmap, NEED_INIT);
    struct region *region = NULL;
    memory_lock();
    struct mapping *first = find_run(ptr, size, &region), *after = first;
    if (!first) {
        memory_unlock();
        return refuse(CUDA_ERROR_INVALID_VALUE, "unmap: not a run of whole mappings");
    }
    while (after && after->begin < ptr + size)
        after = after->next;
    struct mapping **link = &region->mappings;
    while (*link != first)
        link = &(*link)->next;
    *link = after;
    table_rebuild(NULL);
    unmap_pages(ptr, ptr + size);
    memory_unlock();
    while (first != after) {
        struct mapping *next = first->next;
        /* running operations may read the copies and the generation of a multicast object */
        retire(release_allocation, first->allocation);
        free(first);
        held_add(HELD_MAPPINGS, -1);
        first = next;
    }
    return CUDA_SUCCESS;
}

/* ---- access ---- */

static CUresult check_access(const CUmemAccessDesc *access, size_t count)
{
    if (!access || !count) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
        if (!device_valid(access[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
        if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
            access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* The pages allow what any device may do; which device may is in the tables. */
static int protect_pages(const struct mapping *mapping)
{
    int any = 0;
    for (int i = 0; i < settings.devices; i++)
        any |= mapping->access[i];
    if (mapping->allocation->multicast) return 0;
    int protection = any & 2 ? PROT_READ | PROT_WRITE : any & 1 ? PROT_READ : PROT_NONE;
    return mprotect((void *)(uintptr_t)mapping->begin, mapping->end - mapping->begin, protection);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *access, size_t count)
{
    ENTER(cuMemSetAccess, NEED_INIT);
    CUresult result = check_access(access, count);
    if (result != CUDA_SUCCESS) return refuse(result, "set access: bad descriptor");
    struct region *region = NULL;
    memory_lock();
    struct mapping *mapping = find_run(ptr, size, &region);
    if (!mapping) result = refuse(CUDA_ERROR_INVALID_VALUE, "set access: not fully mapped");
    for (; mapping && mapping->begin < ptr + size; mapping = mapping->next) {
        for (size_t i = 0; i < count; i++)
            mapping->access[access[i].location.id] = access[i].flags;
        if (protect_pages(mapping) != 0) result = CUDA_ERROR_OPERATING_SYSTEM;
        if (result == CUDA_SUCCESS && mapping->allocation->multicast)
            result = multicast_open_copies(mapping->allocation->multicast, mapping->offset,
                                           mapping->offset + mapping->end - mapping->begin);
    }
    table_rebuild(NULL);
    memory_unlock();
    return result;
}

/* ---- what is at an address ---- */

/* The mapping that holds `address`, or NULL. Memory lock held. */
static struct mapping *find_mapping(uint64_t address)
{
    struct region *region = find_region(address, 1);
    struct mapping *mapping = region ? region->mappings : NULL;
    while (mapping && mapping->end <= address)
        mapping = mapping->next;
    return mapping && mapping->begin <= address ? mapping : NULL;
}

/* A further handle of the memory; its allocation stays until that is released, too. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *ptr)
{
    ENTER(cuMemRetainAllocationHandle, NEED_INIT);
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    memory_lock();
    struct mapping *mapping = find_mapping((uintptr_t)ptr);
    struct allocation *allocation = mapping ? mapping->allocation : NULL;
    if (allocation && allocation->multicast) allocation = NULL;
    if (allocation) object_retain(&allocation->object);
    memory_unlock();
    if (!allocation)
        return refuse(CUDA_ERROR_INVALID_VALUE, "retain: no memory of cuMemCreate is mapped there");
    return allocation_reopen(allocation, handle);
}

/* Of a block of cuMemAlloc, or of one mapping. */
CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    ENTER(cuMemGetAddressRange, NEED_CONTEXT);
    CUdeviceptr begin = 0, end = 0;
    memory_lock();
    struct region *region = find_region(ptr, 1);
    struct mapping *mapping = find_mapping(ptr);
    if (region && region->device >= 0 && ptr - region->begin < region->block_size) {
        begin = region->begin;
        end = begin + region->block_size;
    } else if (mapping) {
        begin = mapping->begin;
        end = mapping->end;
    }
    memory_unlock();
    if (!end) return refuse(CUDA_ERROR_NOT_FOUND, "address range: nothing is allocated there");
    if (base) *base = begin;
    if (size) *size = end - begin;
    return CUDA_SUCCESS;
}

/* ---- cuMemAlloc ---- */

CUresult cuMemAlloc(CUdeviceptr *ptr, size_t size)
{
    ENTER(cuMemAlloc, NEED_CONTEXT);
    if (!ptr || !size) return CUDA_ERROR_INVALID_VALUE;
    size_t page = sysconf(_SC_PAGESIZE);
    if (size / page > (size_t)sysconf(_SC_PHYS_PAGES)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct region *region = calloc(1, sizeof *region);
    if (!region) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t rounded = (size + page - 1) / page * page;
    char *base =
        mmap(NULL, rounded + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED || mprotect(base, rounded, PROT_READ | PROT_WRITE) != 0) {
        if (base != MAP_FAILED) munmap(base, rounded + page);
        free(region);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    region->begin = (uintptr_t)base;
    region->end = region->begin + rounded + page;
    region->device = device_current()->ordinal;
    region->block_size = size;
    memory_lock();
    insert_region(region);
    table_rebuild(NULL);
    memory_unlock();
    held_add(HELD_MAPPINGS, 1);
    *ptr = region->begin;
    return CUDA_SUCCESS;
}

static void free_block(struct region *region)
{
    remove_region(region);
    table_rebuild(NULL);
    munmap((void *)(uintptr_t)region->begin, region->end - region->begin);
    free(region);
}

/* The device of the block that begins here, or -1. */
static int block_device(CUdeviceptr ptr)
{
    memory_lock();
    struct region *region = find_region(ptr, 1);
    int device = region && region->begin == ptr ? region->device : -1;
    memory_unlock();
    return device;
}

/* As in the driver, waits for the device's queued work first. */
CUresult cuMemFree(CUdeviceptr ptr)
{
    ENTER(cuMemFree, NEED_CONTEXT);
    if (!ptr) return CUDA_SUCCESS;
    int device = block_device(ptr);
    if (device < 0) return refuse(CUDA_ERROR_INVALID_VALUE, "free: not an address of cuMemAlloc");
    streams_wait(&devices[device]);
    memory_lock();
    struct region *region = find_region(ptr, 1);
    int found = region && region->begin == ptr && region->device == device;
    if (found) free_block(region);
    memory_unlock();
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    held_add(HELD_MAPPINGS, -1);
    return CUDA_SUCCESS;
}

void memory_drop_blocks(int device)
{
    memory_lock();
    struct region *region = regions;
    while (region) {
        struct region *next = region->next;
        if (region->device == device) free_block(region);
        region = next;
    }
    memory_unlock();
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total)
{
    ENTER(cuMemGetInfo, NEED_CONTEXT);
    if (!free_bytes || !total) return CUDA_ERROR_INVALID_VALUE;
    size_t page = sysconf(_SC_PAGESIZE);
    *free_bytes = page * sysconf(_SC_AVPHYS_PAGES);
    *total = page * sysconf(_SC_PHYS_PAGES);
    return CUDA_SUCCESS;
}
