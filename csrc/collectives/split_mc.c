/* A step of a split through the switch: a kernel has the switch reduce this rank's part, into its
 * own memory, and copy engines bring that to all with one copy to the multicast address, leg by
 * leg.
 *
 * A rank whose tensor is not in the window has each step in the staging slot. Results must not lie
 * where the copy to all of them goes: they are kept in the slot, which a tensor in the window
 * leaves free, or in the slot behind the step. */
#include <string.h>

#include "../comm/courier.h"
#include "../comm/meeting.h"
#include "split.h"

/* Where in my window the step begins. */
static size_t base_of(const struct call *call, const struct split *split)
{
    return split->inside ? call->place + split->part[0].begin : call->comm->window->slot;
}

/* Where rank r's part lies from there on: as in the tensor, or in the slot behind the one before.
 */
static size_t part_at(const struct split *split, int r)
{
    size_t at = 0;
    if (split->inside) return split->part[r].begin - split->part[0].begin;
    for (int before = 0; before < r; before++)
        at += split->part[before].bytes;
    return at;
}

/* Copies all parts of the step into my window, or `back` out of it, where they do not lie there.
 * Those side by side in the tensor go at once. */
static enum smfar_status copy_parts(struct call *call, const struct split *split, int back)
{
    enum smfar_status status;
    const struct window *window = call->comm->window;
    char *base = (char *)(uintptr_t)(window->peer[call->comm->rank] + base_of(call, split));
    for (int r = 0; r < call->comm->ranks;) {
        char *chunk = base + part_at(split, r);
        size_t begin = split->part[r].begin, end = begin;
        while (r < call->comm->ranks && split->part[r].begin == end)
            end += split->part[r++].bytes;
        if (back)
            TRY(copy_inside(call, split->plan->blocks, split->recv + begin, chunk, end - begin));
        else
            TRY(copy_inside(call, split->plan->blocks, chunk, split->send + begin, end - begin));
    }
    return SMFAR_OK;
fail:
    return status;
}

/* Where in my window the results go that belong `at` bytes behind the step's begin: there, or in
 * the slot, where vectors begin at the same places. */
static size_t result_place(const struct call *call, const struct split *split, size_t at)
{
    size_t slot = call->comm->window->slot, mine = part_at(split, call->comm->rank);
    if (!split->together) return base_of(call, split) + at;
    if (!split->inside) slot += split->room * (size_t)call->comm->ranks;
    return slot + ((base_of(call, split) + mine) & 15) + at - mine;
}

static enum smfar_status copy_leg(const struct call *call, const struct split *split,
                                  struct part leg, size_t at)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    const struct window *window = comm->window;
    CUdeviceptr data = window->peer[comm->rank] + result_place(call, split, at);
    for (int i = 1; i <= comm->ranks; i++) { /* so that ranks do not all write to the same */
        int r = (comm->rank + i) % comm->ranks;
        CUdeviceptr to = courier_address(call, split->places, r, leg.begin, at);
        if (split->together) to = to - window->peer[r] + window->multicast;
        if (to != data)
            TRY(courier_copy(call, COURIER_RESULTS, to, (const char *)(uintptr_t)data, leg.bytes));
        if (split->together) break;
    }
    return SMFAR_OK;
fail:
    return status;
}

/* Reduces one leg of my part, and has it copied. */
static enum smfar_status reduce_leg(struct call *call, const struct split *split, uint64_t number)
{
    enum smfar_status status;
    struct norm_kargs args;
    const struct smfar_comm *comm = call->comm;
    struct part leg = split_leg(split, comm->rank, number);
    size_t at = part_at(split, comm->rank) + leg.begin - split->part[comm->rank].begin;
    if (leg.bytes == 0) return SMFAR_OK;
    memset(&args, 0, sizeof(args));
    args.common.offset = base_of(call, split);
    args.common.at = at;
    args.common.dst = comm->window->peer[comm->rank] + result_place(call, split, at);
    TRY(split_launch(call, split, leg, &args));
    TRY(courier_follow(call, COURIER_RESULTS));
    return copy_leg(call, split, leg, at);
fail:
    return status;
}

enum smfar_status split_mc_step(struct call *call, const struct split *split)
{
    enum smfar_status status;
    struct meeting ready = {.place = base_of(call, split)};
    TRY(copy_parts(call, split, 0));
    TRY(meeting_enqueue(call, &ready));
    TRY(courier_follow(call, COURIER_RESULTS)); /* also where my part is empty: see meeting.h */
    for (uint64_t leg = 0; leg < split_legs(split, call->comm->ranks); leg++)
        TRY(reduce_leg(call, split, leg));
    uint64_t number = meeting_number(call->sequence, split->steps + 1);
    TRY(courier_deliver(call, number, split->last && split->inside));
    return copy_parts(call, split, 1);
fail:
    return status;
}
