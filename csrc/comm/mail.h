/* Messages from one rank to another: matched by sender, receiver and tag, in any order of tags, in
 * the order of the calls for one tag, and without the other ranks.
 *
 * Each ordered pair of ranks has a record in the host page and a mailbox in the receiver's window.
 *   1. The sender announces a message in the record: number, tag, bytes. It does so in the order of
 *      the calls, for at most PAIR_POSTS messages at once.
 *   2. The receiver chooses the lowest number that a receive of its own asks for, and writes it
 *      down; the sender says that it has seen it. One message of a pair is under way at a time.
 *   3. The sender's stream copies pieces into the mailbox, each half of it in turn, and counts them
 *      in `full`; the receiver's copies them out and counts them in `taken`.
 * A send ends when its last piece is in the mailbox, a receive when it has taken it out.
 *
 * A thread of the communicator, started by the first message, does this for all pairs. It looks at
 * words in host memory and enqueues copies that wait for nothing, on a stream of its own: a message
 * that nobody wants yet holds up neither collectives nor other messages.
 *
 * A message that does not come within the timeout, whose sizes differ, or whose other rank has
 * left, fails the group. */
#ifndef SMFAR_COMM_MAIL_H
#define SMFAR_COMM_MAIL_H

#include "comm.h"

/* A message to be sent or received. */
struct mail_order {
    void *buffer;
    size_t bytes;
    int peer;     /* SMFAR_ANY_RANK for a receive: whoever sends */
    int receives; /* else it is sent */
    int tag;
    CUstream after; /* what this stream holds now comes first; NULL: nothing has to */
    struct smfar_ending ending;
};

/* Under the communicator's side_lock and context. The buffer must stay until the request has ended.
 * With `request_out` NULL nobody but `ending` hears of it. */
enum smfar_status mail_post(struct smfar_comm *comm, const struct mail_order *order,
                            smfar_request **request_out);

/* Ends the thread, after which no request is under way; those that had not ended fail. */
void mail_stop(struct smfar_comm *comm);

#endif
