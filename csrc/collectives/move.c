/* For every step a meeting (all receivers are ready), copies to the others, a meeting (all have
 * arrived), and for those whose output does not lie in the window, copies out of the staging slot,
 * which is divided among the ranks that send.
 *
 * Meetings are made by the streams, and copies by the courier, which knows where the others'
 * outputs lie; then no kernel runs. Where streams cannot wait, kernels meet, and all data go
 * through the slots. */
#include "move.h"

#include "../comm/courier.h"
#include "../comm/meeting.h"

struct loop {
    const struct move *move;
    struct errand *errand; /* NULL: kernels meet */
    size_t part;           /* bytes of the slot per sender, and of a step */
    size_t total;          /* bytes per pair of ranks */
    size_t at;             /* where the step begins, in every tensor */
    size_t bytes;          /* of the step */
    uint64_t steps;        /* so far */
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
    for (int r = 0; r < call->comm->ranks; r++)
        if (overlaps(move->to[r], total, base, bytes)) return 1;
    return 0;
}

/* The place in my window of what the others send me, if it can be sent there: side by side in the
 * order of the ranks. Else 0. */
static size_t find_place(const struct call *call, const struct move *move, size_t total)
{
    int ranks = call->comm->ranks, every = move->sender == EVERY_RANK;
    char *base = move->from[every ? 0 : move->sender];
    size_t bytes = every ? (size_t)ranks * total : total, place = 0;
    if (!base || !total || (!every && move->sender == call->comm->rank)) return 0;
    for (int r = 0; r < ranks && every; r++)
        if (move->from[r] != base + (size_t)r * total) return 0;
    if (is_in_the_way(call, move, base, bytes, total)) return 0;
    return window_offset(call->comm->window, base, bytes, &place) ? place : 0;
}

static enum smfar_status begin_errand(const struct call *call, struct loop *loop)
{
    const struct move *move = loop->move;
    uint64_t steps = loop->total ? (loop->total + loop->part - 1) / loop->part : 1;
    enum smfar_status status = courier_begin(call, (int)steps, &loop->errand);
    if (status != SMFAR_OK) return status;
    loop->errand->everyone = move->everyone != NULL;
    for (int r = 0; r < call->comm->ranks; r++)
        if (r != call->comm->rank)
            loop->errand->to[r] = move->everyone ? move->everyone : move->to[r];
    return SMFAR_OK;
}

/* This step's copies, ready once the receivers are. */
static enum smfar_status add_leg(const struct call *call, struct loop *loop)
{
    size_t mine = loop->move->sender == EVERY_RANK ? loop->total * (size_t)call->comm->rank : 0;
    struct leg leg = {.slots_only = loop->steps > 1,
                      .source = loop->at,
                      .at = mine + loop->at,
                      .slot_at = place_of(loop, call->comm->rank),
                      .bytes = loop->bytes,
                      .carried = meeting_number(call->sequence, loop->steps)};
    return courier_add(loop->errand, call->stream, &leg);
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
    struct meeting ready = {0};
    loop->steps++;
    TRY(meeting_enqueue(call, &ready));
    TRY(add_leg(call, loop));
    if (call->place) TRY(take_own(call, loop));
    TRY(meeting_await_carried(call, meeting_number(call->sequence, loop->steps), 0));
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
        status = loop->errand ? step_by_streams(call, loop) : step_by_kernels(call, loop);
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
    status = collective_begin(call, &planned);
    if (status != SMFAR_OK) return status;
    loop.part = planned->plan.chunk * element;
    if (planned->plan.streams) status = begin_errand(call, &loop);
    if (status == SMFAR_OK) status = run(call, &loop);
    if (status == SMFAR_OK && loop.errand)
        status = courier_send(loop.errand);
    else
        courier_drop(loop.errand);
    uint64_t bytes = received(call, move, loop.total);
    collective_count(planned, bytes, call->place ? 0 : bytes);
    return channel_end(call, status);
}
