/* Multicast objects: the team of devices and what each has bound, in memory that all processes
 * share which hold the object, and the driver's rules for changing that. Mapping the copies is left
 * to soft_copies.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "soft_multicast.h"

int shared_lock(struct shared *shared)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += settings.block_ms / 1000 + 1;
    int error = pthread_mutex_timedlock(&shared->lock, &deadline);
    if (error == EOWNERDEAD) return pthread_mutex_consistent(&shared->lock);
    return error ? -1 : 0;
}

void shared_unlock(struct shared *shared) { pthread_mutex_unlock(&shared->lock); }

size_t multicast_state_bytes(void)
{
    size_t page = 4096;
    return (sizeof(struct shared) + page - 1) / page * page;
}

size_t multicast_size(const struct multicast *multicast) { return multicast->shared->size; }

const atomic_uint *multicast_generation(const struct multicast *multicast)
{
    return &multicast->shared->generation;
}

static int initialise(struct shared *shared, const CUmulticastObjectProp *prop)
{
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes) != 0) return -1;
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    int error = pthread_mutex_init(&shared->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    shared->size = prop->size;
    shared->num_devices = prop->numDevices;
    return error;
}

CUresult multicast_open(struct allocation *allocation, const CUmulticastObjectProp *create)
{
    static atomic_ullong last_owner;
    struct multicast *multicast = calloc(1, sizeof *multicast);
    if (!multicast) return CUDA_ERROR_OUT_OF_MEMORY;
    multicast->shared =
        mmap(NULL, multicast_state_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, allocation->fd, 0);
    if (multicast->shared == MAP_FAILED) {
        free(multicast);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    multicast->owner = (uint64_t)getpid() << 32 | (uint32_t)(atomic_fetch_add(&last_owner, 1) + 1);
    allocation->multicast = multicast; /* closed with the allocation from here on */
    if (create && initialise(multicast->shared, create) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
    return CUDA_SUCCESS;
}

void multicast_close(struct multicast *multicast)
{
    struct shared *shared = multicast->shared;
    views_close(multicast);
    if (shared_lock(shared) == 0) {
        for (unsigned i = 0; i < shared->bind_end; i++) {
            struct bind *bind = &shared->binds[i];
            if (!bind->live || bind->owner != multicast->owner || bind->fd < 0) continue;
            descriptor_close(bind->fd);
            bind->fd = -1;
        }
        shared_unlock(shared);
    }
    munmap(shared, multicast_state_bytes());
    free(multicast);
}

CUresult multicast_wait_devices(struct multicast *multicast)
{
    struct shared *shared = multicast->shared;
    uint64_t deadline = now_ns() + settings.block_ms * 1000000ull;
    for (unsigned nap = 50; atomic_load(&shared->added) < shared->num_devices;
         nap = nap < 1000 ? 2 * nap : nap) {
        if (atomic_load(&soft_stopping)) return CUDA_ERROR_DEINITIALIZED;
        if (now_ns() > deadline)
            return refuse(CUDA_ERROR_SYSTEM_NOT_READY, "multicast: %u of %u devices were added",
                          atomic_load(&shared->added), shared->num_devices);
        nap_us(nap);
    }
    return CUDA_SUCCESS;
}

/* ---- creating ---- */

