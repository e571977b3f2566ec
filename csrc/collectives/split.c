/* See split.h. In an all-reduce a step is the next stretch of the tensor, of which each rank has a
 * share. In one with RMSNorm each rank has its next own rows, so that a sharded residual leaves
 * nobody idle. Sums that every rank is to get are no part of this: plan_norm.c. */
#include "split.h"

#include <string.h>

#include "../comm/courier.h"
#include "../comm/meeting.h"

static size_t chunk_bytes(const struct split *split, int dtype)
{
    return split->plan->chunk * dtype_bytes(dtype);
}

static void cut_elements(struct split *split, size_t chunk, int ranks)
{
    size_t at = split->steps * chunk, bytes = lesser(chunk, split->total - at);
    for (int r = 0; r < ranks; r++) {
        size_t begin, end;
        share_of(bytes, ranks, r, &begin, &end);
        split->part[r] = (struct part){at + begin, end - begin};
    }
    split->last = at + bytes == split->total;
}

static void cut_rows(struct split *split, int ranks)
{
    size_t rows = split->norm->rows, row = split->norm->hidden * dtype_bytes(split->norm->dtype);
    size_t all = (size_t)ranks, most = split->plan->chunk / split->norm->hidden / all;
    for (int r = 0; r < ranks; r++) {
        size_t end = rows_before(rows, r + 1, ranks);
        size_t begin = lesser(rows_before(rows, r, ranks) + split->steps * most, end);
        split->part[r] = (struct part){begin * row, lesser(most, end - begin) * row};
    }
    split->last = (split->steps + 1) * most * all >= rows;
}

/* The parts of step number `steps`. */
static void cut(struct split *split, const struct call *call)
{
    if (split->norm)
        cut_rows(split, call->comm->ranks);
    else
        cut_elements(split, chunk_bytes(split, call->dtype), call->comm->ranks);
}

uint64_t split_legs(const struct split *split, int ranks)
{
    size_t most = 1;
    for (int r = 0; r < ranks; r++)
        if (split->part[r].bytes > most) most = split->part[r].bytes;
    return (most + split->plan->leg - 1) / split->plan->leg;
}

struct part split_leg(const struct split *split, int r, uint64_t leg)
{
    const struct part *part = &split->part[r];
    size_t from = lesser((size_t)leg * split->plan->leg, part->bytes);
    return (struct part){part->begin + from, lesser(split->plan->leg, part->bytes - from)};
}

/* The kernel takes a sharded residual from my first row of the leg on. */
static void fill_rows(const struct call *call, const struct split *split, struct part leg,
                      struct norm_kargs *args)
{
    const struct smfar_rms_norm *norm = split->norm;
    size_t row = norm->hidden * dtype_bytes(norm->dtype);
    size_t own = rows_before(norm->rows, call->comm->rank, call->comm->ranks) * row;
    if (norm->residual) args->residual = (uint64_t)(uintptr_t)norm->residual + leg.begin - own;
    args->kept = norm->residual != NULL;
    args->rows = (uint32_t)(leg.bytes / row);
    norm_fill_args(norm, split->plan, args);
}

enum smfar_status split_launch(struct call *call, const struct split *split, struct part leg,
                               struct norm_kargs *args)
{
    const struct plan *plan = split->plan;
    args->common.count = leg.bytes / dtype_bytes((int)kernel_rows[plan->kernel].dtype);
    if (split->norm) fill_rows(call, split, leg, args);
    return channel_launch(call, plan->kernel, plan->blocks, plan->threads, 0, &args->common);
}

static int is_through_switch(const struct split *split)
{
    return split->plan->algorithm == ALGORITHM_SPLIT_MC;
}

/* Where outputs lie, each rank's its own matter. But own rows of all ranks lie in a tensor as they
 * do not in a slot, and the switch sums at one place: through it all are in their tensors, or none.
 */
static enum smfar_status find_places(const struct call *call, struct split *split)
{
    enum smfar_status status = courier_meet(call, split->places);
    split->inside = call->place != 0;
    if (status != SMFAR_OK || !split->norm || !is_through_switch(split)) return status;
    for (int r = 0; r < call->comm->ranks; r++)
        split->inside &= split->places[r] != 0;
    if (!split->inside) memset(split->places, 0, sizeof(split->places));
    return SMFAR_OK;
}

/* Where one copy serves all: all ranks, I too, want it at one place. */
static int are_together(const struct smfar_comm *comm, const struct split *split)
{
    int together = comm->agreed.multicast_copy;
    for (int r = 0; r < comm->ranks; r++)
        together &= split->places[r] == split->places[0];
    return together;
}

static enum smfar_status run(struct call *call, struct split *split)
{
    enum smfar_status status = find_places(call, split);
    split->together = are_together(call->comm, split);
    while (status == SMFAR_OK) {
        status =
            is_through_switch(split) ? split_mc_step(call, split) : split_peer_step(call, split);
        if (split->last) break;
        split->legs += split_legs(split, call->comm->ranks);
        split->steps++;
        cut(split, call);
    }
    return status;
}

static uint64_t staged_bytes(const struct call *call, const struct split *split)
{
    uint64_t ranks = (uint64_t)call->comm->ranks;
    if (is_through_switch(split))
        return split->inside && split->send == split->recv ? 0 : split->total;
    return split->inside ? 0 : split->total / ranks * (ranks - 1);
}

enum smfar_status split_enqueue(struct call *call, const struct planned *planned, const void *send,
                                void *recv, const struct smfar_rms_norm *norm)
{
    struct split split = {.plan = &planned->plan, .norm = norm, .send = send, .recv = recv};
    size_t chunk = chunk_bytes(&split, call->dtype);
    split.total = call->count * dtype_bytes(call->dtype);
    split.room = share_bytes(chunk, call->comm->ranks);
    cut(&split, call); /* also for nothing: the others compare what this rank has called */
    if (!window_offset(call->comm->window, recv, split.total, &call->place)) call->place = 0;
    enum smfar_status status = collective_start(call, planned);
    if (status != SMFAR_OK) return status;
    status = run(call, &split);
    collective_count(call, planned, split.total, staged_bytes(call, &split));
    return channel_end(call, status);
}
