/* Collectives that only move data: one loop over chunks for all of them. Bytes are moved, so every
 * type is served. */
#ifndef SMFAR_COLLECTIVES_MOVE_H
#define SMFAR_COLLECTIVES_MOVE_H

#include "collectives.h"

/* What this rank puts into the others' staging slots, and takes out of its own: the call's count
 * per pair of ranks, or a size of its own for each. */
struct move {
    const char *everyone;            /* what every rank gets of me, or NULL */
    const char *to[SMFAR_MAX_RANKS]; /* else what rank r gets of me; NULL: nothing */
    char *from[SMFAR_MAX_RANKS];     /* where rank r's data go here; NULL: nowhere */
    int sender;                      /* the only rank that sends, or EVERY_RANK */
    int uneven;                      /* then with EVERY_RANK: */
    size_t to_bytes[SMFAR_MAX_RANKS], from_bytes[SMFAR_MAX_RANKS];
};
enum { EVERY_RANK = -1 };

/* From the plan to channel_end. What is mine of myself is copied too. */
enum smfar_status move_enqueue(struct call *call, const struct move *move);

/* The same, planned for a kernel that pulls. */
enum smfar_status pull_enqueue(struct call *call, const struct planned *planned,
                               const struct move *move);

#endif
