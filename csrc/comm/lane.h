/* The pieces of messages on their way from one rank to another: see mail.h. */
#ifndef SMFAR_COMM_LANE_H
#define SMFAR_COMM_LANE_H

#include "request.h"

/* What this rank knows of one pair, as its sender or as its receiver. */
struct lane {
    struct smfar_request *active;
    uint64_t announced; /* messages, by the sender */
    uint64_t pieces;    /* whose copies were enqueued, ever */
};

/* The record of an ordered pair in the host page. */
struct page_pair *lane_pair(const struct smfar_comm *comm, int from, int to);

/* Enqueues on `stream` what can move of lane->active, with which this rank sends or receives.
 * Returns 1 when something did, or when the message has ended (lane->active is NULL then). */
int lane_move(const struct smfar_comm *comm, CUstream stream, struct lane *lane, int from, int to,
              enum smfar_status *status);

#endif
