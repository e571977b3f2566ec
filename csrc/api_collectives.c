/* The public collectives: arguments are checked here and nowhere else, then the collective is
 * called under the communicator's lock. */
#include "api.h"
#include "memory/registered.h"

struct call api_call(struct smfar_comm *comm, smfar_stream stream, enum collective collective,
                     uint64_t count)
{
    return (struct call){.comm = comm,
                         .stream = stream,
                         .collective = collective,
                         .counted = collective,
                         .dtype = -1,
                         .op = -1,
                         .root = -1,
                         .count = count,
                         .kernel = KERNELS,
                         .channel = &comm->window->called};
}

enum smfar_status api_check_buffers(const char *what, const void *send, const void *recv,
                                    uint64_t count, int dtype)
{
    size_t bytes = dtype_bytes(dtype);
    if (!bytes) return FAIL(SMFAR_ERR_ARGUMENT, "%s: %d is no smfar_dtype", what, dtype);
    if (count > UINT64_MAX / 32 / bytes)
        return FAIL(SMFAR_ERR_ARGUMENT, "%s: %llu elements cannot be right", what,
                    (unsigned long long)count);
    if (count && (!send || !recv)) return FAIL(SMFAR_ERR_ARGUMENT, "%s: a buffer is NULL", what);
    size_t aligned = bytes > 8 ? 8 : bytes;
    if ((uintptr_t)send % aligned || (uintptr_t)recv % aligned)
        return FAIL(SMFAR_ERR_ARGUMENT, "%s: a buffer of %s must be %zu-byte aligned", what,
                    name_dtype(dtype), aligned);
    if (send != recv && overlap(send, count * bytes, recv, count * bytes))
        return FAIL(SMFAR_ERR_ARGUMENT,
                    "%s: an input and an output share part of their memory; they must be apart, or "
                    "the same",
                    what);
    return SMFAR_OK;
}

enum smfar_status api_check_outputs(const char *what, const struct smfar_comm *comm,
                                    void *const *recv, const size_t *counts, size_t count,
                                    int dtype)
{
    size_t element = dtype_bytes(dtype);
    for (int r = 1; comm && r < comm->ranks; r++)
        for (int q = 0; q < r; q++)
            if (overlap(recv[r], (counts ? counts[r] : count) * element, recv[q],
                        (counts ? counts[q] : count) * element))
                return FAIL(SMFAR_ERR_ARGUMENT,
                            "%s: the outputs for ranks %d and %d share memory; each needs its own",
                            what, q, r);
    return SMFAR_OK;
}

enum smfar_status api_check_op(const char *what, enum smfar_op op)
{
    if ((int)op >= 0 && op < SMFAR_OPS) return SMFAR_OK;
    return FAIL(SMFAR_ERR_ARGUMENT, "%s: %d is no smfar_op", what, (int)op);
}

static enum smfar_status check_root(const char *what, const struct smfar_comm *comm, int root)
{
    if (!comm || (root >= 0 && root < comm->ranks)) return SMFAR_OK;
    return FAIL(SMFAR_ERR_ARGUMENT, "%s: root %d is not one of the %d ranks", what, root,
                comm->ranks);
}

/* An output and one input per rank, or the other way round. */
static enum smfar_status check_parts(const char *what, const struct smfar_comm *comm,
                                     const void *one, const void *const *parts, uint64_t count,
                                     int dtype)
{
    enum smfar_status status = api_check_buffers(what, one, one, count, dtype);
    for (int r = 0; comm && r < comm->ranks && status == SMFAR_OK; r++)
        status = api_check_buffers(what, one, parts[r], count, dtype);
    return status;
}

static const void *const *read_only(void *const *parts) { return (const void *const *)parts; }

void *api_view(const struct call *call, const void *ptr, uint64_t count)
{
    return registered_view(call->comm->window, ptr, count * dtype_bytes(call->dtype));
}

