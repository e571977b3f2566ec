/* What no kernel pulls (pull.c) is copied. For every step a meeting (all receivers are ready),
 * copies to the others, a meeting (all have arrived), and copies out of the staging slot, which is
 * divided among the ranks that send.
 *
 * Usually kernels meet. Where no kernel is allowed the streams do, and copies go straight into
 * those outputs that lie in the window; when all do, the whole is one step.
 *
 * Where each pair of ranks has a size of its own the hosts meet first, since how many steps there
 * are is known only when all have called. */
#include "move.h"

#include "../comm/courier.h"
#include "../comm/meeting.h"
#include "../comm/parts.h"

struct loop {
    const struct move *move;
    size_t part;                      /* bytes of the slot per sender, and of a step */
    size_t total;                     /* bytes per pair of ranks, or of the largest */
    size_t at;                        /* where the step begins, in every tensor */
    uint64_t steps;                   /* so far */
    uint64_t places[SMFAR_MAX_RANKS]; /* where streams meet */
    struct parts parts;               /* of every rank, if uneven */
};

/* Where in a slot rank r's data lie. */
static size_t place_of(const struct loop *loop, int r)
{
    return loop->move->sender == EVERY_RANK ? loop->part * (size_t)r : 0;
}

/* Of `all` bytes for a rank, how many this step moves. */
static size_t in_step(const struct loop *loop, size_t all)
{
    size_t left = all > loop->at ? all - loop->at : 0;
    return left < loop->part ? left : loop->part;
}

static size_t bytes_to(const struct loop *loop, int r)
{
    return in_step(loop, loop->move->uneven ? loop->move->to_bytes[r] : loop->total);
}

static size_t bytes_from(const struct loop *loop, int r)
{
    return in_step(loop, loop->move->uneven ? loop->move->from_bytes[r] : loop->total);
}

/* ---- straight into the outputs ---- */

/* Would what arrives change what this rank has still to send? */
static int is_in_the_way(const struct call *call, const struct move *move, const char *base,
                         size_t bytes, size_t own_at, size_t total)
{
    int rank = call->comm->rank;
    if (move->everyone)
        return move->everyone != move->from[rank] && overlap(move->everyone, total, base, bytes);
    for (int r = 0; r < call->comm->ranks; r++) {
        int stays = r == rank && move->to[r] == base + own_at;
        size_t sent = move->uneven ? move->to_bytes[r] : total;
        if (!stays && overlap(move->to[r], sent, base, bytes)) return 1;
    }
    return 0;
}

/* The place in my window of what the others send me, if it can be sent there: side by side in the
 * order of the ranks, my own part in its turn or elsewhere. Else 0. */
static size_t find_place(const struct call *call, const struct move *move, size_t total)
{
    int rank = call->comm->rank, ranks = call->comm->ranks;
    char *base = NULL;
    size_t bytes = 0, own_at = 0, place = 0;
    for (int r = 0; r < ranks; r++) {
        size_t gets = move->uneven ? move->from_bytes[r] : total;
        if (move->sender != EVERY_RANK && r != move->sender) continue;
        if (r == rank) own_at = bytes;
        if (r != rank && gets) {
            if (!move->from[r]) return 0;
            if (!base) base = move->from[r] - bytes;
            if (move->from[r] != base + bytes) return 0;
        }
        bytes += gets;
    }
    if (!base || is_in_the_way(call, move, base, bytes, own_at, total)) return 0;
    return window_offset(call->comm->window, base, bytes, &place) ? place : 0;
}

static int receives(const struct call *call, const struct loop *loop, int r)
{
    if (loop->move->uneven) return loop->parts.receives[r];
    return call->collective == COLLECTIVE_GATHER ? r == call->root : r != loop->move->sender;
}

/* All ranks know all places: do all that receive have one? A gather's root alone receives. */
static int all_straight(const struct call *call, const struct loop *loop)
{
    for (int r = 0; r < call->comm->ranks; r++)
        if (receives(call, loop, r) && !loop->places[r]) return 0;
    return 1;
}

/* Where in rank r's tensor this step's data of mine go. */
static size_t offset_at(const struct call *call, const struct loop *loop, int r)
{
    if (loop->move->uneven) return loop->parts.offset[r] + loop->at;
    if (loop->move->sender != EVERY_RANK) return loop->at;
    return loop->total * (size_t)call->comm->rank + loop->at;
}

static const char *source_for(const struct loop *loop, int r)
{
    return loop->move->everyone ? loop->move->everyone : loop->move->to[r];
}

/* One copy serves all when everybody, I too, wants the data at one place and they do not lie there
 * already. */
static int suits_multicast(const struct call *call, const struct loop *loop, size_t at,
                           size_t slot_at)
{
    const struct smfar_comm *comm = call->comm;
    CUdeviceptr mine = courier_address(call, loop->places, comm->rank, at, slot_at);
    const char *own = loop->move->from[comm->rank];
    if (!loop->move->everyone || !comm->agreed.multicast_copy) return 0;
    /* what lies there then is not an output */
    if (call->place && own + loop->at != (const char *)(uintptr_t)mine) return 0;
    for (int r = 0; r < comm->ranks; r++)
        if (courier_address(call, loop->places, r, at, slot_at) - comm->window->peer[r] !=
            mine - comm->window->peer[comm->rank])
            return 0;
    size_t bytes = in_step(loop, loop->total);
    return !overlap(loop->move->everyone + loop->at, bytes, (const char *)(uintptr_t)mine, bytes);
}

