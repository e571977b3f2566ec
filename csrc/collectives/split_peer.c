/* A step of a split over peer memory, in which copy engines do all that crosses a link: they bring
 * every rank's inputs of a part to the staging slot of the rank that reduces it, its kernel adds
 * them in its own memory, and they bring the results back, leg by leg. The streams wait for each
 * leg, so a multiprocessor is held for as long as it adds.
 *
 * (Kernels that load from peers while copies are under way in the same direction hinder each other:
 * docs/nvls.md.)
 *
 * The slot holds the inputs of this rank's part from every other rank, and behind them, when the
 * output does not lie in the window, the others' results. Inputs are read where they lie. */
#include <string.h>

#include "../comm/courier.h"
#include "../comm/meeting.h"
#include "split.h"

/* Where rank r comes among the others of `me`. */
static size_t among_others(int me, int r) { return (size_t)(r < me ? r : r - 1); }

static size_t input_at(const struct split *split, int me, int r)
{
    return among_others(me, r) * split->room;
}

static size_t result_at(const struct split *split, int ranks, int me, int r)
{
    return ((size_t)(ranks - 1) + among_others(me, r)) * split->room;
}

/* ---- inputs ---- */

static enum smfar_status send_leg(const struct call *call, const struct split *split,
                                  uint64_t number)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    for (int i = 1; i < comm->ranks; i++) { /* so that ranks do not all write to the same */
        int r = (comm->rank + i) % comm->ranks;
        struct part leg = split_leg(split, r, number);
        CUdeviceptr slot = comm->window->peer[r] + comm->window->slot;
        size_t at = input_at(split, r, comm->rank) + leg.begin - split->part[r].begin;
        TRY(courier_copy(call, COURIER_INPUTS, slot + at, split->send + leg.begin, leg.bytes));
    }
    return meeting_sent(call, courier_stream(comm, COURIER_INPUTS),
                        meeting_number(call->sequence, split->legs + number + 1));
fail:
    return status;
}

static enum smfar_status send_inputs(const struct call *call, const struct split *split)
{
    enum smfar_status status;
    TRY(courier_follow(call, COURIER_INPUTS));
    for (uint64_t leg = 0; leg < split_legs(split, call->comm->ranks); leg++)
        TRY(send_leg(call, split, leg));
    /* one engine makes both kinds of copies: results must not hold up inputs that others wait for
     */
    return courier_inputs_first(call);
fail:
    return status;
}

/* ---- results ---- */

static enum smfar_status copy_leg(const struct call *call, const struct split *split,
                                  struct part leg, size_t from)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    for (int i = 1; i < comm->ranks; i++) { /* so that ranks do not all write to the same */
        int r = (comm->rank + i) % comm->ranks;
        size_t slot_at = result_at(split, comm->ranks, r, comm->rank) + from;
        TRY(courier_copy(call, COURIER_RESULTS,
                         courier_address(call, split->places, r, leg.begin, slot_at),
                         split->recv + leg.begin, leg.bytes));
    }
    return SMFAR_OK;
fail:
    return status;
}

/* Reduces one leg of my part in place in the output, and has it copied. */
static enum smfar_status reduce_leg(struct call *call, const struct split *split, uint64_t number)
{
    enum smfar_status status;
    struct norm_kargs args;
    struct part leg = split_leg(split, call->comm->rank, number);
    size_t from = leg.begin - split->part[call->comm->rank].begin;
    memset(&args, 0, sizeof(args));
    args.common.src = (uint64_t)(uintptr_t)split->send + leg.begin;
    args.common.dst = (uint64_t)(uintptr_t)split->recv + leg.begin;
    args.common.offset = call->comm->window->slot + from;
    args.common.stride = (uint32_t)split->room;
    TRY(meeting_await_sent(call, meeting_number(call->sequence, split->legs + number + 1)));
    if (leg.bytes == 0) return SMFAR_OK;
    TRY(split_launch(call, split, leg, &args));
    TRY(courier_follow(call, COURIER_RESULTS));
    return copy_leg(call, split, leg, from);
fail:
    return status;
}

static enum smfar_status take_results(struct call *call, const struct split *split)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    char *slot = (char *)(uintptr_t)(comm->window->peer[comm->rank] + comm->window->slot);
    for (int r = 0; r < comm->ranks && !split->inside; r++) {
        const struct part *part = &split->part[r];
        if (r == comm->rank) continue;
        TRY(copy_inside(call, split->plan->blocks, split->recv + part->begin,
                        slot + result_at(split, comm->ranks, comm->rank, r), part->bytes));
    }
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status split_peer_step(struct call *call, const struct split *split)
{
    enum smfar_status status;
    TRY(meeting_enqueue(call, &(struct meeting){0}));
    TRY(send_inputs(call, split));
    for (uint64_t leg = 0; leg < split_legs(split, call->comm->ranks); leg++)
        TRY(reduce_leg(call, split, leg));
    uint64_t number = meeting_number(call->sequence, split->steps + 1);
    TRY(courier_deliver(call, number, split->last && split->inside));
    return take_results(call, split);
fail:
    return status;
}