static CUresult check_prop(const CUmulticastObjectProp *prop)
{
    if (!settings.multicast) return CUDA_ERROR_NOT_SUPPORTED;
    if (!prop || prop->flags || !prop->numDevices || prop->numDevices > (unsigned)settings.devices)
        return refuse(CUDA_ERROR_INVALID_VALUE, "multicast: bad number of devices, or flags");
    if (prop->handleTypes & CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
    if (prop->handleTypes & ~(unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                   CUmulticastGranularity_flags option)
{
    ENTER(cuMulticastGetGranularity, NEED_INIT);
    CUresult result = check_prop(prop);
    if (result != CUDA_SUCCESS) return result;
    if (!granularity || (option != CU_MULTICAST_GRANULARITY_MINIMUM &&
                         option != CU_MULTICAST_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
    ENTER(cuMulticastCreate, NEED_INIT);
    CUresult result = check_prop(prop);
    if (result != CUDA_SUCCESS) return result;
    if (!handle || !prop->size || prop->size % GRANULARITY)
        return refuse(CUDA_ERROR_INVALID_VALUE, "multicast: size is no multiple of 2 MiB");
    struct allocation *allocation;
    result = allocation_create(multicast_state_bytes(), -1, prop->handleTypes != 0, 1, &allocation);
    if (result != CUDA_SUCCESS) return result;
    result = multicast_open(allocation, prop);
    if (result == CUDA_SUCCESS) return allocation_publish(allocation, handle);
    object_release(&allocation->object);
    return result;
}

/* ---- the team ---- */

static int find_slot(const struct shared *shared, int device)
{
    for (unsigned i = 0; i < atomic_load(&shared->added); i++)
        if (shared->devices[i] == device) return i;
    return -1;
}

static CUresult add_device(struct shared *shared, int device)
{
    unsigned added = atomic_load(&shared->added);
    if (find_slot(shared, device) >= 0)
        return refuse(CUDA_ERROR_INVALID_VALUE, "multicast: device %d was added before", device);
    if (added == shared->num_devices)
        return refuse(CUDA_ERROR_INVALID_VALUE, "multicast: all %u devices were added", added);
    shared->devices[added] = device;
    atomic_store(&shared->added, added + 1);
    return CUDA_SUCCESS;
}

/* The allocation of a multicast handle, retained; NULL for any other handle. */
static struct allocation *get_multicast(CUmemGenericAllocationHandle handle)
{
    struct allocation *allocation = allocation_get(handle);
    if (allocation && allocation->multicast) return allocation;
    if (allocation) object_release(&allocation->object);
    return NULL;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
    ENTER(cuMulticastAddDevice, NEED_INIT);
    if (!settings.multicast) return CUDA_ERROR_NOT_SUPPORTED;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct allocation *object = get_multicast(handle);
    if (!object) return refuse(CUDA_ERROR_INVALID_VALUE, "multicast: no such object");
    struct shared *shared = object->multicast->shared;
    CUresult result = CUDA_ERROR_SYSTEM_NOT_READY;
    if (shared_lock(shared) == 0) {
        result = add_device(shared, device);
        shared_unlock(shared);
    }
    object_release(&object->object);
    return result;
}

/* ---- binding ---- */

static CUresult check_range(size_t offset, size_t size, size_t limit, const char *what)
{
    if (offset % GRANULARITY || size % GRANULARITY || !size)
        return refuse(CUDA_ERROR_INVALID_VALUE, "multicast: %s: not multiples of 2 MiB", what);
    if (offset > limit || size > limit - offset)
        return refuse(CUDA_ERROR_INVALID_VALUE, "multicast: %s: past the end", what);
    return CUDA_SUCCESS;
}

static CUresult check_bind(const struct allocation *object, size_t offset,
                           const struct allocation *memory, size_t memory_offset, size_t size)
{
    if (memory->multicast) return refuse(CUDA_ERROR_INVALID_VALUE, "multicast: not memory");
    if (object->shareable && !memory->shareable)
        return refuse(CUDA_ERROR_INVALID_VALUE, "multicast: memory of a shareable object must be");
    CUresult result = check_range(offset, size, multicast_size(object->multicast), "object");
    if (result == CUDA_SUCCESS) result = check_range(memory_offset, size, memory->size, "memory");
    return result;
}

/* The kernel gives back the memory of a process that died; so are its binds. */
static int process_is_dead(int pid) { return kill(pid, 0) != 0 && errno == ESRCH; }

static void end_bind(struct shared *shared, struct bind *bind)
{
    atomic_store(&bind->live, 0);
    atomic_fetch_add(&shared->generation, 1);
}

/* A free entry, or NULL with the reason in *result when this range is bound or all are taken. */
static struct bind *claim_bind(struct shared *shared, int slot, size_t offset, size_t size,
                               CUresult *result)
{
    struct bind *unused = NULL;
    for (unsigned i = 0; i < MAX_BINDS; i++) {
        struct bind *bind = &shared->binds[i];
        int overlaps = atomic_load(&bind->live) && bind->slot == slot &&
                       offset < bind->offset + bind->size && bind->offset < offset + size;
        if (overlaps && !process_is_dead(bind->pid)) {
            *result = refuse(CUDA_ERROR_INVALID_VALUE, "multicast: the device bound that before");
            return NULL;
        }
        if (overlaps) end_bind(shared, bind);
        if (!unused && !atomic_load(&bind->live)) unused = bind;
    }
    if (!unused) *result = refuse(CUDA_ERROR_OUT_OF_MEMORY, "multicast: too many binds");
    return unused;
}

static CUresult publish_bind(struct multicast *multicast, int slot, const struct bind *wanted,
                             const struct allocation *memory)
{
    struct shared *shared = multicast->shared;
    CUresult result = CUDA_SUCCESS;
    struct bind *bind = claim_bind(shared, slot, wanted->offset, wanted->size, &result);
    if (!bind) return result;
    int fd = descriptor_dup(memory->fd);
    if (fd < 0) return refuse(CUDA_ERROR_OPERATING_SYSTEM, "dup: %s", strerror(errno));
    bind->slot = slot;
    bind->serial = ++shared->last_serial;
    bind->offset = wanted->offset;
    bind->size = wanted->size;
    bind->memory_offset = wanted->memory_offset;
    memcpy(bind->memory_id, memory->id, OBJECT_ID_BYTES);
    bind->pid = getpid();
    bind->fd = fd;
    bind->owner = multicast->owner;
    unsigned end = bind - shared->binds + 1;
    if (end > shared->bind_end) shared->bind_end = end;
    atomic_store(&bind->live, 1);
    atomic_fetch_add(&shared->generation, 1);
    return CUDA_SUCCESS;
}

static CUresult bind_memory(struct multicast *multicast, const struct bind *wanted,
                            const struct allocation *memory)
{
    struct shared *shared = multicast->shared;
    int slot = find_slot(shared, memory->device);
    if (slot < 0)
        return refuse(CUDA_ERROR_INVALID_VALUE,
                      "multicast: memory of device %d, which is not "
                      "in the team",
                      memory->device);
    if (shared_lock(shared) != 0) return CUDA_ERROR_SYSTEM_NOT_READY;
    CUresult result = publish_bind(multicast, slot, wanted, memory);
    shared_unlock(shared);
    return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t mc_offset,
                            CUmemGenericAllocationHandle memory_handle, size_t mem_offset,
                            size_t size, unsigned long long flags)
{
    ENTER(cuMulticastBindMem, NEED_INIT);
    if (!settings.multicast) return CUDA_ERROR_NOT_SUPPORTED;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    struct allocation *object = get_multicast(handle), *memory = allocation_get(memory_handle);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (object && memory)
        result = check_bind(object, mc_offset, memory, mem_offset, size);
    else
        refuse(result, "multicast: bind: no such object or memory");
    if (result == CUDA_SUCCESS) result = multicast_wait_devices(object->multicast);
    struct bind wanted = {.offset = mc_offset, .size = size, .memory_offset = mem_offset};
    if (result == CUDA_SUCCESS) result = bind_memory(object->multicast, &wanted, memory);
    if (object) object_release(&object->object);
    if (memory) object_release(&memory->object);
    return result;
}

static CUresult unbind(struct shared *shared, int slot, size_t offset, size_t size)
{
    for (unsigned i = 0; i < shared->bind_end; i++) {
        struct bind *bind = &shared->binds[i];
        if (!atomic_load(&bind->live) || bind->slot != slot) continue;
        if (bind->offset != offset || bind->size != size) continue;
        end_bind(shared, bind);
        if (bind->pid == getpid() && bind->fd >= 0) descriptor_close(bind->fd);
        return CUDA_SUCCESS;
    }
    return refuse(CUDA_ERROR_INVALID_VALUE, "multicast: unbind of what no bind had made");
}

/* Of memory that another process bound, the descriptor stays open there until that process lets go
 * of the object. */
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t mc_offset,
                           size_t size)
{
    ENTER(cuMulticastUnbind, NEED_INIT);
    if (!settings.multicast) return CUDA_ERROR_NOT_SUPPORTED;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct allocation *object = get_multicast(handle);
    if (!object) return refuse(CUDA_ERROR_INVALID_VALUE, "multicast: no such object");
    struct shared *shared = object->multicast->shared;
    CUresult result = check_range(mc_offset, size, shared->size, "object");
    int slot = find_slot(shared, device);
    if (result == CUDA_SUCCESS && slot < 0) result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS && shared_lock(shared) != 0)
        result = CUDA_ERROR_SYSTEM_NOT_READY;
    else if (result == CUDA_SUCCESS) {
        result = unbind(shared, slot, mc_offset, size);
        shared_unlock(shared);
    }
    object_release(&object->object);
    return result;
}
