/* Reduce-scatter, and most reduces: a sequence of chunks, each one launch. Every rank reads its
 * part of all ranks' inputs and stores the result to its own output. A reduce is the case of one
 * part, which only the root wants.
 *
 * Inputs in the window are read where they lie; others go into the staging slot first, their parts
 * side by side. Every rank publishes where the parts lie, so that some may stage and others not. */
#include <string.h>

#include "collectives.h"

enum { ALIGNMENT = 16 }; /* of the parts in the slot: what the kernels load at once */

struct inputs {
    const void *const *send; /* one per part */
    int parts;
    size_t stride; /* from one part to the next; 0: they do not lie at equal distances */
    size_t offset; /* of the first in the window, when not staged */
    enum staging staging;
};

/* 0 also when they do not rise. */
static size_t distance(const void *const *send, int parts)
{
    const char *first = send[0];
    size_t stride = 0;
    if (parts > 1 && (const char *)send[1] > first)
        stride = (size_t)((const char *)send[1] - first);
    for (int r = 1; r < parts; r++)
        if ((const char *)send[r] != first + (size_t)r * stride) return 0;
    return stride;
}

static void find_inputs(const struct call *call, const void *const *send, int parts,
                        struct inputs *inputs)
{
    struct smfar_comm *comm = call->comm;
    size_t bytes = call->count * dtype_bytes(call->dtype);
    *inputs = (struct inputs){send, parts, distance(send, parts), 0, STAGED_BY_COPY};
    if (parts > 1 && inputs->stride < bytes) return;
    size_t all = inputs->stride * (size_t)(parts - 1) + bytes;
    if (window_offset(comm->window, send[0], all, &inputs->offset))
        inputs->staging = STAGED_NOT;
    else if (!copies_suit(call, send[0], bytes))
        inputs->staging = STAGED_BY_KERNEL;
}

/* Where the kernel finds the chunk of `bytes` that begins `at` bytes into every part. */
static void place_chunk(const struct inputs *inputs, size_t slot, size_t at, size_t bytes,
                        struct kargs *args)
{
    size_t packed = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    int in_place = inputs->staging == STAGED_NOT;
    args->offset = in_place ? inputs->offset + at : slot;
    if (inputs->parts > 1) args->part = in_place ? inputs->stride : packed;
    if (inputs->staging != STAGED_BY_KERNEL) return;
    args->src = (uint64_t)(uintptr_t)inputs->send[0] + at;
    args->src_part = inputs->stride;
}

/* `at` and `bytes` in every part. */
static enum smfar_status step(struct call *call, const struct plan *plan,
                              const struct inputs *inputs, char *recv, size_t at, size_t bytes,
                              int last)
{
    enum smfar_status status;
    struct kargs args;
    memset(&args, 0, sizeof(args));
    args.count = bytes / dtype_bytes((int)kernel_rows[plan->kernel].dtype);
    args.dst = recv ? (uint64_t)(uintptr_t)recv + at : 0;
    place_chunk(inputs, call->channel->slot, at, bytes, &args);
    for (int r = 0; r < inputs->parts && bytes && inputs->staging == STAGED_BY_COPY; r++)
        TRY(copy_to_slot(call, (const char *)inputs->send[r] + at, (size_t)r * args.part, bytes));
    return channel_launch(call, plan->kernel, plan->blocks, plan->threads, last, &args);
fail:
    return status;
}

enum smfar_status reduce_scatter_run(struct call *call, const struct planned *planned,
                                     const void *const *send, int parts, void *recv)
{
    struct inputs inputs;
    enum smfar_status status;
    const struct plan *plan = &planned->plan;
    size_t element = dtype_bytes(call->dtype), total = call->count * element, at = 0;
    find_inputs(call, send, parts, &inputs);
    do { /* also once for no elements: the others compare what this rank has called */
        size_t bytes = total - at < plan->chunk * element ? total - at : plan->chunk * element;
        status = step(call, plan, &inputs, recv, at, bytes, at + bytes == total);
        at += bytes;
    } while (status == SMFAR_OK && at < total);
    collective_count(planned, total * (size_t)parts,
                     inputs.staging == STAGED_NOT ? 0 : total * (size_t)parts);
    return status;
}

enum smfar_status reduce_scatter_enqueue(struct call *call, const void *const *send, void *recv)
{
    const struct planned *planned;
    enum smfar_status status = collective_begin(call, &planned);
    if (status != SMFAR_OK) return status;
    return channel_end(call, reduce_scatter_run(call, planned, send, call->comm->ranks, recv));
}