/* This step's copies, by the call's own stream: nothing else has to run meanwhile. */
static enum smfar_status carry(const struct call *call, const struct loop *loop)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    const struct window *window = comm->window;
    size_t slot_at = place_of(loop, comm->rank);
    int multicast = suits_multicast(call, loop, offset_at(call, loop, comm->rank), slot_at);
    for (int i = 1; i < comm->ranks; i++) { /* so that ranks do not all write to the same */
        int r = (comm->rank + i) % comm->ranks;
        const char *source = source_for(loop, r);
        size_t bytes = source ? bytes_to(loop, r) : 0, at = offset_at(call, loop, r);
        CUdeviceptr to = courier_address(call, loop->places, r, at, slot_at);
        if (multicast) to = to - window->peer[r] + window->multicast;
        if (bytes) TRY(copy_outside(call, (void *)(uintptr_t)to, source + loop->at, bytes));
        if (multicast) break;
    }
    return SMFAR_OK;
fail:
    return status;
}

/* ---- through the slots, with kernels ---- */

static enum smfar_status put(const struct call *call, const struct loop *loop)
{
    enum smfar_status status;
    const struct move *move = loop->move;
    int rank = call->comm->rank, ranks = call->comm->ranks;
    size_t place = place_of(loop, rank);
    if (move->everyone)
        return copy_to_slots(call, move->everyone + loop->at, place, in_step(loop, loop->total));
    for (int i = 1; i < ranks; i++) {
        int r = (rank + i) % ranks; /* so that ranks do not all write to the same */
        size_t bytes = move->to[r] ? bytes_to(loop, r) : 0;
        if (bytes) TRY(copy_to_slot_of(call, r, move->to[r] + loop->at, place, bytes));
    }
    return SMFAR_OK;
fail:
    return status;
}

/* ---- either ---- */

static enum smfar_status take_own(const struct call *call, const struct loop *loop)
{
    const struct move *move = loop->move;
    int rank = call->comm->rank;
    const char *own = move->everyone ? move->everyone : move->to[rank];
    size_t bytes = own && move->from[rank] ? bytes_from(loop, rank) : 0;
    return bytes ? copy_outside(call, move->from[rank] + loop->at, own + loop->at, bytes)
                 : SMFAR_OK;
}

static enum smfar_status take(const struct call *call, const struct loop *loop)
{
    enum smfar_status status;
    const struct move *move = loop->move;
    TRY(take_own(call, loop)); /* first: it may lie where another rank's data go */
    for (int r = 0; r < call->comm->ranks; r++) {
        size_t bytes = move->from[r] && r != call->comm->rank ? bytes_from(loop, r) : 0;
        if (bytes) TRY(copy_from_slot(call, move->from[r] + loop->at, place_of(loop, r), bytes));
    }
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status step_by_kernels(struct call *call, const struct loop *loop)
{
    enum smfar_status status;
    TRY(channel_barrier(call, 0));
    if (loop->total) TRY(put(call, loop));
    TRY(channel_barrier(call, 0));
    if (loop->total) TRY(take(call, loop));
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status step_by_streams(struct call *call, struct loop *loop)
{
    enum smfar_status status;
    uint64_t number = meeting_number(call->sequence, ++loop->steps);
    int last = call->place && loop->at + loop->part >= loop->total;
    TRY(meeting_enqueue(call, &(struct meeting){0}));
    TRY(carry(call, loop));
    if (call->place) TRY(take_own(call, loop));
    TRY(meeting_carry(call, number, last));
    if (!call->place && loop->total) TRY(take(call, loop));
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status run(struct call *call, struct loop *loop)
{
    enum smfar_status status = SMFAR_OK;
    do { /* also once for no elements: the others compare what this rank has called */
        status = call->streams ? step_by_streams(call, loop) : step_by_kernels(call, loop);
        loop->at += loop->part;
    } while (status == SMFAR_OK && loop->at < loop->total);
    return status;
}

static uint64_t received(const struct call *call, const struct move *move, size_t total)
{
    uint64_t bytes = 0;
    for (int r = 0; r < call->comm->ranks; r++)
        if (move->from[r]) bytes += move->uneven ? move->from_bytes[r] : total;
    return bytes;
}

/* What only all hosts together know: where outputs lie, and how large uneven parts are. When those
 * do not agree, which every rank finds out, the collective moves nothing: `refusal_out`. */
static enum smfar_status meet(struct call *call, struct loop *loop, enum smfar_status *refusal_out)
{
    enum smfar_status status;
    *refusal_out = SMFAR_OK;
    if (!call->streams && !loop->move->uneven) return SMFAR_OK;
    TRY(courier_meet(call, loop->places));
    if (loop->move->uneven) {
        *refusal_out = parts_read(call->comm, &loop->parts);
        loop->total = loop->parts.largest;
        if (*refusal_out != SMFAR_OK) loop->total = loop->part = 0;
    }
    if (call->streams && loop->total && all_straight(call, loop)) loop->part = loop->total;
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status move_enqueue(struct call *call, const struct move *move)
{
    const struct planned *planned;
    size_t element = dtype_bytes(call->dtype);
    struct loop loop = {.move = move, .total = call->count * element};
    enum smfar_status refusal = SMFAR_OK, status = collective_plan(call, &planned);
    if (status != SMFAR_OK) return status;
    if (planned->plan.pull) return pull_enqueue(call, planned, move);
    if (planned->plan.streams) call->place = find_place(call, move, loop.total);
    if (move->uneven) parts_tell(call->comm, move->to_bytes, move->from_bytes);
    status = collective_start(call, planned);
    if (status != SMFAR_OK) return status;
    loop.part = planned->plan.chunk * element;
    status = meet(call, &loop, &refusal);
    if (status == SMFAR_OK) status = run(call, &loop);
    uint64_t bytes = loop.total ? received(call, move, loop.total) : 0;
    collective_count(call, planned, bytes, call->place ? 0 : bytes);
    status = channel_end(call, status);
    return status == SMFAR_OK ? refusal : status;
}
