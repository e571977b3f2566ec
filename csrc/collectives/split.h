/* Collectives in two halves, of which kernels do one and copy engines the other: all-reduces, and
 * those with RMSNorm, by split_mc and split_peer. A call goes in steps; in each every rank has a
 * part of its own to reduce, and does so leg by leg: one is copied while the next is reduced. The
 * streams meet before and after, so no multiprocessor is held while a rank is late.
 *
 * What a rank's part is, and what its kernel is told of rows, is the same whichever way data go. */
#ifndef SMFAR_COLLECTIVES_SPLIT_H
#define SMFAR_COLLECTIVES_SPLIT_H

#include "collectives.h"

/* Of the tensor, in bytes: what is one rank's in a step, or in a leg of it. */
struct part {
    size_t begin, bytes;
};

struct split {
    const struct plan *plan;
    const struct smfar_rms_norm *norm; /* NULL: an all-reduce */
    const char *send;
    char *recv;
    size_t total;         /* bytes */
    size_t room;          /* of the longest part, in whole lines */
    int inside;           /* this rank's output is in the window, and taken there */
    int last;             /* step */
    uint64_t steps, legs; /* before this step */
    struct part part[SMFAR_MAX_RANKS];
    uint64_t places[SMFAR_MAX_RANKS]; /* of outputs in their ranks' windows; 0: in the slots */
    int together; /* these are all one, and a copy to the multicast address serves all */
};

/* Legs of this step, one at least: those of the longest part. */
uint64_t split_legs(const struct split *split, int ranks);

/* Leg number `leg` of rank r's part; it may be empty. */
struct part split_leg(const struct split *split, int r, uint64_t leg);

/* Launches the kernel for a leg of my own part; `args` say where its data lie. */
enum smfar_status split_launch(struct call *call, const struct split *split, struct part leg,
                               struct norm_kargs *args);

/* split_mc.c and split_peer.c. */
enum smfar_status split_mc_step(struct call *call, const struct split *split);
enum smfar_status split_peer_step(struct call *call, const struct split *split);

#endif
