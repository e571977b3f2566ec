/* Barrier: one meeting of the streams, or one launch of the barrier kernel. */
#include "../comm/meeting.h"
#include "collectives.h"

enum smfar_status barrier_enqueue(struct call *call)
{
    const struct planned *planned;
    enum smfar_status status = collective_begin(call, &planned);
    if (status != SMFAR_OK) return status;
    collective_count(call, planned, 0, 0);
    struct meeting last = {.last = 1};
    return channel_end(call, planned->plan.streams ? meeting_enqueue(call, &last)
                                                   : channel_barrier(call, 1));
}
