/* Handles of the software switch: numbers that are never used twice, so that a handle used after
 * its end is found out, and reference counts, so that what a call works on outlives the call. Not
 * concerned with what the objects are. */
#include <stdlib.h>
#include <string.h>

#include "soft_internal.h"

/* Handles grow, so the array is sorted by them. They look like no address a caller has. */
static const uintptr_t first_handle = 0x5f0000000010, handle_step = 0x10;
static struct {
    pthread_mutex_t lock;
    struct object **objects;
    size_t count, capacity;
    uintptr_t last;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

void *object_create(size_t size, enum object_kind kind, struct device *device,
                    void (*destroy)(struct object *object))
{
    struct object *object = calloc(1, size);
    if (!object) return NULL;
    object->kind = kind;
    object->device = device;
    object->destroy = destroy;
    atomic_init(&object->refs, 1);
    return object;
}

void object_retain(struct object *object)
{
    atomic_fetch_add_explicit(&object->refs, 1, memory_order_relaxed);
}

void object_release(struct object *object)
{
    if (object && atomic_fetch_sub_explicit(&object->refs, 1, memory_order_acq_rel) == 1)
        object->destroy(object);
}

static int grow(void)
{
    if (registry.count < registry.capacity) return 1;
    size_t capacity = registry.capacity ? 2 * registry.capacity : 64;
    struct object **objects = realloc(registry.objects, capacity * sizeof *objects);
    if (!objects) return 0;
    registry.objects = objects;
    registry.capacity = capacity;
    return 1;
}

uintptr_t object_publish(struct object *object)
{
    uintptr_t handle = 0;
    pthread_mutex_lock(&registry.lock);
    if (grow()) {
        handle = registry.last ? registry.last + handle_step : first_handle;
        registry.last = object->handle = handle;
        registry.objects[registry.count++] = object;
    }
    pthread_mutex_unlock(&registry.lock);
    return handle;
}

/* The index of the first object whose handle is at least this. */
static size_t lower_bound(uintptr_t handle)
{
    size_t low = 0, high = registry.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (registry.objects[middle]->handle < handle)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void *find(uintptr_t handle, enum object_kind kind, int withdraw)
{
    struct object *object = NULL;
    pthread_mutex_lock(&registry.lock);
    size_t at = lower_bound(handle);
    if (at < registry.count && registry.objects[at]->handle == handle &&
        registry.objects[at]->kind == kind) {
        object = registry.objects[at];
        if (!withdraw)
            object_retain(object);
        else {
            registry.count--;
            memmove(&registry.objects[at], &registry.objects[at + 1],
                    (registry.count - at) * sizeof *registry.objects);
        }
    }
    pthread_mutex_unlock(&registry.lock);
    return object;
}

void *object_get(uintptr_t handle, enum object_kind kind) { return find(handle, kind, 0); }

void *object_withdraw(uintptr_t handle, enum object_kind kind) { return find(handle, kind, 1); }

void *object_next(struct device *device, enum object_kind kind, uintptr_t after)
{
    struct object *object = NULL;
    pthread_mutex_lock(&registry.lock);
    for (size_t i = lower_bound(after + 1); i < registry.count && !object; i++)
        if (registry.objects[i]->kind == kind && registry.objects[i]->device == device)
            object = registry.objects[i];
    if (object) object_retain(object);
    pthread_mutex_unlock(&registry.lock);
    return object;
}
