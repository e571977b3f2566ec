/* Multicast objects: second mappings of the ranks' windows through which one load returns a sum
 * over all of them and one store reaches all of them.
 *
 * The switch has few objects, so one object serves every group on the same set of ranks and
 * devices: it is larger than a window, and each group binds its windows at an offset of its own.
 * This is the only file that calls cuMulticast functions, and it calls none when multicast is
 * switched off or a device does not report it. */
#ifndef SMFAR_MEMORY_MULTICAST_H
#define SMFAR_MEMORY_MULTICAST_H

#include "../bootstrap/exchange.h"
#include "../driver/driver.h"
#include "vmm.h"

/* One group's share of an object. */
struct multicast_window {
    struct multicast_object *object; /* NULL: none */
    size_t offset, bytes;            /* in the object */
    int bound;
    CUdeviceptr base; /* where it is mapped; 0: nowhere */
};

/* Why this rank cannot use multicast, or NULL when it can as far as it knows. The words stay until
 * this thread's next failure. */
const char *multicast_unavailable(struct driver *driver, CUdevice device);

/* Collective; only when no rank has a reason against it. Every rank's `memory` (of `bytes`, on its
 * `device`) becomes one copy, and all of them are mapped at `base`, where address space is
 * reserved. On failure, on every rank alike, everything is undone. */
enum smfar_status multicast_create(struct driver *driver, struct exchange *exchange,
                                   CUdevice device, vmm_handle memory, size_t bytes,
                                   CUdeviceptr base, struct multicast_window *window_out);
void multicast_destroy(struct driver *driver, CUdevice device, struct multicast_window *window);

/* How many objects this process holds, and how many windows they serve. */
void multicast_count(int *objects_out, int *windows_out);

#endif
