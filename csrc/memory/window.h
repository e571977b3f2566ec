/* The symmetric window: the same number of bytes of device memory on every rank, reached through a
 * view of one's own, one of each peer, and (where the switch allows) one of all at once.
 *
 * A view is address space, much more of it than there is memory at first. The window can therefore
 * grow, and take in memory that other allocators have made (registered.h): whatever is added lies
 * at places that the ranks agree on, the same in every rank's view of the same rank, so that an
 * offset is all that a kernel or a copy has to know of a place.
 *
 * Layout of a view: [signals | staging slot | two one-shot slots | boxes for packets | the same
 * slots and boxes for graphs | heap | room for the heap to grow | room for registered memory]. */
#ifndef SMFAR_MEMORY_WINDOW_H
#define SMFAR_MEMORY_WINDOW_H

#include <pthread.h>

#include "../bootstrap/exchange.h"
#include "../driver/driver.h"
#include "heap.h"
#include "segment.h"

/* What one kind of collective has for itself, as offsets in the window: those that are called, and
 * those that graphs replay, which may run at the same time. */
struct window_channel {
    size_t signals, slot;
    size_t oneshot, oneshot_bytes; /* the first one-shot slot, and the size of each */
    size_t push, push_box; /* the first box for packets, and the size of each: two per rank */
};

struct window {
    struct driver *driver;
    CUdevice device;
    int rank, ranks;
    size_t bytes;             /* of each rank's memory here; registered memory is not counted */
    size_t granularity, span; /* of memory; and the address space of a view */
    CUdeviceptr peer[SMFAR_MAX_RANKS]; /* the views here */
    CUdeviceptr multicast;             /* the view of all; 0 without multicast */
    size_t slot, slot_bytes;           /* the staging slot's offset and size */
    struct window_channel called, replayed;
    struct segment *segments; /* the window's memory */

    pthread_mutex_t lock; /* held briefly, by whoever changes the next two or `bytes`, and by who
                           * reads them while others may do so */
    struct heap heap;
    struct registered *registered; /* newest first */
    struct heap room;              /* for registered memory */
    uint64_t registrations;        /* so far: the same on every rank */
};

/* Where the staging slot begins; the signals lie before it. */
enum { WINDOW_SLOT = 65536, WINDOW_REPLAYED_SIGNALS = 32768 };

/* The bytes of each part; multiples of 128, and of 512 the last. */
struct window_parts {
    size_t slot_bytes;
    size_t oneshot_bytes; /* of each of two slots */
    size_t push_bytes;    /* what each box takes; as packets that is twice as much */
};

/* Collective. Rounds `bytes` up to the granularity; `called` and `replayed` say how much of them
 * is for collectives that are called, and for those that graphs replay. */
enum smfar_status window_create(struct driver *driver, struct exchange *exchange, CUdevice device,
                                size_t bytes, const struct window_parts *called,
                                const struct window_parts *replayed, struct window **window_out);

/* Collective: adds the multicast view. A failure leaves the window as it was, on every rank. */
enum smfar_status window_add_multicast(struct window *window, struct exchange *exchange);
void window_drop_multicast(struct window *window);

/* Collective: `bytes` more, rounded up, at the heap's end. A failure leaves the window as it was,
 * on every rank. */
enum smfar_status window_grow(struct window *window, struct exchange *exchange, size_t bytes);

void window_destroy(struct window *window);

/* 1 when [ptr, ptr + bytes) lies inside one range of the window's heap, or of registered memory as
 * my view has it: its offset then. */
int window_offset(struct window *window, const void *ptr, size_t bytes, size_t *offset_out);

#endif
