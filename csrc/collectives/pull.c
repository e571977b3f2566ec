/* Moves by a kernel: a sequence of chunks, each one launch, in which every rank reads what the
 * others have for it. Inputs in the window are read where they lie. */
#include <string.h>

#include "inputs.h"
#include "move.h"

/* Would what arrives change what others have still to read? My own part does not arrive where it
 * lies already. */
static int is_overwritten(const struct call *call, const struct move *move, const void *const *send,
                          int parts, size_t bytes)
{
    int rank = call->comm->rank;
    const char *own = move->everyone ? move->everyone : move->to[rank];
    for (int p = 0; p < parts; p++)
        for (int r = 0; r < call->comm->ranks; r++) {
            int stays = r == rank && own == move->from[r];
            if (!stays && overlap(move->from[r], bytes, send[p], bytes)) return 1;
        }
    return 0;
}

/* One input for all that want it, or one for each rank. */
static int find_parts(const struct call *call, const struct move *move, const void **send_out)
{
    int ranks = call->comm->ranks, parts = 0;
    if (move->everyone) {
        send_out[parts++] = move->everyone;
        return parts;
    }
    for (int r = 0; r < ranks; r++)
        if (move->to[r]) send_out[parts++] = move->to[r];
    return parts;
}

static enum smfar_status step(struct call *call, const struct plan *plan, const struct move *move,
                              const struct inputs *inputs, size_t at, size_t bytes, int last)
{
    enum smfar_status status;
    struct move_kargs args;
    memset(&args, 0, sizeof(args));
    args.common.count = bytes;
    for (int r = 0; r < call->comm->ranks; r++)
        if (move->from[r]) args.to[r] = (uint64_t)(uintptr_t)move->from[r] + at;
    TRY(inputs_place(call, inputs, at, bytes, &args.common));
    return channel_launch(call, plan->kernel, plan->blocks, plan->threads, last, &args.common);
fail:
    return status;
}

enum smfar_status pull_enqueue(struct call *call, const struct planned *planned,
                               const struct move *move)
{
    struct inputs inputs;
    const void *send[SMFAR_MAX_RANKS];
    size_t element = dtype_bytes(call->dtype), total = call->count * element, at = 0;
    size_t part = planned->plan.chunk * element;
    int parts = find_parts(call, move, send);
    enum smfar_status status = collective_start(call, planned);
    if (status != SMFAR_OK) return status;
    inputs_find(call, send, parts, total, is_overwritten(call, move, send, parts, total), &inputs);
    do { /* also once for no elements: the others compare what this rank has called */
        size_t bytes = total - at < part ? total - at : part;
        status = step(call, &planned->plan, move, &inputs, at, bytes, at + bytes == total);
        at += bytes;
    } while (status == SMFAR_OK && at < total);
    uint64_t sent = total * (size_t)parts;
    collective_count(call, planned, sent, inputs.staging == STAGED_NOT ? 0 : sent);
    return channel_end(call, status);
}
