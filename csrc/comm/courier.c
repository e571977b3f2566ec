/* See courier.h. */
#include "courier.h"

#include <stdlib.h>

#include "../base/clock.h"
#include "../base/thread.h"
#include "failure.h"
#include "meeting.h"
#include "ring.h"

/* How a host waits for ranks that have not called yet: a while by giving way, then by naps. */
enum { YIELDS = 500 };

struct courier {
    CUstream stream[COURIER_STREAMS];
    CUevent mark;            /* recorded on one stream, and at once waited for by another */
    uint64_t met[PAGE_RING]; /* numbers of recent collectives whose places all ranks read */
};

enum smfar_status courier_open(struct smfar_comm *comm)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    int least = 0, greatest = 0;
    struct courier *courier = calloc(1, sizeof(*courier));
    if (!courier) return FAIL(SMFAR_ERR_MEMORY, "no memory for the courier");
    comm->courier = courier;
    CU(cuCtxGetStreamPriorityRange, &least, &greatest);
    for (int i = 0; i < COURIER_STREAMS; i++)
        CU(cuStreamCreateWithPriority, &courier->stream[i], CU_STREAM_NON_BLOCKING, greatest);
    CU(cuEventCreate, &courier->mark, CU_EVENT_DISABLE_TIMING);
    return SMFAR_OK;
fail:
    courier_free(comm);
    return status;
}

void courier_free(struct smfar_comm *comm)
{
    struct courier *courier = comm->courier;
    struct driver *driver = comm->driver;
    if (!courier) return;
    for (int i = 0; i < COURIER_STREAMS; i++)
        if (courier->stream[i]) CU_WARN(cuStreamDestroy, courier->stream[i]);
    if (courier->mark) CU_WARN(cuEventDestroy, courier->mark);
    free(courier);
    comm->courier = NULL;
}

/* ---- the hosts ---- */

/* Every rank's answer. Returns the first rank that has not called yet, or the number of ranks. */
static int find_places(const struct call *call, uint64_t *places)
{
    const struct smfar_comm *comm = call->comm;
    int r = 0;
    while (r < comm->ranks && ring_place(comm, r, call->sequence, &places[r]))
        r++;
    return r;
}

enum smfar_status courier_meet(const struct call *call, uint64_t places[SMFAR_MAX_RANKS])
{
    struct smfar_comm *comm = call->comm;
    int64_t deadline = clock_now_ms() + atomic_load(&comm->timeout_ms);
    int absent;
    comm->courier->met[call->sequence % PAGE_RING] = call->sequence;
    for (int tries = 0; (absent = find_places(call, places)) < comm->ranks; tries++) {
        enum smfar_status status = failure_check(comm);
        if (status == SMFAR_OK) status = failure_check_left(comm, call->sequence);
        if (status != SMFAR_OK) return status;
        if (clock_now_ms() >= deadline)
            return failure_late(comm, comm->rank, absent, call->sequence);
        thread_rest(tries, YIELDS);
    }
    /* partner: courier_await_collected of every rank */
    atomic_store(&comm->page.host->words[comm->rank].collected, call->sequence);
    return SMFAR_OK;
}

/* A rank whose host has not read the entry yet, or -1. */
static int find_behind(const struct smfar_comm *comm, uint64_t sequence)
{
    for (int r = 0; r < comm->ranks; r++)
        if (atomic_load(&comm->page.host->words[r].collected) < sequence) return r;
    return -1;
}

enum smfar_status courier_await_collected(struct smfar_comm *comm, uint64_t sequence)
{
    struct courier *courier = comm->courier;
    uint64_t lost = courier ? courier->met[sequence % PAGE_RING] : 0;
    int behind = lost ? find_behind(comm, lost) : -1;
    if (behind < 0) return SMFAR_OK;
    int64_t deadline = clock_now_ms() + atomic_load(&comm->timeout_ms);
    while ((behind = find_behind(comm, lost)) >= 0) {
        enum smfar_status status = failure_check(comm);
        if (status != SMFAR_OK) return status;
        if (clock_now_ms() >= deadline) return failure_late(comm, comm->rank, behind, lost);
        thread_rest(0, 0);
    }
    return SMFAR_OK;
}

/* ---- the streams ---- */

CUstream courier_stream(const struct smfar_comm *comm, enum courier_stream which)
{
    return comm->courier->stream[which];
}

CUdeviceptr courier_address(const struct call *call, const uint64_t *places, int r, size_t at,
                            size_t slot_at)
{
    const struct window *window = call->comm->window;
    return window->peer[r] + (places[r] ? places[r] + at : window->slot + slot_at);
}

static enum smfar_status order(const struct call *call, CUstream before, CUstream after)
{
    enum smfar_status status;
    struct driver *driver = call->comm->driver;
    CUevent mark = call->comm->courier->mark;
    CU(cuEventRecord, mark, before);
    CU(cuStreamWaitEvent, after, mark, 0);
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status courier_follow(const struct call *call, enum courier_stream which)
{
    return order(call, call->stream, courier_stream(call->comm, which));
}

enum smfar_status courier_deliver(struct call *call, uint64_t number, int last)
{
    enum smfar_status status;
    CUstream stream = courier_stream(call->comm, COURIER_RESULTS);
    TRY(meeting_carried(call, stream, number));
    TRY(order(call, stream, call->stream)); /* which the driver sees; words it does not */
    return meeting_await_carried(call, number, last);
fail:
    return status;
}

enum smfar_status courier_inputs_first(const struct call *call)
{
    return order(call, courier_stream(call->comm, COURIER_INPUTS),
                 courier_stream(call->comm, COURIER_RESULTS));
}

enum smfar_status courier_copy(const struct call *call, enum courier_stream which, CUdeviceptr to,
                               const void *from, size_t bytes)
{
    enum smfar_status status;
    struct driver *driver = call->comm->driver;
    if (bytes == 0) return SMFAR_OK;
    CU(cuMemcpyAsync, to, (CUdeviceptr)(uintptr_t)from, bytes, courier_stream(call->comm, which));
    return SMFAR_OK;
fail:
    return status;
}

int courier_idle(struct smfar_comm *comm)
{
    for (int i = 0; i < COURIER_STREAMS && comm->courier; i++)
        if (comm->driver->cuStreamQuery(comm->courier->stream[i]) != CUDA_SUCCESS) return 0;
    return 1;
}
