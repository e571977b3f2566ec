/* One piece of every rank's memory, mapped in the ranks' views of a window. */
#ifndef SMFAR_MEMORY_SEGMENT_H
#define SMFAR_MEMORY_SEGMENT_H

#include "../bootstrap/exchange.h"
#include "multicast.h"
#include "vmm.h"

struct window;

struct segment {
    struct segment *next;
    size_t at[SMFAR_MAX_RANKS];         /* where it begins in rank r's view */
    size_t bytes[SMFAR_MAX_RANKS];      /* of rank r's piece; 0: it has none */
    vmm_handle handle[SMFAR_MAX_RANKS]; /* mine is the original */
    uint32_t mapped;                    /* a bit for each rank */
    struct multicast_window multicast;
};

/* A segment whose pieces all have `bytes` and begin at `at`; NULL without memory. */
struct segment *segment_new(size_t at, size_t bytes);

/* Collective. Maps every rank's piece, mine from its handle, the others' from descriptors. `status`
 * is what has become of this rank's part so far, and `step` names that. The caller drops the
 * segment after a failure. */
enum smfar_status segment_share(struct window *window, struct exchange *exchange,
                                enum smfar_status status, const char *step,
                                struct segment *segment);

/* Unmaps and frees this segment and all that follow it. NULL is allowed. */
void segment_drop(struct window *window, struct segment *segment);

#endif
