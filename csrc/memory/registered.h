/* Memory of other allocators that collectives reach without staging: what cuMemCreate has made,
 * with a handle that can be shared, is mapped a second time, in every rank's view of a window. What
 * lies there is used by its address in this rank's own view (registered_view).
 *
 * The switch does not reach it. Where there is a multicast view, ranks therefore have their memory
 * at places of their own, so that nothing takes them for one place in all views. */
#ifndef SMFAR_MEMORY_REGISTERED_H
#define SMFAR_MEMORY_REGISTERED_H

#include "window.h"

/* Collective. Registers every rank's [ptr, ptr + bytes), in whole allocations of the driver's;
 * those of a rank may lie in the window, or in memory that is registered already, and then are not
 * mapped again: that memory stays until this registration, too, has been dropped. *id_out becomes a
 * number that is the same on every rank, or 0 when every rank's lie in the window. A failure leaves
 * the window as it was, on every rank. */
enum smfar_status registered_add(struct window *window, struct exchange *exchange, const void *ptr,
                                 size_t bytes, uint64_t *id_out);

/* 1 when there is one of this number that has not been dropped. */
int registered_there(const struct window *window, uint64_t id);

/* Ends it, and unmaps here what no other registration lies in; by then no rank may use it. */
void registered_drop(struct window *window, uint64_t id);
void registered_drop_all(struct window *window);

/* Where [ptr, ptr + bytes) lies in my view, if it is registered memory; else `ptr`. Of what has
 * been dropped, the driver's allocations count in which another registration lies: others are their
 * owner's to free, and other memory may be at their addresses. */
void *registered_view(const struct window *window, const void *ptr, size_t bytes);

/* 1 when these bytes of my view are registered memory of mine. */
int registered_holds(const struct window *window, size_t offset, size_t bytes);

/* Bytes of this rank's memory that are registered. */
size_t registered_bytes(const struct window *window);

#endif
