/* The public collectives of parts of different sizes. What is gathered to all or scattered from a
 * reduction goes part by part, as a broadcast or a reduction of its own, and is counted as what was
 * called. */
#include "api.h"

/* Parts of so many elements each, of which mine is also at `own`. */
struct parts {
    void *const *part;
    const size_t *count;
    const void *own;
    enum smfar_dtype dtype;
};

/* A part arrives, or is read, after others: what is at `own` must be apart from them. */
static enum smfar_status check_parts(const char *what, const struct smfar_comm *comm,
                                     const struct parts *parts)
{
    size_t element = dtype_bytes((int)parts->dtype);
    if (!parts->part || !parts->count)
        return FAIL(SMFAR_ERR_ARGUMENT, "%s: the array of parts, or of counts, is NULL", what);
    enum smfar_status status = api_check_buffers(what, NULL, NULL, 0, (int)parts->dtype);
    for (int r = 0; comm && r < comm->ranks && status == SMFAR_OK; r++) {
        size_t mine = parts->count[comm->rank] * element, bytes = parts->count[r] * element;
        const void *other = r == comm->rank ? parts->own : parts->part[r];
        status = api_check_buffers(what, other, parts->part[r], parts->count[r], (int)parts->dtype);
        if (status == SMFAR_OK && r != comm->rank &&
            overlap(parts->own, mine, parts->part[r], bytes))
            return FAIL(SMFAR_ERR_ARGUMENT,
                        "%s: rank %d's part and what is of this rank, %d, share memory; parts of "
                        "unequal size must be apart",
                        what, r, comm->rank);
    }
    return status;
}

/* Rank `root`'s part of a call that holds the communicator until the last: nothing comes between.
 */
static enum smfar_status prepare_part(struct smfar_comm *comm, smfar_stream stream,
                                      const struct parts *parts, enum collective whole,
                                      enum collective one, int root, struct call *call_out)
{
    enum smfar_status status =
        api_prepare(comm, stream, one, parts->count[root], (int)parts->dtype, call_out);
    call_out->root = root;
    call_out->counted = whole;
    call_out->continues = root > 0;
    return status;
}

enum smfar_status smfar_all_gather_v(const void *send, void *const *recv, const size_t *count,
                                     enum smfar_dtype dtype, smfar_comm *comm, smfar_stream stream)
{
    struct call call;
    const struct parts parts = {recv, count, send, dtype};
    enum smfar_status status = check_parts("all_gather_v", comm, &parts);
    if (status == SMFAR_OK)
        status = api_check_outputs("all_gather_v", comm, recv, count, 0, (int)dtype);
    if (status == SMFAR_OK) status = api_enter(comm);
    if (status != SMFAR_OK) return status;
    for (int root = 0; status == SMFAR_OK && root < comm->ranks; root++) {
        status = prepare_part(comm, stream, &parts, COLLECTIVE_ALL_GATHER, COLLECTIVE_BROADCAST,
                              root, &call);
        if (status == SMFAR_OK)
            status = broadcast_enqueue(&call, api_view(&call, send, call.count),
                                       api_view(&call, recv[root], call.count));
    }
    api_leave(comm);
    return status;
}

enum smfar_status smfar_reduce_scatter_v(const void *const *send, void *recv, const size_t *count,
                                         enum smfar_dtype dtype, enum smfar_op op, double scale,
                                         smfar_comm *comm, smfar_stream stream)
{
    struct call call;
    const struct parts parts = {(void *const *)(uintptr_t)send, count, recv, dtype};
    enum smfar_status status = check_parts("reduce_scatter_v", comm, &parts);
    if (status == SMFAR_OK) status = api_check_op("reduce_scatter_v", op);
    if (status == SMFAR_OK) status = api_enter(comm);
    if (status != SMFAR_OK) return status;
    for (int root = 0; status == SMFAR_OK && root < comm->ranks; root++) {
        status = prepare_part(comm, stream, &parts, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_REDUCE,
                              root, &call);
        call.op = (int)op;
        call.scale = op == SMFAR_PREMUL_SUM ? scale : 0;
        if (status == SMFAR_OK)
            status = reduce_enqueue(&call, api_view(&call, send[root], call.count),
                                    api_view(&call, recv, call.count));
    }
    api_leave(comm);
    return status;
}

/* Parts arrive while others are still being sent. What this rank keeps may stay where it is. */
static enum smfar_status check_apart(const struct smfar_comm *comm, const void *const *send,
                                     const size_t *send_count, void *const *recv,
                                     const size_t *recv_count, int dtype)
{
    size_t element = dtype_bytes(dtype);
    for (int i = 0; i < comm->ranks * comm->ranks; i++) {
        int to = i / comm->ranks, from = i % comm->ranks;
        if (to == comm->rank && from == comm->rank && send[to] == recv[from]) continue;
        if (overlap(send[to], send_count[to] * element, recv[from], recv_count[from] * element))
            return FAIL(SMFAR_ERR_ARGUMENT,
                        "all_to_all_v: what goes to rank %d and what comes from rank %d share "
                        "memory; parts of unequal size must be apart",
                        to, from);
    }
    return SMFAR_OK;
}

static enum smfar_status check_counts(const struct smfar_comm *comm, const void *const *send,
                                      const size_t *send_count, void *const *recv,
                                      const size_t *recv_count, int dtype)
{
    enum smfar_status status = api_check_buffers("all_to_all_v", NULL, NULL, 0, dtype);
    for (int r = 0; comm && r < comm->ranks && status == SMFAR_OK; r++) {
        status = api_check_buffers("all_to_all_v", send[r], send[r], send_count[r], dtype);
        if (status == SMFAR_OK)
            status = api_check_buffers("all_to_all_v", recv[r], recv[r], recv_count[r], dtype);
    }
    if (status == SMFAR_OK && comm)
        status = check_apart(comm, send, send_count, recv, recv_count, dtype);
    if (status == SMFAR_OK)
        status = api_check_outputs("all_to_all_v", comm, recv, recv_count, 0, dtype);
    return status;
}

enum smfar_status smfar_all_to_all_v(const void *const *send, const size_t *send_count,
                                     void *const *recv, const size_t *recv_count,
                                     enum smfar_dtype dtype, smfar_comm *comm, smfar_stream stream)
{
    struct call call;
    void *from[SMFAR_MAX_RANKS], *to[SMFAR_MAX_RANKS];
    if (!send || !recv || !send_count || !recv_count)
        return FAIL(SMFAR_ERR_ARGUMENT, "all_to_all_v: an array is NULL");
    enum smfar_status status = check_counts(comm, send, send_count, recv, recv_count, (int)dtype);
    if (status == SMFAR_OK)
        status = api_begin(comm, stream, COLLECTIVE_ALL_TO_ALL_V, 0, (int)dtype, &call);
    if (status != SMFAR_OK) return status;
    for (int r = 0; r < comm->ranks; r++) {
        from[r] = api_view(&call, send[r], send_count[r]);
        to[r] = api_view(&call, recv[r], recv_count[r]);
    }
    status = all_to_all_v_enqueue(&call, (const void *const *)from, send_count, to, recv_count);
    api_leave(comm);
    return status;
}