/* The same of one buffer per rank. */
static void view_parts(const struct call *call, const void *const *parts,
                       void *views[SMFAR_MAX_RANKS])
{
    for (int r = 0; r < call->comm->ranks; r++)
        views[r] = api_view(call, parts[r], call->count);
}

enum smfar_status api_prepare(struct smfar_comm *comm, smfar_stream stream,
                              enum collective collective, uint64_t count, int dtype,
                              struct call *call_out)
{
    *call_out = api_call(comm, stream, collective, count);
    call_out->dtype = dtype;
    return capture_look(call_out);
}

enum smfar_status api_begin(struct smfar_comm *comm, smfar_stream stream,
                            enum collective collective, uint64_t count, int dtype,
                            struct call *call_out)
{
    enum smfar_status status = api_enter(comm);
    if (status != SMFAR_OK) return status;
    status = api_prepare(comm, stream, collective, count, dtype, call_out);
    if (status != SMFAR_OK) api_leave(comm);
    return status;
}

static enum smfar_status all_reduce(const void *send, void *recv, size_t count,
                                    enum smfar_dtype dtype, enum smfar_op op, double scale,
                                    smfar_comm *comm, smfar_stream stream)
{
    struct call call;
    enum smfar_status status = api_check_buffers("all_reduce", send, recv, count, (int)dtype);
    if (status == SMFAR_OK) status = api_check_op("all_reduce", op);
    if (status == SMFAR_OK)
        status = api_begin(comm, stream, COLLECTIVE_ALL_REDUCE, count, (int)dtype, &call);
    if (status != SMFAR_OK) return status;
    call.op = (int)op;
    call.scale = scale;
    status = all_reduce_enqueue(&call, api_view(&call, send, count), api_view(&call, recv, count));
    api_leave(comm);
    return status;
}

enum smfar_status smfar_all_reduce(const void *send, void *recv, size_t count,
                                   enum smfar_dtype dtype, enum smfar_op op, smfar_comm *comm,
                                   smfar_stream stream)
{
    if (op == SMFAR_PREMUL_SUM)
        return FAIL(SMFAR_ERR_ARGUMENT,
                    "all_reduce: premul_sum needs a scale: call smfar_all_reduce_scaled");
    return all_reduce(send, recv, count, dtype, op, 0, comm, stream);
}

enum smfar_status smfar_all_reduce_scaled(const void *send, void *recv, size_t count,
                                          enum smfar_dtype dtype, double scale, smfar_comm *comm,
                                          smfar_stream stream)
{
    return all_reduce(send, recv, count, dtype, SMFAR_PREMUL_SUM, scale, comm, stream);
}

enum smfar_status smfar_broadcast(const void *send, void *recv, size_t count,
                                  enum smfar_dtype dtype, int root, smfar_comm *comm,
                                  smfar_stream stream)
{
    struct call call;
    int is_root = comm && root == comm->rank;
    enum smfar_status status =
        api_check_buffers("broadcast", is_root ? send : recv, recv, count, (int)dtype);
    if (status == SMFAR_OK) status = check_root("broadcast", comm, root);
    if (status == SMFAR_OK)
        status = api_begin(comm, stream, COLLECTIVE_BROADCAST, count, (int)dtype, &call);
    if (status != SMFAR_OK) return status;
    call.root = root;
    status = broadcast_enqueue(&call, api_view(&call, send, count), api_view(&call, recv, count));
    api_leave(comm);
    return status;
}

enum smfar_status smfar_all_gather(const void *send, void *const *recv, size_t count,
                                   enum smfar_dtype dtype, smfar_comm *comm, smfar_stream stream)
{
    struct call call;
    void *views[SMFAR_MAX_RANKS];
    if (!recv) return FAIL(SMFAR_ERR_ARGUMENT, "all_gather: the array of outputs is NULL");
    enum smfar_status status =
        check_parts("all_gather", comm, send, read_only(recv), count, (int)dtype);
    if (status == SMFAR_OK)
        status = api_check_outputs("all_gather", comm, recv, NULL, count, (int)dtype);
    if (status == SMFAR_OK)
        status = api_begin(comm, stream, COLLECTIVE_ALL_GATHER, count, (int)dtype, &call);
    if (status != SMFAR_OK) return status;
    view_parts(&call, read_only(recv), views);
    status = all_gather_enqueue(&call, api_view(&call, send, count), views);
    api_leave(comm);
    return status;
}

