/* All-reduce with RMSNorm over peer memory in which copy engines do all that crosses a link: they
 * bring every rank's inputs of a rank's own rows to the staging slot of that rank, its kernel adds
 * and normalises them in its own memory, and they bring the rows back, leg by leg: see
 * split_peer.c, of which this is the form for whole rows.
 *
 * In every step each rank has its next own rows, so that a sharded residual leaves nobody idle.
 * Sums that every rank is to get are no part of this: plan_norm.c. */
#include <string.h>

#include "../comm/courier.h"
#include "../comm/meeting.h"
#include "collectives.h"

struct split {
    const struct plan *plan;
    const struct smfar_rms_norm *norm;
    const char *send;
    char *recv;
    size_t row;       /* bytes */
    size_t most, leg; /* rows of a rank in a step, and in a leg */
    size_t room;      /* bytes of a rank's rows in the slot */
    size_t steps;     /* so far */
    uint64_t legs;    /* likewise */
    int last;         /* step */
    uint64_t places[SMFAR_MAX_RANKS];
};

/* Some rows of one rank. */
struct rows {
    size_t begin, count;
};

/* Where rank r comes among the others of `me`. */
static size_t among_others(int me, int r) { return (size_t)(r < me ? r : r - 1); }

/* Rank r's own rows in leg number `leg` of this step. */
static struct rows rows_of(const struct split *split, int ranks, int r, size_t leg)
{
    size_t rows = split->norm->rows, rank = (size_t)r, all = (size_t)ranks;
    size_t end = rows * (rank + 1) / all, begin = rows * rank / all + split->steps * split->most;
    size_t step_end = lesser(begin + split->most, end);
    begin += leg * split->leg;
    if (begin >= step_end) return (struct rows){end, 0};
    return (struct rows){begin, lesser(split->leg, step_end - begin)};
}

static size_t legs_of(const struct split *split)
{
    return (split->most + split->leg - 1) / split->leg;
}

static size_t result_at(const struct split *split, int ranks, int me, int r)
{
    return ((size_t)(ranks - 1) + among_others(me, r)) * split->room;
}

/* ---- inputs ---- */

static enum smfar_status send_leg(const struct call *call, const struct split *split, size_t leg)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    for (int i = 1; i < comm->ranks; i++) { /* so that ranks do not all write to the same */
        int r = (comm->rank + i) % comm->ranks;
        struct rows rows = rows_of(split, comm->ranks, r, leg);
        CUdeviceptr slot = comm->window->peer[r] + comm->window->slot;
        size_t at = among_others(r, comm->rank) * split->room + leg * split->leg * split->row;
        TRY(courier_copy(call, COURIER_INPUTS, slot + at, split->send + rows.begin * split->row,
                         rows.count * split->row));
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
    for (size_t leg = 0; leg < legs_of(split); leg++)
        TRY(send_leg(call, split, leg));
    /* one engine makes both kinds of copies: results must not hold up inputs that others wait for
     */
    return courier_inputs_first(call);
fail:
    return status;
}

/* ---- results ---- */

static enum smfar_status copy_leg(const struct call *call, const struct split *split,
                                  struct rows rows, size_t leg)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    size_t at = rows.begin * split->row;
    for (int i = 1; i < comm->ranks; i++) { /* so that ranks do not all write to the same */
        int r = (comm->rank + i) % comm->ranks;
        size_t slot_at =
            result_at(split, comm->ranks, r, comm->rank) + leg * split->leg * split->row;
        TRY(courier_copy(call, COURIER_RESULTS,
                         courier_address(call, split->places, r, at, slot_at), split->recv + at,
                         rows.count * split->row));
    }
    return SMFAR_OK;
fail:
    return status;
}

