/* Barrier: one launch of the barrier kernel. */
#include "collectives.h"

enum smfar_status barrier_enqueue(struct call *call)
{
    const struct planned *planned;
    enum smfar_status status = collective_begin(call, &planned);
    if (status != SMFAR_OK) return status;
    collective_count(planned, 0, 0);
    return channel_end(call, channel_barrier(call, 1));
}
