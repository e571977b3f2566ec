/* Reduce-scatter, and most reduces: a sequence of chunks, each one launch. Every rank reads its
 * part of all ranks' inputs and stores the result to its own output. A reduce is the case of one
 * part, which only the root wants.
 *
 * Inputs in the window are read where they lie; others go into the staging slot first, their parts
 * side by side. Every rank publishes where the parts lie, so that some may stage and others not. */
#include <string.h>

#include "inputs.h"

/* Would the result go over what another rank is still to read? */
static int is_in_the_way(const struct call *call, const void *const *send, int parts,
                         const char *recv, size_t bytes)
{
    for (int r = 0; r < parts && parts > 1; r++)
        if (r != call->comm->rank && overlap(recv, bytes, send[r], bytes)) return 1;
    return 0;
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
    TRY(inputs_place(call, inputs, at, bytes, &args));
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
    inputs_find(call, send, parts, total, is_in_the_way(call, send, parts, recv, total), &inputs);
    do { /* also once for no elements: the others compare what this rank has called */
        size_t bytes = total - at < plan->chunk * element ? total - at : plan->chunk * element;
        status = step(call, plan, &inputs, recv, at, bytes, at + bytes == total);
        at += bytes;
    } while (status == SMFAR_OK && at < total);
    collective_count(call, planned, total * (size_t)parts,
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
