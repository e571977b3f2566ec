/* The symmetric window: the same number of bytes of device memory on every rank, reached through a
 * mapping of one's own, one of each peer, and (where the switch allows) one of all at once.
 *
 * Layout: [signals | staging slot | two one-shot slots | boxes for packets | the same slots and
 * boxes for graphs | heap], the same on every rank. */
#ifndef SMFAR_MEMORY_WINDOW_H
#define SMFAR_MEMORY_WINDOW_H

#include "../bootstrap/exchange.h"
#include "../driver/driver.h"
#include "heap.h"
#include "multicast.h"
#include "vmm.h"

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
    size_t bytes;
    vmm_handle handle[SMFAR_MAX_RANKS]; /* of every rank's memory; mine is the original */
    CUdeviceptr peer[SMFAR_MAX_RANKS];  /* where it is mapped here */
    struct multicast_window multicast;  /* .base is 0 without multicast */
    size_t slot, slot_bytes;            /* the staging slot's offset and size */
    struct window_channel called, replayed;
    struct heap heap;
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

/* Collective: adds the multicast mapping. A failure leaves the window as it was, on every rank. */
enum smfar_status window_add_multicast(struct window *window, struct exchange *exchange);
void window_drop_multicast(struct window *window);

void window_destroy(struct window *window);

/* 1 when [ptr, ptr + bytes) lies inside one range of the window's heap: its offset then. */
int window_offset(struct window *window, const void *ptr, size_t bytes, size_t *offset_out);

#endif
