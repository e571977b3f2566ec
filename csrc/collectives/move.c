/* For every step a meeting (all receivers are ready), copies to the others, a meeting (all have
 * arrived), and copies out of the staging slot, which is divided among the ranks that send.
 *
 * Usually kernels meet. Where no kernel is allowed the streams do, and copies go straight into
 * those outputs that lie in the window; when all do, the whole is one step. */
#include "move.h"

#include "../comm/courier.h"
#include "../comm/meeting.h"

struct loop {
    const struct move *move;
    size_t part;                      /* bytes of the slot per sender, and of a step */
    size_t total;                     /* bytes per pair of ranks */
    size_t at;                        /* where the step begins, in every tensor */
    size_t bytes;                     /* of the step */
    uint64_t steps;                   /* so far */
    uint64_t places[SMFAR_MAX_RANKS]; /* where streams meet */
};

/* Where in a slot rank r's data lie. */
static size_t place_of(const struct loop *loop, int r)
{
    return loop->move->sender == EVERY_RANK ? loop->part * (size_t)r : 0;
}

/* ---- straight into the outputs ---- */

static int overlaps(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    return a && a < b + b_bytes && b < a + a_bytes;
}

/* Would what arrives change what this rank has still to send? */
static int is_in_the_way(const struct call *call, const struct move *move, const char *base,
                         size_t bytes, size_t total)
{
    int rank = call->comm->rank;
    if (move->everyone)
        return move->everyone != move->from[rank] && overlaps(move->everyone, total, base, bytes);
    for (int r = 0; r < call->comm->ranks; r++) {
        int stays = r == rank && move->to[r] == base + (size_t)r * total;
        if (!stays && overlaps(move->to[r], total, base, bytes)) return 1;
    }
    return 0;
}

/* The place in my window of what the others send me, if it can be sent there: side by side in the
 * order of the ranks, my own part in its turn or elsewhere. Else 0. */
static size_t find_place(const struct call *call, const struct move *move, size_t total)
{
    int rank = call->comm->rank, ranks = call->comm->ranks, every = move->sender == EVERY_RANK;
    int first = every ? rank == 0 && ranks > 1 : move->sender;
    char *base = move->from[first];
    size_t bytes = every ? (size_t)ranks * total : total, place = 0;
    if (!base || !total || (!every && move->sender == rank)) return 0;
    if (every) base -= (size_t)first * total;
    for (int r = 0; r < ranks && every; r++)
        if (r != rank && move->from[r] != base + (size_t)r * total) return 0;
    if (is_in_the_way(call, move, base, bytes, total)) return 0;
    return window_offset(call->comm->window, base, bytes, &place) ? place : 0;
}

/* All ranks know all places: do all that receive have one? A gather's root alone receives. */
static int all_straight(const struct call *call, const struct loop *loop)
{
    for (int r = 0; r < call->comm->ranks; r++) {
        int gets =
            call->collective == COLLECTIVE_GATHER ? r == call->root : r != loop->move->sender;
        if (gets && !loop->places[r]) return 0;
    }
    return 1;
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
    return !overlaps(loop->move->everyone + loop->at, loop->bytes, (const char *)(uintptr_t)mine,
                     loop->bytes);
}

/* This step's copies. */
static enum smfar_status carry(const struct call *call, const struct loop *loop)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    const struct window *window = comm->window;
    int every = loop->move->sender == EVERY_RANK;
    size_t at = (every ? loop->total * (size_t)comm->rank : 0) + loop->at;
    size_t slot_at = place_of(loop, comm->rank);
    int multicast = suits_multicast(call, loop, at, slot_at);
    for (int i = 1; i < comm->ranks; i++) { /* so that ranks do not all write to the same */
        int r = (comm->rank + i) % comm->ranks;
        const char *source = source_for(loop, r);
        CUdeviceptr to = courier_address(call, loop->places, r, at, slot_at);
        if (multicast) to = to - window->peer[r] + window->multicast.base;
        if (source) TRY(courier_copy(call, COURIER_RESULTS, to, source + loop->at, loop->bytes));
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
    if (move->everyone) return copy_to_slots(call, move->everyone + loop->at, place, loop->bytes);
    for (int i = 1; i < ranks; i++) {
        int r = (rank + i) % ranks; /* so that ranks do not all write to the same */
        if (move->to[r]) TRY(copy_to_slot_of(call, r, move->to[r] + loop->at, place, loop->bytes));
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
    if (!own || !move->from[rank]) return SMFAR_OK;
    return copy_outside(call, move->from[rank] + loop->at, own + loop->at, loop->bytes);
}

static enum smfar_status take(const struct call *call, const struct loop *loop)
{
    enum smfar_status status;
    const struct move *move = loop->move;
    TRY(take_own(call, loop)); /* first: it may lie where another rank's data go */
    for (int r = 0; r < call->comm->ranks; r++)
        if (move->from[r] && r != call->comm->rank)
            TRY(copy_from_slot(call, move->from[r] + loop->at, place_of(loop, r), loop->bytes));
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status step_by_kernels(struct call *call, const struct loop *loop)
{
    enum smfar_status status;
    TRY(channel_barrier(call, 0));
    if (loop->bytes) TRY(put(call, loop));
    TRY(channel_barrier(call, 0));
    if (loop->bytes) TRY(take(call, loop));
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status step_by_streams(struct call *call, struct loop *loop)
{
    enum smfar_status status;
    uint64_t number = meeting_number(call->sequence, ++loop->steps);
    TRY(meeting_enqueue(call, &(struct meeting){0}));
    TRY(courier_follow(call, COURIER_RESULTS));
    TRY(carry(call, loop));
    if (call->place) TRY(take_own(call, loop));
    TRY(courier_deliver(call, number, 0));
    if (!call->place && loop->bytes) TRY(take(call, loop));
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status run(struct call *call, struct loop *loop)
{
    enum smfar_status status = SMFAR_OK;
    do { /* also once for no elements: the others compare what this rank has called */
        size_t left = loop->total - loop->at;
        loop->bytes = left < loop->part ? left : loop->part;
        status = call->streams ? step_by_streams(call, loop) : step_by_kernels(call, loop);
        loop->at += loop->bytes;
    } while (status == SMFAR_OK && loop->at < loop->total);
    return status;
}

static uint64_t received(const struct call *call, const struct move *move, size_t total)
{
    uint64_t bytes = 0;
    for (int r = 0; r < call->comm->ranks; r++)
        bytes += move->from[r] ? total : 0;
    return bytes;
}

enum smfar_status move_enqueue(struct call *call, const struct move *move)
{
    const struct planned *planned;
    size_t element = dtype_bytes(call->dtype);
    struct loop loop = {.move = move, .total = call->count * element};
    enum smfar_status status = collective_plan(call, &planned);
    if (status != SMFAR_OK) return status;
    if (planned->plan.streams) call->place = find_place(call, move, loop.total);
    status = collective_start(call, planned);
    if (status != SMFAR_OK) return status;
    loop.part = planned->plan.chunk * element;
    if (call->streams) status = courier_meet(call, loop.places);
    if (status == SMFAR_OK && call->streams && loop.total && all_straight(call, &loop))
        loop.part = loop.total;
    if (status == SMFAR_OK) status = run(call, &loop);
    uint64_t bytes = received(call, move, loop.total);
    collective_count(planned, bytes, call->place ? 0 : bytes);
    return channel_end(call, status);
}