enum smfar_status smfar_barrier(smfar_comm *comm, smfar_stream stream)
{
    struct call call;
    enum smfar_status status = api_begin(comm, stream, COLLECTIVE_BARRIER, 0, -1, &call);
    if (status != SMFAR_OK) return status;
    status = barrier_enqueue(&call);
    api_leave(comm);
    return status;
}

enum smfar_status smfar_all_gather_into(const void *send, void *recv, size_t count,
                                        enum smfar_dtype dtype, smfar_comm *comm,
                                        smfar_stream stream)
{
    void *parts[SMFAR_MAX_RANKS];
    enum smfar_status status = api_check_buffers("all_gather_into", send, recv, count, (int)dtype);
    for (size_t r = 0; r < SMFAR_MAX_RANKS; r++)
        parts[r] = (char *)recv + r * count * dtype_bytes((int)dtype);
    return status == SMFAR_OK ? smfar_all_gather(send, parts, count, dtype, comm, stream) : status;
}

enum smfar_status smfar_reduce(const void *send, void *recv, size_t count, enum smfar_dtype dtype,
                               enum smfar_op op, double scale, int root, smfar_comm *comm,
                               smfar_stream stream)
{
    struct call call;
    int is_root = comm && root == comm->rank;
    enum smfar_status status =
        api_check_buffers("reduce", send, is_root ? recv : send, count, (int)dtype);
    if (status == SMFAR_OK) status = api_check_op("reduce", op);
    if (status == SMFAR_OK) status = check_root("reduce", comm, root);
    if (status == SMFAR_OK)
        status = api_begin(comm, stream, COLLECTIVE_REDUCE, count, (int)dtype, &call);
    if (status != SMFAR_OK) return status;
    call.op = (int)op;
    call.scale = op == SMFAR_PREMUL_SUM ? scale : 0;
    call.root = root;
    status = reduce_enqueue(&call, api_view(&call, send, count), api_view(&call, recv, count));
    api_leave(comm);
    return status;
}

enum smfar_status smfar_reduce_scatter(const void *const *send, void *recv, size_t count,
                                       enum smfar_dtype dtype, enum smfar_op op, double scale,
                                       smfar_comm *comm, smfar_stream stream)
{
    struct call call;
    void *views[SMFAR_MAX_RANKS];
    if (!send) return FAIL(SMFAR_ERR_ARGUMENT, "reduce_scatter: the array of inputs is NULL");
    enum smfar_status status = check_parts("reduce_scatter", comm, recv, send, count, (int)dtype);
    if (status == SMFAR_OK) status = api_check_op("reduce_scatter", op);
    if (status == SMFAR_OK)
        status = api_begin(comm, stream, COLLECTIVE_REDUCE_SCATTER, count, (int)dtype, &call);
    if (status != SMFAR_OK) return status;
    call.op = (int)op;
    call.scale = op == SMFAR_PREMUL_SUM ? scale : 0;
    view_parts(&call, send, views);
    status = reduce_scatter_enqueue(&call, read_only(views), api_view(&call, recv, count));
    api_leave(comm);
    return status;
}

enum smfar_status smfar_reduce_scatter_from(const void *send, void *recv, size_t count,
                                            enum smfar_dtype dtype, enum smfar_op op, double scale,
                                            smfar_comm *comm, smfar_stream stream)
{
    const void *parts[SMFAR_MAX_RANKS];
    enum smfar_status status =
        api_check_buffers("reduce_scatter_from", send, recv, count, (int)dtype);
    for (size_t r = 0; r < SMFAR_MAX_RANKS; r++)
        parts[r] = (const char *)send + r * count * dtype_bytes((int)dtype);
    if (status != SMFAR_OK) return status;
    return smfar_reduce_scatter(parts, recv, count, dtype, op, scale, comm, stream);
}

