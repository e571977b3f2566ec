/* What several collectives share: their plan, and copies to and from the staging slots. */
#include "collectives.h"

static CUdeviceptr address(const void *ptr) { return (CUdeviceptr)(uintptr_t)ptr; }

enum smfar_status collective_plan(const struct call *call, struct plan *plan_out)
{
    const struct smfar_comm *comm = call->comm;
    struct plan_query query = {call->collective,      call->dtype, call->op,
                               call->count,           comm->ranks, comm->agreed,
                               comm->multicast_reason};
    return plan_make(&query, plan_out);
}

enum smfar_status copy_to_slots(const struct call *call, const void *src, size_t at, size_t bytes)
{
    enum smfar_status status;
    const struct smfar_comm *comm = call->comm;
    const struct window *window = comm->window;
    struct driver *driver = comm->driver;
    if (comm->agreed.multicast && comm->agreed.multicast_copy) {
        CU(cuMemcpyAsync, window->multicast.base + window->slot + at, address(src), bytes,
           call->stream);
        return SMFAR_OK;
    }
    for (int i = 1; i <= comm->ranks; i++) {
        /* each rank begins with the next one, so that they do not all write to the same */
        int r = (comm->rank + i) % comm->ranks;
        CU(cuMemcpyAsync, window->peer[r] + window->slot + at, address(src), bytes, call->stream);
    }
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status copy_to_slot(const struct call *call, const void *src, size_t bytes)
{
    enum smfar_status status;
    const struct window *window = call->comm->window;
    struct driver *driver = call->comm->driver;
    CU(cuMemcpyAsync, window->peer[call->comm->rank] + window->slot, address(src), bytes,
       call->stream);
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status copy_from_slot(const struct call *call, void *dst, size_t at, size_t bytes)
{
    enum smfar_status status;
    const struct window *window = call->comm->window;
    struct driver *driver = call->comm->driver;
    CU(cuMemcpyAsync, address(dst), window->peer[call->comm->rank] + window->slot + at, bytes,
       call->stream);
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
