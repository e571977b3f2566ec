/* Reduce-scatter: a sequence of chunks. The parts of all ranks lie side by side in the staging
 * slot, are reduced there by a two-shot kernel, and each rank takes out its own. */
#include <string.h>

#include "collectives.h"

/* `at` and `bytes` in every part. */
static enum smfar_status step(struct call *call, const struct plan *plan, const void *const *send,
                              char *recv, size_t at, size_t bytes)
{
    enum smfar_status status;
    struct kargs args;
    int ranks = call->comm->ranks;
    memset(&args, 0, sizeof(args));
    args.offset = call->channel->slot;
    args.count = bytes * (size_t)ranks / dtype_bytes((int)kernel_rows[plan->kernel].dtype);
    for (int r = 0; r < ranks && bytes; r++)
        TRY(copy_to_slot(call, (const char *)send[r] + at, (size_t)r * bytes, bytes));
    TRY(channel_launch(call, plan->kernel, plan->blocks, plan->threads, 0, &args));
    if (bytes) TRY(copy_from_slot(call, recv + at, (size_t)call->comm->rank * bytes, bytes));
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status reduce_scatter_enqueue(struct call *call, const void *const *send, void *recv)
{
    const struct planned *planned;
    enum smfar_status status = collective_begin(call, &planned);
    if (status != SMFAR_OK) return status;
    const struct plan *plan = &planned->plan;
    size_t element = dtype_bytes(call->dtype), total = call->count * element, at = 0;
    do { /* also once for no elements: the others compare what this rank has called */
        size_t bytes = total - at < plan->chunk * element ? total - at : plan->chunk * element;
        status = step(call, plan, send, recv, at, bytes);
        at += bytes;
    } while (status == SMFAR_OK && at < total);
    uint64_t moved = total * (size_t)call->comm->ranks;
    collective_count(planned, moved, moved);
    return channel_end(call, status);
}
