/* Broadcast: for every chunk a barrier (all slots are free), the root's copy into all slots, a
 * barrier (it has arrived), and each rank's copy out. Bytes are moved, so every type is served. */
#include "collectives.h"

static enum smfar_status step(struct call *call, const char *send, char *recv, size_t bytes)
{
    enum smfar_status status;
    int root = call->root == call->comm->rank;
    TRY(channel_barrier(call, 0));
    if (root && bytes) TRY(copy_to_slots(call, send, 0, bytes));
    TRY(channel_barrier(call, 0));
    if (root) return copy_outside(call, recv, send, bytes);
    return bytes ? copy_from_slot(call, recv, 0, bytes) : SMFAR_OK;
fail:
    return status;
}

enum smfar_status broadcast_enqueue(struct call *call, const void *send, void *recv)
{
    const struct planned *planned;
    enum smfar_status status = collective_plan(call, &planned);
    if (status == SMFAR_OK) status = channel_begin(call);
    if (status != SMFAR_OK) return status;
    size_t element = dtype_bytes(call->dtype), total = call->count * element, at = 0;
    do {
        size_t bytes =
            total - at < planned->plan.chunk * element ? total - at : planned->plan.chunk * element;
        status = step(call, (const char *)send + at, (char *)recv + at, bytes);
        at += bytes;
    } while (status == SMFAR_OK && at < total);
    collective_count(planned, total, total);
    return channel_end(call, status);
}
