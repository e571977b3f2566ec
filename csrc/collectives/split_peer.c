/* All-reduce over peer memory in which copy engines do all that crosses a link: they bring every
 * rank's inputs of a share to the staging slot of the rank that reduces it, its kernel adds them in
 * its own memory, and they bring the results back, leg by leg. The streams meet before and after
 * and wait for each leg, so a multiprocessor is held for as long as it adds.
 *
 * (Kernels that load from peers while copies are under way in the same direction hinder each other:
 * docs/nvls.md.)
 *
 * The slot holds the inputs of this rank's share from every other rank, and behind them, when the
 * output does not lie in the window, the others' results. Inputs are read where they lie. */
#include <string.h>

#include "../comm/courier.h"
#include "../comm/meeting.h"
#include "collectives.h"

struct split {
    const struct plan *plan;
    const char *send;
    char *recv;
    size_t total, at, bytes; /* of the tensor; where the step begins, and of the step */
    size_t room;             /* of a share in the slot */
    int last;
    uint64_t steps, legs;
    uint64_t places[SMFAR_MAX_RANKS];
};

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

/* Bytes of leg number `leg` of a share. */
static size_t leg_of(const struct split *split, size_t begin, size_t end, uint64_t leg)
{
    size_t from = begin + (size_t)leg * split->plan->leg;
    if (from >= end) return 0;
    return end - from < split->plan->leg ? end - from : split->plan->leg;
}

static uint64_t legs_of(const struct split *split, int ranks)
{
    size_t share = share_bytes(split->bytes, ranks), leg = split->plan->leg;
    return share ? (share + leg - 1) / leg : 1;
}

/* ---- inputs ---- */

static enum smfar_status send_leg(const struct call *call, const struct split *split, uint64_t leg)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    size_t from = (size_t)leg * split->plan->leg, begin, end;
    for (int i = 1; i < comm->ranks; i++) { /* so that ranks do not all write to the same */
        int r = (comm->rank + i) % comm->ranks;
        share_of(split->bytes, comm->ranks, r, &begin, &end);
        CUdeviceptr slot = comm->window->peer[r] + comm->window->slot;
        TRY(courier_copy(call, COURIER_INPUTS, slot + input_at(split, r, comm->rank) + from,
                         split->send + split->at + begin + from, leg_of(split, begin, end, leg)));
    }
    return meeting_sent(call, courier_stream(comm, COURIER_INPUTS),
                        meeting_number(call->sequence, split->legs + leg + 1));
fail:
    return status;
}

static enum smfar_status send_inputs(const struct call *call, const struct split *split)
{
    enum smfar_status status;
    TRY(courier_follow(call, COURIER_INPUTS));
    for (uint64_t leg = 0; leg < legs_of(split, call->comm->ranks); leg++)
        TRY(send_leg(call, split, leg));
    /* one engine makes both kinds of copies: results must not hold up inputs that others wait for
     */
    return courier_inputs_first(call);
fail:
    return status;
}

/* ---- results ---- */

static enum smfar_status copy_leg(const struct call *call, const struct split *split, size_t at,
                                  size_t from, size_t bytes)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    for (int i = 1; i < comm->ranks; i++) { /* so that ranks do not all write to the same */
        int r = (comm->rank + i) % comm->ranks;
        size_t slot_at = result_at(split, comm->ranks, r, comm->rank) + from;
        TRY(courier_copy(call, COURIER_RESULTS,
                         courier_address(call, split->places, r, at, slot_at), split->recv + at,
                         bytes));
    }
    return SMFAR_OK;
fail:
    return status;
}

/* Reduces one leg of my share in place in the output, and has it copied. */
static enum smfar_status reduce_leg(struct call *call, const struct split *split, uint64_t leg)
{
    enum smfar_status status;
    struct kargs args;
    const struct plan *plan = split->plan;
    size_t from = (size_t)leg * plan->leg, begin, end;
    share_of(split->bytes, call->comm->ranks, call->comm->rank, &begin, &end);
    size_t bytes = leg_of(split, begin, end, leg), at = split->at + begin + from;
    memset(&args, 0, sizeof(args));
    args.src = (uint64_t)(uintptr_t)split->send + at;
    args.dst = (uint64_t)(uintptr_t)split->recv + at;
    args.offset = call->comm->window->slot + from;
    args.stride = (uint32_t)split->room;
    args.count = bytes / dtype_bytes((int)kernel_rows[plan->kernel].dtype);
    TRY(meeting_await_sent(call, meeting_number(call->sequence, split->legs + leg + 1)));
    if (bytes == 0) return SMFAR_OK;
    TRY(channel_launch(call, plan->kernel, plan->blocks, plan->threads, 0, &args));
    TRY(courier_follow(call, COURIER_RESULTS));
    return copy_leg(call, split, at, from, bytes);
fail:
    return status;
}

static enum smfar_status take_results(struct call *call, const struct split *split)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    char *slot = (char *)(uintptr_t)(comm->window->peer[comm->rank] + comm->window->slot);
    size_t begin, end;
    for (int r = 0; r < comm->ranks && !call->place; r++) {
        if (r == comm->rank) continue;
        share_of(split->bytes, comm->ranks, r, &begin, &end);
        TRY(copy_inside(call, split->plan->blocks, split->recv + split->at + begin,
                        slot + result_at(split, comm->ranks, comm->rank, r), end - begin));
    }
    return SMFAR_OK;
fail:
    return status;
}

/* ---- a step ---- */

static enum smfar_status step(struct call *call, struct split *split)
{
    enum smfar_status status;
    uint64_t legs = legs_of(split, call->comm->ranks);
    split->steps++;
    TRY(meeting_enqueue(call, &(struct meeting){0}));
    TRY(send_inputs(call, split));
    for (uint64_t leg = 0; leg < legs; leg++)
        TRY(reduce_leg(call, split, leg));
    split->legs += legs;
    uint64_t number = meeting_number(call->sequence, split->steps);
    TRY(courier_deliver(call, number, split->last && call->place));
    return take_results(call, split);
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

enum smfar_status split_peer_enqueue(struct call *call, const struct planned *planned,
                                     const void *send, void *recv)
{
    size_t element = dtype_bytes(call->dtype), chunk = planned->plan.chunk * element;
    struct split split = {.plan = &planned->plan, .send = send, .recv = recv};
    split.total = call->count * element;
    split.room = share_bytes(chunk, call->comm->ranks);
    split.bytes = split.total < chunk ? split.total : chunk;
    if ((split.total / chunk + 1) * legs_of(&split, call->comm->ranks) > MEETINGS_MOST)
        return meeting_too_many();
    if (!window_offset(call->comm->window, recv, split.total, &call->place)) call->place = 0;
    enum smfar_status status = collective_start(call, planned);
    if (status != SMFAR_OK) return status;
    status = courier_meet(call, split.places);
    if (status == SMFAR_OK) status = run(call, &split, chunk);
    uint64_t others = split.total / (uint64_t)call->comm->ranks * (uint64_t)(call->comm->ranks - 1);
    collective_count(planned, split.total, call->place ? 0 : others);
    return channel_end(call, status);
}
