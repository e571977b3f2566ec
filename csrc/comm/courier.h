/* Copies straight into other ranks' tensors, by copy engines, on streams of their own.
 *
 * Where a tensor lies is known to its own rank alone until that rank has called the collective: its
 * ring entry then says so. So courier_meet blocks the host until every rank has called. It could
 * leave that to a thread; but then the call's stream would wait for copies that are enqueued after
 * the wait, perhaps behind it in the same hardware queue, for ever. (The driver's documentation
 * warns of such waits; with many streams in one process it has been seen.) */
#ifndef SMFAR_COMM_COURIER_H
#define SMFAR_COMM_COURIER_H

#include "channel.h"

/* During set-up, on the communicator's context; and at its end. */
enum smfar_status courier_open(struct smfar_comm *comm);
void courier_free(struct smfar_comm *comm);

/* Blocks until every rank has called, at most the timeout. The communicator's lock is kept
 * meanwhile, since other threads' collectives must come after this one, whose steps are not
 * enqueued yet; what need not does without the lock: aborts, the watchdog, queries, waits, reports,
 * messages, orders of streams. (smfar_comm_released takes it once the group has failed, which ends
 * this wait.) Leaves: where in its window rank r wants what others copy to it, or 0 for its staging
 * slot. The same on every rank. */
enum smfar_status courier_meet(const struct call *call, uint64_t places[SMFAR_MAX_RANKS]);

/* Rank r's address for what goes `at` bytes into its tensor, or to `slot_at` in its slot. */
CUdeviceptr courier_address(const struct call *call, const uint64_t *places, int r, size_t at,
                            size_t slot_at);

/* The streams: of results and of everything else that goes to its place; and of inputs, which
 * another rank is to work on. */
enum courier_stream { COURIER_RESULTS, COURIER_INPUTS, COURIER_STREAMS };

/* A stream goes on once the call's stream has come so far. */
enum smfar_status courier_follow(const struct call *call, enum courier_stream which);

/* The end of a step: says that my copies have been made as far as `number`, and has the call's
 * stream wait for them and for every other rank's. With `last` the collective ends here. */
enum smfar_status courier_deliver(struct call *call, uint64_t number, int last);

/* Results go on once all inputs have been sent. */
enum smfar_status courier_inputs_first(const struct call *call);

enum smfar_status courier_copy(const struct call *call, enum courier_stream which, CUdeviceptr to,
                               const void *from, size_t bytes);

/* The stream, for what it has to write down. */
CUstream courier_stream(const struct smfar_comm *comm, enum courier_stream which);

/* Waits until every rank has read what the ring is about to lose: the entry before `sequence` in
 * the same place. Returns at once unless this host is PAGE_RING calls ahead of another. */
enum smfar_status courier_await_collected(struct smfar_comm *comm, uint64_t sequence);

/* 1 when no copy is under way. */
int courier_idle(struct smfar_comm *comm);

#endif