enum smfar_status smfar_all_to_all(const void *const *send, void *const *recv, size_t count,
                                   enum smfar_dtype dtype, smfar_comm *comm, smfar_stream stream)
{
    struct call call;
    void *from[SMFAR_MAX_RANKS], *to[SMFAR_MAX_RANKS];
    if (!send || !recv) return FAIL(SMFAR_ERR_ARGUMENT, "all_to_all: an array is NULL");
    enum smfar_status status = api_check_buffers("all_to_all", NULL, NULL, 0, (int)dtype);
    for (int r = 0; comm && r < comm->ranks && status == SMFAR_OK; r++)
        status = check_parts("all_to_all", comm, recv[r], send, count, (int)dtype);
    if (status == SMFAR_OK)
        status = api_check_outputs("all_to_all", comm, recv, NULL, count, (int)dtype);
    if (status == SMFAR_OK)
        status = api_begin(comm, stream, COLLECTIVE_ALL_TO_ALL, count, (int)dtype, &call);
    if (status != SMFAR_OK) return status;
    view_parts(&call, send, from);
    view_parts(&call, read_only(recv), to);
    status = all_to_all_enqueue(&call, read_only(from), to);
    api_leave(comm);
    return status;
}

enum smfar_status smfar_gather(const void *send, void *const *recv, size_t count,
                               enum smfar_dtype dtype, int root, smfar_comm *comm,
                               smfar_stream stream)
{
    struct call call;
    void *views[SMFAR_MAX_RANKS];
    int is_root = comm && root == comm->rank;
    if (is_root && !recv)
        return FAIL(SMFAR_ERR_ARGUMENT, "gather: the root's array of outputs is NULL");
    enum smfar_status status = api_check_buffers("gather", send, send, count, (int)dtype);
    if (status == SMFAR_OK && is_root)
        status = check_parts("gather", comm, send, read_only(recv), count, (int)dtype);
    if (status == SMFAR_OK && is_root)
        status = api_check_outputs("gather", comm, recv, NULL, count, (int)dtype);
    if (status == SMFAR_OK) status = check_root("gather", comm, root);
    if (status == SMFAR_OK)
        status = api_begin(comm, stream, COLLECTIVE_GATHER, count, (int)dtype, &call);
    if (status != SMFAR_OK) return status;
    call.root = root;
    if (is_root) view_parts(&call, read_only(recv), views);
    status = gather_enqueue(&call, api_view(&call, send, count), is_root ? views : NULL);
    api_leave(comm);
    return status;
}

enum smfar_status smfar_scatter(const void *const *send, void *recv, size_t count,
                                enum smfar_dtype dtype, int root, smfar_comm *comm,
                                smfar_stream stream)
{
    struct call call;
    void *views[SMFAR_MAX_RANKS];
    int is_root = comm && root == comm->rank;
    if (is_root && !send)
        return FAIL(SMFAR_ERR_ARGUMENT, "scatter: the root's array of inputs is NULL");
    enum smfar_status status = api_check_buffers("scatter", recv, recv, count, (int)dtype);
    if (status == SMFAR_OK && is_root)
        status = check_parts("scatter", comm, recv, send, count, (int)dtype);
    if (status == SMFAR_OK) status = check_root("scatter", comm, root);
    if (status == SMFAR_OK)
        status = api_begin(comm, stream, COLLECTIVE_SCATTER, count, (int)dtype, &call);
    if (status != SMFAR_OK) return status;
    call.root = root;
    if (is_root) view_parts(&call, send, views);
    status =
        scatter_enqueue(&call, is_root ? read_only(views) : NULL, api_view(&call, recv, count));
    api_leave(comm);
    return status;
}
