/* All-reduce and reduce: one launch of a one-shot kernel, or a sequence of chunks, each one launch
 * of a two-shot.
 *
 * Where the result lies is a local matter. A one-shot reads and writes tensors where they are. For
 * a two-shot: in the window, the kernel works on it in place; elsewhere each chunk goes through the
 * staging slot. Every rank publishes where its chunk lies, and the kernel takes its peer loop when
 * the places differ.
 *
 * A reduce of more than two ranks over peers is made in the slots, since the other ranks' tensors
 * stay as they are; the root alone takes the result out. So each rank reads and writes its share,
 * where otherwise the root would read everything (reduce_scatter.c). */
#include <string.h>

#include "collectives.h"

struct tensors {
    const char *send;
    char *recv;    /* NULL where the result is not wanted */
    size_t offset; /* of recv in the window, when not staged */
    enum staging staging;
};

static void find_tensors(const struct call *call, const void *send, void *recv, size_t bytes,
                         struct tensors *tensors)
{
    struct smfar_comm *comm = call->comm;
    *tensors = (struct tensors){send, recv, 0, STAGED_BY_KERNEL};
    if (call->collective == COLLECTIVE_ALL_REDUCE &&
        window_offset(comm->window, recv, bytes, &tensors->offset))
        tensors->staging = STAGED_NOT;
    else if (copies_suit(call, send, bytes) && (!recv || copies_suit(call, recv, bytes)))
        tensors->staging = STAGED_BY_COPY;
}

/* Where the kernel finds the chunk that begins `at` bytes into the tensors. */
static void place_chunk(const struct tensors *tensors, size_t slot, size_t at, struct kargs *args)
{
    uint64_t from = (uint64_t)(uintptr_t)tensors->send + at;
    uint64_t to = (uint64_t)(uintptr_t)tensors->recv + at;
    args->offset = tensors->staging == STAGED_NOT ? tensors->offset + at : slot;
    if (tensors->staging == STAGED_BY_KERNEL || (tensors->staging == STAGED_NOT && from != to))
        args->src = from;
    if (tensors->staging == STAGED_BY_KERNEL && tensors->recv) args->dst = to;
}

/* The whole in one launch, wherever the tensors lie. `offset` and `stride` say where in the window
 * what the ranks exchange goes: a push's boxes, or a one-shot's slots. */
static enum smfar_status run_whole(struct call *call, const struct planned *planned,
                                   const void *send, void *recv, size_t offset, size_t stride)
{
    struct kargs args;
    const struct plan *plan = &planned->plan;
    size_t bytes = call->count * dtype_bytes(call->dtype);
    memset(&args, 0, sizeof(args));
    args.src = (uint64_t)(uintptr_t)send;
    args.dst = (uint64_t)(uintptr_t)recv;
    args.offset = offset;
    args.stride = (uint32_t)stride;
    args.count = bytes / dtype_bytes((int)kernel_rows[plan->kernel].dtype);
    collective_count(call, planned, bytes, 0);
    return channel_launch(call, plan->kernel, plan->blocks, plan->threads, 1, &args);
}

static enum smfar_status step(struct call *call, const struct plan *plan,
                              const struct tensors *tensors, uint64_t done, uint64_t count)
{
    enum smfar_status status;
    struct kargs args;
    size_t element = dtype_bytes(call->dtype), at = done * element, bytes = count * element;
    int copies = tensors->staging == STAGED_BY_COPY;
    memset(&args, 0, sizeof(args));
    args.count = bytes / dtype_bytes((int)kernel_rows[plan->kernel].dtype);
    place_chunk(tensors, call->channel->slot, at, &args);
    int last = done + count == call->count && !copies;
    if (copies) TRY(copy_to_slot(call, tensors->send + at, 0, bytes));
    TRY(channel_launch(call, plan->kernel, plan->blocks, plan->threads, last, &args));
    if (copies && tensors->recv) TRY(copy_from_slot(call, tensors->recv + at, 0, bytes));
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status run_twoshot(struct call *call, const struct planned *planned,
                                     const void *send, void *recv)
{
    struct tensors tensors;
    const struct plan *plan = &planned->plan;
    size_t bytes = call->count * dtype_bytes(call->dtype);
    enum smfar_status status;
    uint64_t done = 0;
    find_tensors(call, send, recv, bytes, &tensors);
    do { /* also once for no elements: the others compare what this rank has called */
        uint64_t count = call->count - done < plan->chunk ? call->count - done : plan->chunk;
        status = step(call, plan, &tensors, done, count);
        done += count;
    } while (status == SMFAR_OK && done < call->count);
    int in_place = tensors.staging == STAGED_NOT && send == recv;
    collective_count(call, planned, bytes, in_place ? 0 : bytes);
    return status;
}

enum smfar_status all_reduce_enqueue(struct call *call, const void *send, void *recv)
{
    const struct planned *planned;
    enum smfar_status status = collective_plan(call, &planned);
    if (status != SMFAR_OK) return status;
    if (planned->plan.streams) return split_enqueue(call, planned, send, recv, NULL);
    status = collective_start(call, planned);
    if (status != SMFAR_OK) return status;
    const struct window_channel *channel = call->channel;
    if (algorithm_is_push(planned->plan.algorithm))
        status = run_whole(call, planned, send, recv, channel->push, channel->push_box);
    else if (algorithm_is_oneshot(planned->plan.algorithm))
        status = run_whole(call, planned, send, recv, channel->oneshot, channel->oneshot_bytes);
    else
        status = run_twoshot(call, planned, send, recv);
    return channel_end(call, status);
}

enum smfar_status reduce_enqueue(struct call *call, const void *send, void *recv)
{
    const struct planned *planned;
    enum smfar_status status = collective_begin(call, &planned);
    if (status != SMFAR_OK) return status;
    if (call->root != call->comm->rank) recv = NULL;
    status = planned->plan.pull ? reduce_scatter_run(call, planned, &send, 1, recv)
                                : run_twoshot(call, planned, send, recv);
    return channel_end(call, status);
}
