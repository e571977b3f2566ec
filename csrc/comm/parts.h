/* What every rank sends to every other, in a collective in which each pair has a size of its own:
 * told in the host page before the call is announced, and read by all once all have called. */
#ifndef SMFAR_COMM_PARTS_H
#define SMFAR_COMM_PARTS_H

#include "comm.h"

struct parts {
    size_t largest;                 /* bytes that one rank sends to another, or to itself */
    int receives[SMFAR_MAX_RANKS];  /* rank r gets something of another rank */
    size_t offset[SMFAR_MAX_RANKS]; /* where mine begin among what rank r gets, in order of ranks */
};

/* Bytes to and from each rank. Before channel_begin, under the communicator's lock. */
void parts_tell(struct smfar_comm *comm, const size_t *sends, const size_t *receives);

/* After courier_meet. What a rank sends and what the other expects must be equal, for every pair:
 * all ranks find the same answer. */
enum smfar_status parts_read(struct smfar_comm *comm, struct parts *parts_out);

#endif
