/* All-reduce with RMSNorm: a sequence of chunks of whole rows, each one launch. As in an
 * all-reduce, where the results lie is a local matter: in the window, the kernel works in place;
 * elsewhere each chunk goes through the staging slot. Sums that every rank gets go straight to
 * their place in the window, which the ranks have compared, or through the slot's second half. */
#include <string.h>

#include "collectives.h"

struct tensors {
    const char *send;
    char *recv;
    const struct smfar_rms_norm *norm;
    size_t row;    /* bytes */
    size_t offset; /* of recv in the window, if that is where it is */
    int inside;
};

static uint32_t weight_type(const struct smfar_rms_norm *norm)
{
    if (!norm->weight) return NORM_WEIGHT_NONE;
    switch (norm->weight_dtype) {
    case SMFAR_F16:
        return NORM_WEIGHT_F16;
    case SMFAR_BF16:
        return NORM_WEIGHT_BF16;
    case SMFAR_F32:
        return NORM_WEIGHT_F32;
    default:
        return NORM_WEIGHT_F64;
    }
}

void norm_fill_args(const struct smfar_rms_norm *norm, const struct plan *plan,
                    struct norm_kargs *args)
{
    args->weight = (uint64_t)(uintptr_t)norm->weight;
    args->weight_type = weight_type(norm);
    args->hidden = (uint32_t)norm->hidden;
    args->group = (uint32_t)plan->group;
    args->eps = (float)norm->eps;
}

static size_t greater(size_t a, size_t b) { return a > b ? a : b; }

/* My own rows of those from `begin` to `end`: a share of each chunk, but of a sharded residual
 * those that it holds. Sets the first, counted from `begin`, and how many. */
static void share_rows(const struct call *call, const struct smfar_rms_norm *norm, size_t begin,
                       size_t end, struct norm_kargs *args)
{
    int rank = call->comm->rank, ranks = call->comm->ranks;
    int sharded = norm->sums_layout == SMFAR_SUMS_SHARDED;
    size_t base = sharded ? 0 : begin, rows = sharded ? norm->rows : end - begin;
    size_t first = greater(base + rows_before(rows, rank, ranks), begin);
    size_t last = lesser(base + rows_before(rows, rank + 1, ranks), end);
    args->first = (uint32_t)(first < last ? first - begin : 0);
    args->rows = (uint32_t)(first < last ? last - first : 0);
}

static void place_chunk(const struct call *call, const struct tensors *tensors, size_t at,
                        struct kargs *args)
{
    uint64_t from = (uint64_t)(uintptr_t)tensors->send + at;
    uint64_t to = (uint64_t)(uintptr_t)tensors->recv + at;
    args->offset = tensors->inside ? tensors->offset + at : call->channel->slot;
    if (!tensors->inside || from != to) args->src = from;
    if (!tensors->inside) args->dst = to;
}

/* The kernel takes the residual for one of the whole chunk. */
static void place_sums(const struct call *call, const struct plan *plan,
                       const struct tensors *tensors, size_t at, struct norm_kargs *args)
{
    const struct smfar_rms_norm *norm = tensors->norm;
    uint64_t residual = (uint64_t)(uintptr_t)norm->residual;
    args->kept = norm->sums_layout == SMFAR_SUMS_SHARDED;
    if (args->kept)
        residual -= rows_before(norm->rows, call->comm->rank, call->comm->ranks) * tensors->row;
    if (norm->sums_layout != SMFAR_SUMS_NONE && norm->residual) args->residual = residual + at;
    if (norm->sums_layout != SMFAR_SUMS_REPLICATED) return;
    size_t behind = (plan->chunk * dtype_bytes((int)norm->dtype) + 15) / 16 * 16;
    args->spread = call->place ? call->place + at : call->channel->slot + behind;
    if (!call->place) args->sums_dst = (uint64_t)(uintptr_t)norm->sums + at;
}

static enum smfar_status step(struct call *call, const struct plan *plan,
                              const struct tensors *tensors, size_t begin, size_t end)
{
    struct norm_kargs args;
    const struct smfar_rms_norm *norm = tensors->norm;
    memset(&args, 0, sizeof(args));
    args.common.count = (end - begin) * norm->hidden;
    place_chunk(call, tensors, begin * tensors->row, &args.common);
    share_rows(call, norm, begin, end, &args);
    place_sums(call, plan, tensors, begin * tensors->row, &args);
    norm_fill_args(norm, plan, &args);
    return channel_launch(call, plan->kernel, plan->blocks, plan->threads, end == norm->rows,
                          &args.common);
}

static enum smfar_status run(struct call *call, const struct planned *planned,
                             const struct tensors *tensors)
{
    enum smfar_status status;
    size_t begin = 0, rows = tensors->norm->rows;
    size_t most = planned->plan.chunk / tensors->norm->hidden, bytes = rows * tensors->row;
    do { /* also once for no rows: the others compare what this rank has called */
        size_t end = lesser(begin + most, rows);
        status = step(call, &planned->plan, tensors, begin, end);
        begin = end;
    } while (status == SMFAR_OK && begin < rows);
    int in_place = tensors->inside && tensors->send == tensors->recv;
    collective_count(call, planned, bytes, in_place ? 0 : bytes);
    return status;
}

enum smfar_status rms_norm_enqueue(struct call *call, const void *send, void *recv,
                                   const struct smfar_rms_norm *norm)
{
    const struct planned *planned;
    struct window *window = call->comm->window;
    struct tensors tensors = {
        .send = send, .recv = recv, .norm = norm, .row = norm->hidden * dtype_bytes(norm->dtype)};
    size_t bytes = norm->rows * tensors.row;
    tensors.inside = window_offset(window, recv, bytes, &tensors.offset);
    if (norm->sums_layout == SMFAR_SUMS_REPLICATED &&
        !window_offset(window, norm->sums, bytes, &call->place))
        call->place = 0;
    enum smfar_status status = collective_plan(call, &planned);
    if (status != SMFAR_OK) return status;
    if (planned->plan.streams) return split_enqueue(call, planned, send, recv, norm);
    status = collective_start(call, planned);
    if (status != SMFAR_OK) return status;
    return channel_end(call, run(call, planned, &tensors));
}
