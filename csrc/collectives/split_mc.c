/* All-reduce through the switch in two halves: a kernel has the switch reduce this rank's share,
 * into its own memory, and copy engines bring that to all with one copy to the multicast address, a
 * leg being copied while the next is reduced. The streams meet before and after, so no
 * multiprocessor is held while a rank is late.
 *
 * A rank whose tensor is not in the window has each step in the staging slot. Results must not lie
 * where the copy to all of them goes: they are kept in the slot, which a tensor in the window
 * leaves free. */
#include <string.h>

#include "../comm/courier.h"
#include "../comm/meeting.h"
#include "collectives.h"

struct split {
    const struct plan *plan;
    const char *send;
    char *recv;
    size_t total, at, bytes; /* of the tensor; where the step begins, and of the step */
    size_t base;             /* where the step's chunk lies in my window */
    size_t begin, end;       /* my share of the step */
    int last;
    uint64_t steps;
    uint64_t places[SMFAR_MAX_RANKS];
};

/* Where in my window the results of what is `from` bytes into the step go before they are copied:
 * in place, or into the free slot, where vectors begin at the same places. */
static size_t result_place(const struct call *call, const struct split *split, size_t from)
{
    if (!call->place) return split->base + from;
    return call->comm->window->slot + (split->base & 15) + from - split->begin;
}

/* Through the multicast address when all ranks, I too, want it at one place and it does not lie
 * there already; else to each. */
static enum smfar_status copy_leg(const struct call *call, const struct split *split, size_t source,
                                  size_t from, size_t bytes)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    const struct window *window = comm->window;
    const char *data = (const char *)(uintptr_t)(window->peer[comm->rank] + source);
    int together = comm->agreed.multicast_copy && source != split->base + from;
    for (int r = 0; r < comm->ranks; r++)
        together &= split->places[r] == split->places[0];
    for (int i = 1; i <= comm->ranks; i++) { /* so that ranks do not all write to the same */
        int r = (comm->rank + i) % comm->ranks;
        CUdeviceptr to = courier_address(call, split->places, r, split->at + from, from);
        if (together) to = to - window->peer[r] + window->multicast;
        if (to != (CUdeviceptr)(uintptr_t)data)
            TRY(courier_copy(call, COURIER_RESULTS, to, data, bytes));
        if (together) break;
    }
    return SMFAR_OK;
fail:
    return status;
}

/* Reduces [from, from + bytes) of the step, and has it copied. */
static enum smfar_status reduce_leg(struct call *call, struct split *split, size_t from,
                                    size_t bytes)
{
    enum smfar_status status;
    struct kargs args;
    const struct plan *plan = split->plan;
    size_t source = result_place(call, split, from);
    memset(&args, 0, sizeof(args));
    args.offset = split->base;
    args.at = from;
    args.count = bytes / dtype_bytes((int)kernel_rows[plan->kernel].dtype);
    args.dst = call->comm->window->peer[call->comm->rank] + source;
    TRY(channel_launch(call, plan->kernel, plan->blocks, plan->threads, 0, &args));
    TRY(courier_follow(call, COURIER_RESULTS));
    return copy_leg(call, split, source, from, bytes);
fail:
    return status;
}

static enum smfar_status step(struct call *call, struct split *split)
{
    enum smfar_status status;
    const struct window *window = call->comm->window;
    struct meeting ready = {0};
    split->steps++;
    split->base = call->place ? call->place + split->at : window->slot;
    share_of(split->bytes, call->comm->ranks, call->comm->rank, &split->begin, &split->end);
    char *chunk = (char *)(uintptr_t)(window->peer[call->comm->rank] + split->base);
    TRY(copy_inside(call, split->plan->blocks, chunk, split->send + split->at, split->bytes));
    ready.place = split->base;
    TRY(meeting_enqueue(call, &ready));
    TRY(courier_follow(call, COURIER_RESULTS)); /* also where my share is empty: see meeting.h */
    for (size_t from = split->begin; from < split->end; from += split->plan->leg) {
        size_t left = split->end - from, leg = left < split->plan->leg ? left : split->plan->leg;
        TRY(reduce_leg(call, split, from, leg));
    }
    uint64_t number = meeting_number(call->sequence, split->steps);
    TRY(courier_deliver(call, number, split->last && call->place));
    return copy_inside(call, split->plan->blocks, split->recv + split->at, chunk, split->bytes);
fail:
    return status;
}

static enum smfar_status run(struct call *call, struct split *split, size_t chunk)
{
    enum smfar_status status;
    do { /* also once for no elements: the others compare what this rank has called */
        size_t left = split->total - split->at;
        split->bytes = left < chunk ? left : chunk;
        split->last = split->at + split->bytes == split->total;
        status = step(call, split);
        split->at += split->bytes;
    } while (status == SMFAR_OK && split->at < split->total);
    return status;
}

enum smfar_status split_mc_enqueue(struct call *call, const struct planned *planned,
                                   const void *send, void *recv)
{
    size_t element = dtype_bytes(call->dtype), chunk = planned->plan.chunk * element;
    struct split split = {.plan = &planned->plan, .send = send, .recv = recv};
    split.total = call->count * element;
    if (!window_offset(call->comm->window, recv, split.total, &call->place)) call->place = 0;
    enum smfar_status status = collective_start(call, planned);
    if (status != SMFAR_OK) return status;
    status = courier_meet(call, split.places);
    if (status == SMFAR_OK) status = run(call, &split, chunk);
    collective_count(planned, split.total, call->place && send == recv ? 0 : split.total);
    return channel_end(call, status);
}
