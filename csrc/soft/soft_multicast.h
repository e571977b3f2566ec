/* A multicast object's state in the page that every process shares which holds the object. For
 * soft_multicast.c, which changes it, and soft_copies.c, which maps what was bound. */
#ifndef SMFAR_SOFT_MULTICAST_H
#define SMFAR_SOFT_MULTICAST_H

#include "soft_internal.h"

/* One device's memory behind one range of the object. `live` is written last and cleared first, so
 * that a process killed while it changes a bind leaves none half made. */
struct bind {
    atomic_int live;
    int slot;        /* of the device, in struct shared */
    uint64_t serial; /* never used again in this object */
    uint64_t offset, size, memory_offset;
    unsigned char memory_id[OBJECT_ID_BYTES];
    int pid, fd;    /* where the memory's descriptor can be opened; fd -1: no longer */
    uint64_t owner; /* the local object through which it was bound */
};

struct shared {
    pthread_mutex_t lock; /* robust, shared between processes */
    uint64_t size;
    unsigned num_devices;
    atomic_uint added;
    int devices[PTX_MAX_COPIES]; /* ordinals, in the order they were added */
    atomic_uint generation;      /* of the binds */
    uint64_t last_serial;
    unsigned bind_end; /* no live bind at or above */
    struct bind binds[MAX_BINDS];
};

/* A bind's memory, mapped here. */
struct view {
    struct view *next;
    uint64_t serial;
    unsigned char *base;
    size_t size;
};

/* What this process knows of an object, one per import. */
struct multicast {
    struct shared *shared;
    uint64_t owner;
    struct view *views; /* under the memory lock */
};

/* 0, or -1 when the lock could not be had for settings.block_ms. A holder that was killed is
 * recovered from. */
int shared_lock(struct shared *shared);
void shared_unlock(struct shared *shared);
/* Unmaps all. */
void views_close(struct multicast *multicast);

#endif
