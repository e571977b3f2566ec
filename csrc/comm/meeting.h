/* Meetings of all ranks' streams: a barrier that holds no multiprocessor while a rank is late. Each
 * stream writes down in the host page that it has come, and waits for the others' words.
 *
 * Waits of a stream have no deadline. The watchdogs see who is late (meeting_check), and after a
 * failure set all words far ahead (meeting_release), again and again, since a stream that comes
 * later writes over that. What a stream does after such a release is lost work: see work.h. */
#ifndef SMFAR_COMM_MEETING_H
#define SMFAR_COMM_MEETING_H

#include "channel.h"

struct meeting {
    uint64_t place; /* not 0: also write down where my chunk lies */
    int last;       /* the collective ends with this meeting */
};

/* What page_words.arrived and .carried count: the meetings and legs of one collective in turn. */
static inline uint64_t meeting_number(uint64_t sequence, uint64_t index)
{
    return sequence << 16 | index;
}
enum { MEETINGS_MOST = 65535 };

/* Enqueues one meeting on the call's stream. */
enum smfar_status meeting_enqueue(struct call *call, const struct meeting *meeting);

/* Copies have been made as far as `number` once `stream` has come so far; and the call's stream
 * waits until every rank's have, so that what they bring is there. With `last` the collective ends
 * here. `stream` must have followed the call's: it may have told of the collective before, and that
 * would come later and write over this. */
enum smfar_status meeting_carried(const struct call *call, CUstream stream, uint64_t number);
enum smfar_status meeting_await_carried(struct call *call, uint64_t number, int last);

/* Both, where the call's own stream has made the copies. */
enum smfar_status meeting_carry(struct call *call, uint64_t number, int last);

/* The same of inputs that copies bring to all others' slots; and the others' are awaited. */
enum smfar_status meeting_sent(const struct call *call, CUstream stream, uint64_t number);
enum smfar_status meeting_await_sent(const struct call *call, uint64_t number);

/* Enqueues that the stream has passed the call. */
enum smfar_status meeting_pass(struct call *call);

/* Lets every rank's streams go on; no driver call. */
void meeting_release(struct smfar_comm *comm);

/* By the watchdog, now and then: publishes a failure when a rank has been late for too long. */
struct meeting_watch {
    uint64_t arrived, carried;
    int64_t since; /* milliseconds */
};
void meeting_check(struct smfar_comm *comm, struct meeting_watch *watch);

#endif
