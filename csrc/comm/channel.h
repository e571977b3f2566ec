/* One collective on its stream, or in a graph (capture.h): numbered, announced in the ring, ordered
 * behind the one before, launched, and marked done. Every collective is channel_begin, steps,
 * channel_end, under the communicator's lock and context. */
#ifndef SMFAR_COMM_CHANNEL_H
#define SMFAR_COMM_CHANNEL_H

#include "comm.h"
#include "names.h"

struct call {
    struct smfar_comm *comm;
    CUstream stream;
    enum collective collective;
    int dtype, op, root; /* -1 where the collective has none; see norm_root for RMS_NORM */
    double scale;        /* of PREMUL_SUM, of RMS_NORM eps, else 0 */
    uint64_t count;      /* elements, as the caller gave it */
    uint32_t row;        /* elements of a row, of RMS_NORM, else 0 */
    enum kernel_id kernel;
    uint64_t sequence; /* set by channel_begin */
    uint32_t hash;     /* of all that must be equal on every rank */
    int finished; /* the last launch, or the stream's last meeting, marks the collective done */
    uint64_t meetings; /* enqueued so far */
    size_t place;      /* see page_entry; set before channel_begin, and so is the next */
    int streams; /* streams meet, and copies go straight into tensors: for all ranks or none */
    const struct window_channel *channel;
    CUgraph graph;    /* that the call becomes part of; NULL: it runs when its stream comes to it */
    uint64_t capture; /* the driver's number of the capture */
    uint32_t owner;   /* in a graph: the call's own number, not 0 */
    int launches;     /* so far */

    enum collective counted; /* as what, by smfar_comm_path */
    int continues;           /* a call whose first part has been counted */
};

enum smfar_status channel_begin(struct call *call);

/* Launches `id`; the caller has set src, dst, offset, count, at and stride of `args`, this sets the
 * rest. With `last` the collective ends with this launch. */
enum smfar_status channel_launch(struct call *call, enum kernel_id id, int blocks, int threads,
                                 int last, struct kargs *args);

/* A barrier of all ranks on the stream, by the barrier kernel. meeting.h has one without a kernel.
 */
enum smfar_status channel_barrier(struct call *call, int last);

/* Also after a failed step: what was enqueued is still ordered and counted. */
enum smfar_status channel_end(struct call *call, enum smfar_status status);

/* The counters that smfar_comm_path reports for a collective by an algorithm, with the reason of
 * its last plan. The communicator's. */
struct smfar_path *channel_path(struct smfar_comm *comm, enum collective collective,
                                const char *algorithm, const char *reason);

#endif
