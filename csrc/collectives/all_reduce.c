/* All-reduce: a sequence of chunks, each one launch of a two-shot kernel.
 *
 * Where the result lies is a local matter. In the window, the kernel works on it in place;
 * elsewhere the kernel copies each chunk into the staging slot first and out of it last. Every rank
 * publishes where its chunk lies, and the kernel takes its peer loop when the places differ. */
#include <string.h>

#include "collectives.h"

/* Sets the places of the chunk that begins `at` bytes into the tensors. */
static void place_chunk(const struct window *window, const void *send, void *recv, int in_window,
                        size_t offset, size_t at, struct kargs *args)
{
    uint64_t from = (uint64_t)(uintptr_t)send + at, to = (uint64_t)(uintptr_t)recv + at;
    args->offset = in_window ? offset + at : window->slot;
    args->src = in_window && from == to ? 0 : from;
    args->dst = in_window ? 0 : to;
}

enum smfar_status all_reduce_enqueue(struct call *call, const void *send, void *recv)
{
    struct plan plan;
    enum smfar_status status = collective_plan(call, &plan);
    if (status != SMFAR_OK) return status;
    call->kernel = plan.kernel;
    struct window *window = call->comm->window;
    size_t element = dtype_bytes(call->dtype), offset = 0;
    int in_window = window_offset(window, recv, call->count * element, &offset);
    status = channel_begin(call);
    if (status != SMFAR_OK) return status;
    uint64_t done = 0;
    do { /* also once for no elements: the others compare what this rank has called */
        struct kargs args;
        memset(&args, 0, sizeof(args));
        args.count = call->count - done < plan.chunk ? call->count - done : plan.chunk;
        place_chunk(window, send, recv, in_window, offset, done * element, &args);
        status = channel_launch(call, plan.kernel, plan.blocks, plan.threads, &args);
        done += args.count;
    } while (status == SMFAR_OK && done < call->count);
    channel_count(call, plan.algorithm, plan.reason, call->count * element,
                  in_window && send == recv ? 0 : call->count * element, plan.blocks, plan.threads);
    return channel_end(call, status);
}
