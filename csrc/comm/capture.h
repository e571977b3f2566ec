/* Collectives in CUDA graphs. A call on a stream that is being captured is not run but becomes part
 * of the graph, to be replayed at times that no host of the group is told of. So it has no number,
 * no entry in the ring and no end that a host could wait for, and uses nothing that a called
 * collective may be using at that time: signals and slots of its own (window_channel), which all
 * graphs of the group share, and no waits by streams, whose values would be the same at each
 * replay.
 *
 * Inside one capture collectives follow each other, on whatever branches they are. Replays of
 * several graphs must follow each other by the program's own order of streams, as they must come in
 * the same order on every rank.
 *
 * The window stays while a graph with collectives is there: see smfar_comm_finalize. */
#ifndef SMFAR_COMM_CAPTURE_H
#define SMFAR_COMM_CAPTURE_H

#include "channel.h"

/* In the place of a collective's number: one that a graph replays. */
static const uint64_t CAPTURE_SEQUENCE = 1ull << 63;

/* Sets the call's stream and, if that is being captured, its graph, capture and channel. The first
 * thing that happens to a call. */
enum smfar_status capture_look(struct call *call);

/* In the place of channel_begin and channel_end. */
enum smfar_status capture_begin(struct call *call);
enum smfar_status capture_end(struct call *call, enum smfar_status status);

/* Refuses to capture `what`, and says why not. */
enum smfar_status capture_refuse(const struct smfar_comm *comm, CUstream stream, const char *what);

/* Threads of the core may ask whether their own work has ended while the program captures. */
void capture_ignore(const struct smfar_comm *comm);

/* Words for a captured collective of this hash, as this rank has captured it. Makes no driver call.
 */
void capture_describe(struct smfar_comm *comm, uint32_t hash, char *text, size_t size);

/* Frees what capturing has taken; with `destroy`, on the communicator's context, also of the
 * driver. */
void capture_free(struct smfar_comm *comm, int destroy);

#endif
