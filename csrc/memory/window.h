/* The symmetric window: the same number of bytes of device memory on every rank, reached through a
 * mapping of one's own, one of each peer, and (where the switch allows) one of all at once.
 *
 * Layout: [signals | staging slot | two one-shot slots | boxes for packets | heap], the same on
 * every rank. */
#ifndef SMFAR_MEMORY_WINDOW_H
#define SMFAR_MEMORY_WINDOW_H

#include "../bootstrap/exchange.h"
#include "../driver/driver.h"
#include "heap.h"
#include "multicast.h"
#include "vmm.h"

struct window {
    struct driver *driver;
    CUdevice device;
    int rank, ranks;
    size_t bytes;
    vmm_handle handle[SMFAR_MAX_RANKS]; /* of every rank's memory; mine is the original */
    CUdeviceptr peer[SMFAR_MAX_RANKS];  /* where it is mapped here */
    struct multicast_window multicast;  /* .base is 0 without multicast */
    size_t slot, slot_bytes;            /* the staging slot's offset and size */
    size_t oneshot, oneshot_bytes;      /* the first one-shot slot's offset, and the size of each */
    size_t push, push_box; /* the first box's offset, and the size of each: two for every rank */
    struct heap heap;
};

/* Of all boxes for packets. */
static inline size_t window_push_bytes(const struct window *window)
{
    return 2 * (size_t)window->ranks * window->push_box;
}

/* Where the staging slot begins; the signals lie before it. */
enum { WINDOW_SLOT = 65536 };

/* Collective. Rounds `bytes` up to the granularity; the staging slot takes `slot_bytes` of them,
 * each one-shot slot `oneshot_bytes`, and each box takes `push_bytes` of data, twice as large as
 * packets; multiples of 128, and of 512 the last. */
enum smfar_status window_create(struct driver *driver, struct exchange *exchange, CUdevice device,
                                size_t bytes, size_t slot_bytes, size_t oneshot_bytes,
                                size_t push_bytes, struct window **window_out);

/* Collective: adds the multicast mapping. A failure leaves the window as it was, on every rank. */
enum smfar_status window_add_multicast(struct window *window, struct exchange *exchange);
void window_drop_multicast(struct window *window);

void window_destroy(struct window *window);

/* 1 when [ptr, ptr + bytes) lies inside one range of the window's heap: its offset then. */
int window_offset(struct window *window, const void *ptr, size_t bytes, size_t *offset_out);

#endif
