/* What several collectives share: their plan, and copies to and from the staging slots. */
#include <stdlib.h>
#include <string.h>

#include "collectives.h"

static CUdeviceptr address(const void *ptr) { return (CUdeviceptr)(uintptr_t)ptr; }

enum { CACHED_PLANS = 64, /* a power of two */ STAGE_THREADS = 512 };

struct plan_cache {
    struct {
        struct plan_query query;
        struct planned planned;
    } entry[CACHED_PLANS];
};

/* Do the sums of all rows go to every rank? */
static int is_spread(const struct call *call)
{
    return call->collective == COLLECTIVE_RMS_NORM &&
           norm_layout(call->root) == SMFAR_SUMS_REPLICATED;
}

/* And through the staging slot, beside the results? */
static int takes_halves(const struct call *call) { return is_spread(call) && !call->place; }

struct plan_query collective_query(const struct call *call)
{
    const struct smfar_comm *comm = call->comm;
    struct plan_query query = {.collective = call->collective,
                               .dtype = call->dtype,
                               .op = call->op,
                               .count = call->count,
                               .row = call->row,
                               .halves = takes_halves(call),
                               .spread = is_spread(call),
                               .ranks = comm->ranks,
                               .captured = call->graph != NULL,
                               .agreed = comm->agreed,
                               .hint = plan_hint,
                               .multicast_reason = comm->multicast_reason,
                               .float8_reason = comm->float8_reason,
                               .table = &comm->plan_table};
    if (!query.captured) return query;
    query.agreed.chunk_bytes = comm->agreed.graph_chunk_bytes;
    query.agreed.oneshot_bytes = comm->agreed.graph_oneshot_bytes;
    query.agreed.push_bytes = comm->agreed.graph_push_bytes;
    return query;
}

static int same_call(const struct plan_query *query, enum collective counted,
                     const struct call *call)
{
    return query->ranks && counted == call->counted && query->count == call->count &&
           (int)query->dtype == call->dtype && (int)query->op == call->op &&
           query->collective == call->collective && query->captured == (call->graph != NULL) &&
           query->row == call->row && query->halves == takes_halves(call) &&
           query->spread == is_spread(call) && query->hint.fixed_order == plan_hint.fixed_order &&
           query->hint.algorithm == plan_hint.algorithm &&
           query->hint.sm_budget == plan_hint.sm_budget;
}

enum smfar_status collective_plan(const struct call *call, const struct planned **planned_out)
{
    struct smfar_comm *comm = call->comm;
    if (!comm->plans) comm->plans = calloc(1, sizeof(*comm->plans));
    if (!comm->plans) return FAIL(SMFAR_ERR_MEMORY, "no memory for the plans");
    uint64_t key = call->count * 31 + (uint64_t)(call->dtype * 7 + call->op) +
                   call->collective * 3 + call->counted;
    size_t index = (key ^ key >> 7 ^ key >> 17) % CACHED_PLANS;
    struct plan_query *query = &comm->plans->entry[index].query;
    struct planned *planned = &comm->plans->entry[index].planned;
    *planned_out = planned;
    if (same_call(query, planned->counted, call)) return SMFAR_OK;
    *query = collective_query(call);
    enum smfar_status status = plan_make(query, &planned->plan);
    if (status != SMFAR_OK) {
        query->ranks = 0; /* nothing is cached here */
        return status;
    }
    planned->counted = call->counted;
    planned->path = channel_path(comm, call->counted, planned->plan.name, planned->plan.reason);
    return SMFAR_OK;
}

enum smfar_status collective_start(struct call *call, const struct planned *planned)
{
    call->kernel = planned->plan.kernel;
    call->streams = planned->plan.streams;
    return channel_begin(call);
}

enum smfar_status collective_begin(struct call *call, const struct planned **planned_out)
{
    enum smfar_status status = collective_plan(call, planned_out);
    return status == SMFAR_OK ? collective_start(call, *planned_out) : status;
}

void collective_count(const struct call *call, const struct planned *planned, uint64_t bytes,
                      uint64_t staged_bytes)
{
    struct smfar_path *path = planned->path;
    pthread_mutex_lock(&call->comm->path_lock);
    path->calls += !call->continues;
    path->bytes += bytes;
    path->staged_bytes += staged_bytes;
    path->blocks = planned->plan.blocks;
    path->threads = planned->plan.threads;
    pthread_mutex_unlock(&call->comm->path_lock);
}

void share_of(size_t bytes, int ranks, int r, size_t *begin_out, size_t *end_out)
{
    size_t share = share_bytes(bytes, ranks), begin = (size_t)r * share, end = begin + share;
    *begin_out = begin < bytes ? begin : bytes;
    *end_out = end < bytes ? end : bytes;
}

enum smfar_status copy_inside(struct call *call, int blocks, void *to, const void *from,
                              size_t bytes)
{
    struct driver *driver = call->comm->driver;
    struct kargs args;
    if (to == from || bytes == 0) return SMFAR_OK;
    if (vmm_is_host_memory(driver, address(from)) || vmm_is_host_memory(driver, address(to)))
        return copy_outside(call, to, from, bytes);
    memset(&args, 0, sizeof(args));
    args.src = address(from);
    args.dst = address(to);
    args.count = bytes;
    return channel_launch(call, KERNEL_stage_peer, blocks, STAGE_THREADS, 0, &args);
}

/* Below this a copy's own launch costs more than the kernel's copying. */
enum { LEAST_COPY = 64 << 10 };

int copies_suit(const struct call *call, const void *ptr, size_t bytes)
{
    const struct smfar_comm *comm = call->comm;
    return comm->pageable && bytes >= LEAST_COPY && vmm_is_host_memory(comm->driver, address(ptr));
}

enum smfar_status copy_to_slot_of(const struct call *call, int rank, const void *src, size_t at,
                                  size_t bytes)
{
    enum smfar_status status;
    const struct window *window = call->comm->window;
    struct driver *driver = call->comm->driver;
    CU(cuMemcpyAsync, window->peer[rank] + call->channel->slot + at, address(src), bytes,
       call->stream);
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status copy_to_slots(const struct call *call, const void *src, size_t at, size_t bytes)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    const struct window *window = comm->window;
    struct driver *driver = comm->driver;
    if (comm->agreed.multicast && comm->agreed.multicast_copy) {
        CU(cuMemcpyAsync, window->multicast + call->channel->slot + at, address(src), bytes,
           call->stream);
        return SMFAR_OK;
    }
    for (int i = 1; i <= comm->ranks; i++) /* beginning with the next: not all write to the same */
        TRY(copy_to_slot_of(call, (comm->rank + i) % comm->ranks, src, at, bytes));
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status copy_to_slot(const struct call *call, const void *src, size_t at, size_t bytes)
{
    return copy_to_slot_of(call, call->comm->rank, src, at, bytes);
}

enum smfar_status copy_from_slot(const struct call *call, void *dst, size_t at, size_t bytes)
{
    enum smfar_status status;
    const struct window *window = call->comm->window;
    struct driver *driver = call->comm->driver;
    CU(cuMemcpyAsync, address(dst), window->peer[call->comm->rank] + call->channel->slot + at,
       bytes, call->stream);
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status copy_outside(const struct call *call, void *dst, const void *src, size_t bytes)
{
    enum smfar_status status;
    struct driver *driver = call->comm->driver;
    if (dst == src || bytes == 0) return SMFAR_OK;
    CU(cuMemcpyAsync, address(dst), address(src), bytes, call->stream);
    return SMFAR_OK;
fail:
    return status;
}
