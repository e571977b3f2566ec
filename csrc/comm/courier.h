/* Copies straight into other ranks' tensors, by copy engines, on a stream of their own.
 *
 * Where a tensor lies is known to its own rank alone until that rank has called the collective: its
 * ring entry then says so. So the copies of a call, its errand, are enqueued once every rank has
 * called it: at once by the calling thread when it is the last to call, otherwise by a thread of
 * the communicator. The call's own stream waits for them (meeting.carried). Nothing is copied for a
 * collective that some rank has not called.
 *
 * Not here: what the copies wait for (events of the call's stream), and staging. */
#ifndef SMFAR_COMM_COURIER_H
#define SMFAR_COMM_COURIER_H

#include "channel.h"

/* Bytes that go to every receiver. */
struct leg {
    CUevent ready;      /* recorded by the call's stream: the data, and the receivers, are ready */
    int slots_only;     /* only receivers that take theirs from the slot are not ready before */
    size_t source;      /* from the errand's `to` */
    size_t at, slot_at; /* in the receiver's tensor, or else in its staging slot */
    size_t bytes;
    uint64_t carried; /* not 0: written once this leg and all before are there */
};

struct errand {
    struct errand *next;
    struct smfar_comm *comm;
    uint64_t sequence;
    const char *to[SMFAR_MAX_RANKS]; /* where rank r's data lie here; NULL: it gets nothing */
    size_t slot[SMFAR_MAX_RANKS];    /* beyond a leg's slot_at, where rank r's slot takes it */
    int everyone; /* all get the same: one copy to the multicast address may do */
    int count, most;
    struct leg legs[];
};

/* During set-up, on the communicator's context. */
enum smfar_status courier_open(struct smfar_comm *comm);

/* A stream for copies that need not know where the others' tensors lie. It comes after what the
 * call's stream holds now. */
enum smfar_status courier_feed(const struct call *call, CUstream *stream_out);

/* An errand of at most `legs` legs for this call. */
enum smfar_status courier_begin(const struct call *call, int legs, struct errand **errand_out);

/* One leg more, ready when `stream` has come so far. */
enum smfar_status courier_add(struct errand *errand, CUstream stream, const struct leg *leg);

/* Takes the errand over. Under the communicator's lock and context. */
enum smfar_status courier_send(struct errand *errand);

/* For a call that failed before that. */
void courier_drop(struct errand *errand);

/* Waits until every rank has read what the ring is about to lose: the entry before `sequence` in
 * the same place. Returns at once unless this host is PAGE_RING calls ahead of another. */
enum smfar_status courier_await_collected(struct smfar_comm *comm, uint64_t sequence);

/* 1 when no copy is under way. */
int courier_idle(struct smfar_comm *comm);

/* Ends the thread; errands that nobody has enqueued are dropped. */
void courier_stop(struct smfar_comm *comm);

/* Frees what the driver holds, on the communicator's context. */
void courier_free(struct smfar_comm *comm);

#endif
