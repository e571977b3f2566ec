/* All-gather: for every chunk a barrier (all slots are free), each rank's copy into its part of all
 * slots, a barrier (all have arrived), and copies out. Bytes are moved, so every type is served. */
#include "collectives.h"

/* The part of rank r begins at r * part bytes of the slot. */
static enum smfar_status step(struct call *call, const void *send, void *const *recv, size_t at,
                              size_t bytes, size_t part)
{
    enum smfar_status status;
    int rank = call->comm->rank;
    const char *from = (const char *)send + at;
    TRY(channel_barrier(call, 0));
    if (bytes) TRY(copy_to_slots(call, from, part * (size_t)rank, bytes));
    TRY(channel_barrier(call, 0));
    for (int r = 0; r < call->comm->ranks && bytes; r++) {
        char *to = (char *)recv[r] + at;
        if (r == rank)
            TRY(copy_outside(call, to, from, bytes));
        else
            TRY(copy_from_slot(call, to, part * (size_t)r, bytes));
    }
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status all_gather_enqueue(struct call *call, const void *send, void *const *recv)
{
    const struct planned *planned;
    enum smfar_status status = collective_plan(call, &planned);
    if (status == SMFAR_OK) status = channel_begin(call);
    if (status != SMFAR_OK) return status;
    size_t element = dtype_bytes(call->dtype), total = call->count * element, at = 0;
    size_t part = planned->plan.chunk * element;
    do {
        size_t bytes = total - at < part ? total - at : part;
        status = step(call, send, recv, at, bytes, part);
        at += bytes;
    } while (status == SMFAR_OK && at < total);
    size_t moved = total * (size_t)call->comm->ranks;
    collective_count(planned, moved, moved);
    return channel_end(call, status);
}
