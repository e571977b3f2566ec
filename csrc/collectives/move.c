/* For every chunk a barrier (all slots are free), copies into the others' slots, a barrier (all
 * have arrived), and copies out of my own. A slot is divided among the ranks that send. */
#include "move.h"

struct loop {
    const struct move *move;
    size_t part;  /* bytes of the slot per sender */
    size_t at;    /* where the chunk begins, in every tensor */
    size_t bytes; /* of the chunk */
};

/* Where in a slot rank r's data lie. */
static size_t place_of(const struct loop *loop, int r)
{
    return loop->move->sender == EVERY_RANK ? loop->part * (size_t)r : 0;
}

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

static enum smfar_status take(const struct call *call, const struct loop *loop)
{
    enum smfar_status status;
    const struct move *move = loop->move;
    int rank = call->comm->rank;
    const char *own = move->everyone ? move->everyone : move->to[rank];
    /* first: it may lie where another rank's data go */
    if (own && move->from[rank])
        TRY(copy_outside(call, move->from[rank] + loop->at, own + loop->at, loop->bytes));
    for (int r = 0; r < call->comm->ranks; r++)
        if (move->from[r] && r != rank)
            TRY(copy_from_slot(call, move->from[r] + loop->at, place_of(loop, r), loop->bytes));
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status step(struct call *call, const struct loop *loop)
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

/* Bytes that pass through this rank's own slot. */
static uint64_t staged(const struct call *call, const struct move *move, size_t total)
{
    uint64_t bytes = 0;
    for (int r = 0; r < call->comm->ranks; r++)
        bytes += move->from[r] ? total : 0;
    return bytes;
}

enum smfar_status move_enqueue(struct call *call, const struct move *move)
{
    const struct planned *planned;
    enum smfar_status status = collective_begin(call, &planned);
    if (status != SMFAR_OK) return status;
    size_t element = dtype_bytes(call->dtype), total = call->count * element;
    struct loop loop = {move, planned->plan.chunk * element, 0, 0};
    do { /* also once for no elements: the others compare what this rank has called */
        loop.bytes = total - loop.at < loop.part ? total - loop.at : loop.part;
        status = step(call, &loop);
        loop.at += loop.bytes;
    } while (status == SMFAR_OK && loop.at < total);
    collective_count(planned, staged(call, move, total), staged(call, move, total));
    return channel_end(call, status);
}
