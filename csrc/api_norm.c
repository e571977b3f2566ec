/* The public all-reduce with RMSNorm: arguments are checked here, then it is called under the
 * communicator's lock. */
#include "api.h"

static const char what[] = "all_reduce_rms_norm";

/* In fp32 the number of elements that a mean divides by is exact below this; and no weight has more
 * columns. */
enum { MOST_HIDDEN = 1 << 24 };

static enum smfar_status check_shape(const struct smfar_rms_norm *norm)
{
    if (norm->hidden < 1 || norm->hidden >= MOST_HIDDEN)
        return FAIL(SMFAR_ERR_ARGUMENT, "%s: rows of %zu elements; 1 to 2^24 - 1 will do", what,
                    norm->hidden);
    if (norm->rows > UINT32_MAX)
        return FAIL(SMFAR_ERR_ARGUMENT, "%s: %zu rows cannot be right", what, norm->rows);
    if (!(norm->eps >= 0)) /* also NaN */
        return FAIL(SMFAR_ERR_ARGUMENT, "%s: eps is %g; zero or more will do", what, norm->eps);
    return SMFAR_OK;
}

static enum smfar_status check_weight(const struct smfar_rms_norm *norm)
{
    int dtype = (int)norm->weight_dtype;
    if (!norm->weight) return SMFAR_OK;
    if (dtype != SMFAR_F16 && dtype != SMFAR_BF16 && dtype != SMFAR_F32 && dtype != SMFAR_F64)
        return FAIL(SMFAR_ERR_ARGUMENT, "%s: a weight of %s; f16, bf16, f32 or f64 will do", what,
                    name_dtype(dtype));
    return api_check_buffers(what, norm->weight, norm->weight, norm->hidden, dtype);
}

static size_t own_rows(const struct smfar_rms_norm *norm, const struct smfar_comm *comm)
{
    return rows_before(norm->rows, comm->rank + 1, comm->ranks) -
           rows_before(norm->rows, comm->rank, comm->ranks);
}

static enum smfar_status check_sums(const struct smfar_rms_norm *norm,
                                    const struct smfar_comm *comm)
{
    size_t count = norm->rows * norm->hidden;
    switch (norm->sums_layout) {
    case SMFAR_SUMS_NONE:
        if (!norm->residual && !norm->sums) return SMFAR_OK;
        return FAIL(SMFAR_ERR_ARGUMENT, "%s: a residual or sums, but SMFAR_SUMS_NONE", what);
    case SMFAR_SUMS_SHARDED:
        return api_check_buffers(what, norm->residual, norm->residual,
                                 comm ? own_rows(norm, comm) * norm->hidden : 0, (int)norm->dtype);
    case SMFAR_SUMS_REPLICATED:
        return api_check_buffers(what, norm->residual ? norm->residual : norm->sums, norm->sums,
                                 count, (int)norm->dtype);
    default:
        return FAIL(SMFAR_ERR_ARGUMENT, "%s: %d is no smfar_sums", what, (int)norm->sums_layout);
    }
}

/* What is given beside the tensor, and how much of it. */
struct given {
    const char *name;
    const void *at;
    size_t bytes;
};

static enum smfar_status check_apart(const struct given *one, const struct given *other)
{
    if (!overlap(one->at, one->bytes, other->at, other->bytes)) return SMFAR_OK;
    return FAIL(SMFAR_ERR_ARGUMENT, "%s: the %s and the %s share memory; they must be apart", what,
                one->name, other->name);
}

/* What is written shares memory with nothing that is read, but in the ways that smfar.h allows. */
static enum smfar_status check_places(const void *send, const void *recv,
                                      const struct smfar_rms_norm *norm,
                                      const struct smfar_comm *comm)
{
    enum smfar_status status;
    int sharded = norm->sums_layout == SMFAR_SUMS_SHARDED;
    size_t row = norm->hidden * dtype_bytes((int)norm->dtype), all = norm->rows * row;
    size_t weights = norm->weight ? norm->hidden * dtype_bytes((int)norm->weight_dtype) : 0;
    const struct given inputs = {"inputs", send, all}, results = {"results", recv, all};
    const struct given weight = {"weight", norm->weight, weights};
    const struct given residual = {"residual", norm->residual,
                                   sharded ? own_rows(norm, comm) * row : all};
    const struct given sums = sharded ? residual : (struct given){"sums", norm->sums, all};
    TRY(check_apart(&weight, &results));
    TRY(check_apart(&weight, &sums));
    TRY(check_apart(&residual, &results));
    TRY(check_apart(&sums, &results));
    TRY(check_apart(&sums, &inputs));
fail:
    return status;
}

static enum smfar_status check(const void *send, const void *recv,
                               const struct smfar_rms_norm *norm, const struct smfar_comm *comm)
{
    if (!norm) return FAIL(SMFAR_ERR_ARGUMENT, "%s: the struct smfar_rms_norm is NULL", what);
    enum smfar_status status = check_shape(norm);
    if (status == SMFAR_OK) status = check_weight(norm);
    if (status == SMFAR_OK)
        status = api_check_buffers(what, send, recv, norm->rows * norm->hidden, (int)norm->dtype);
    if (status == SMFAR_OK) status = check_sums(norm, comm);
    return status == SMFAR_OK && comm ? check_places(send, recv, norm, comm) : status;
}

enum smfar_status smfar_all_reduce_rms_norm(const void *send, void *recv,
                                            const struct smfar_rms_norm *norm, smfar_comm *comm,
                                            smfar_stream stream)
{
    enum smfar_status status = check(send, recv, norm, comm);
    struct call call;
    if (status == SMFAR_OK)
        status = api_begin(comm, stream, COLLECTIVE_RMS_NORM, (uint64_t)(norm->rows * norm->hidden),
                           (int)norm->dtype, &call);
    if (status != SMFAR_OK) return status;
    call.root = norm_root(norm->sums_layout, norm->weight ? (int)norm->weight_dtype : -1);
    call.scale = norm->eps;
    call.row = (uint32_t)norm->hidden;
    uint64_t count = call.count;
    struct smfar_rms_norm seen = *norm;
    seen.sums = api_view(&call, norm->sums, count);
    if (norm->sums_layout == SMFAR_SUMS_REPLICATED)
        seen.residual = api_view(&call, norm->residual, count);
    status =
        rms_norm_enqueue(&call, api_view(&call, send, count), api_view(&call, recv, count), &seen);
    api_leave(comm);
    return status;
}
