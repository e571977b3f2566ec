/* Barrier: one launch of the barrier kernel. */
#include "collectives.h"

enum smfar_status barrier_enqueue(struct call *call)
{
    enum smfar_status status = channel_begin(call);
    if (status != SMFAR_OK) return status;
    status = channel_barrier(call);
    const char *algorithm = call->comm->agreed.multicast ? "kernel_mc" : "kernel_peer";
    channel_count(call, algorithm, "one block of one warp", 0, 0, 1, 32);
    return channel_end(call, status);
}