static void fill_args(const struct call *call, const struct split *split, struct rows rows,
                      size_t leg, struct norm_kargs *args)
{
    const struct smfar_rms_norm *norm = split->norm;
    const struct rows own = {norm->rows * (size_t)call->comm->rank / (size_t)call->comm->ranks, 0};
    memset(args, 0, sizeof(*args));
    args->common.src = (uint64_t)(uintptr_t)split->send + rows.begin * split->row;
    args->common.dst = (uint64_t)(uintptr_t)split->recv + rows.begin * split->row;
    args->common.offset = call->comm->window->slot + leg * split->leg * split->row;
    args->common.stride = (uint32_t)split->room;
    args->common.count = rows.count * norm->hidden;
    if (norm->residual)
        args->residual =
            (uint64_t)(uintptr_t)norm->residual + (rows.begin - own.begin) * split->row;
    args->kept = norm->residual != NULL;
    args->rows = (uint32_t)rows.count;
    norm_fill_args(norm, split->plan, args);
}

/* Normalises one leg of my own rows in place in the output, and has it copied. */
static enum smfar_status norm_leg(struct call *call, const struct split *split, size_t leg)
{
    enum smfar_status status;
    struct norm_kargs args;
    const struct plan *plan = split->plan;
    struct rows rows = rows_of(split, call->comm->ranks, call->comm->rank, leg);
    TRY(meeting_await_sent(call, meeting_number(call->sequence, split->legs + leg + 1)));
    if (rows.count == 0) return SMFAR_OK;
    fill_args(call, split, rows, leg, &args);
    TRY(channel_launch(call, plan->kernel, plan->blocks, plan->threads, 0, &args.common));
    TRY(courier_follow(call, COURIER_RESULTS));
    return copy_leg(call, split, rows, leg);
fail:
    return status;
}

static enum smfar_status take_results(struct call *call, const struct split *split)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    char *slot = (char *)(uintptr_t)(comm->window->peer[comm->rank] + comm->window->slot);
    struct split whole = *split; /* all legs are there */
    whole.leg = split->most;
    for (int r = 0; r < comm->ranks && !call->place; r++) {
        if (r == comm->rank) continue;
        struct rows rows = rows_of(&whole, comm->ranks, r, 0);
        TRY(copy_inside(call, split->plan->blocks, split->recv + rows.begin * split->row,
                        slot + result_at(split, comm->ranks, comm->rank, r),
                        rows.count * split->row));
    }
    return SMFAR_OK;
fail:
    return status;
}

/* ---- a step ---- */

static enum smfar_status step(struct call *call, struct split *split)
{
    enum smfar_status status;
    TRY(meeting_enqueue(call, &(struct meeting){0}));
    TRY(send_inputs(call, split));
    for (size_t leg = 0; leg < legs_of(split); leg++)
        TRY(norm_leg(call, split, leg));
    split->legs += legs_of(split);
    uint64_t number = meeting_number(call->sequence, split->steps + 1);
    TRY(courier_deliver(call, number, split->last && call->place));
    return take_results(call, split);
fail:
    return status;
}

static enum smfar_status run(struct call *call, struct split *split)
{
    size_t ranks = (size_t)call->comm->ranks, own = (split->norm->rows + ranks - 1) / ranks;
    enum smfar_status status;
    do { /* also once for no rows: the others compare what this rank has called */
        split->last = (split->steps + 1) * split->most >= own;
        status = step(call, split);
        split->steps++;
    } while (status == SMFAR_OK && !split->last);
    return status;
}

enum smfar_status split_norm_enqueue(struct call *call, const struct planned *planned,
                                     const void *send, void *recv,
                                     const struct smfar_rms_norm *norm)
{
    const struct plan *plan = &planned->plan;
    size_t ranks = (size_t)call->comm->ranks, total = call->count * dtype_bytes(call->dtype);
    struct split split = {.plan = plan, .norm = norm, .send = send, .recv = recv};
    split.row = norm->hidden * dtype_bytes(norm->dtype);
    split.most = plan->chunk / norm->hidden / ranks;
    split.leg = plan->leg / split.row;
    split.room = share_bytes(split.most * split.row, 1);
    if ((norm->rows / ranks / split.most + 2) * legs_of(&split) > MEETINGS_MOST)
        return meeting_too_many();
    if (!window_offset(call->comm->window, recv, total, &call->place)) call->place = 0;
    enum smfar_status status = collective_start(call, planned);
    if (status != SMFAR_OK) return status;
    status = courier_meet(call, split.places);
    if (status == SMFAR_OK) status = run(call, &split);
    collective_count(planned, total, call->place ? 0 : total / ranks * (ranks - 1));
    return channel_end(call, status);
}
