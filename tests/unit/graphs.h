/* Ranks that capture collectives in graphs of the software switch, and replay them: what the tests
 * of graphs share. */
#ifndef SMFAR_TESTS_GRAPHS_H
#define SMFAR_TESTS_GRAPHS_H

#include <pthread.h>

#include "../../csrc/driver/driver.h"
#include "calls.h"
#include "ranks.h"
#include "switch.h"

enum { GRAPHS_TIMEOUT_MS = 60000 };

/* What programs call and the core does not. */
static struct {
#define REQUIRED(name, params) CUresult(*name) params;
#include "../../csrc/soft/graphs.def"
} program;

static struct driver *driver;
static pthread_barrier_t meeting;

#define OK(call)                                                                                   \
    do {                                                                                           \
        CUresult ok_result = (call);                                                               \
        REQUIRE(ok_result == CUDA_SUCCESS, "it gives %d", (int)ok_result);                         \
    } while (0)

static inline void graphs_must(enum smfar_status status)
{
    REQUIRE(status == SMFAR_OK, "%s: %s", smfar_status_name(status), smfar_last_error());
}

struct rank {
    struct ranks_thread *me;
    smfar_comm *comm;
    CUstream stream, second;
    CUevent event;
};

static inline void graphs_open(struct ranks_thread *me, int64_t timeout_ms, struct rank *rank_out)
{
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = timeout_ms,
                                  .window_bytes = 8 << 20,
                                  .chunk_bytes = 32 << 10,
                                  .no_multicast = me->extra != NULL};
    struct rank rank = {.me = me};
    CUcontext context;
    graphs_must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &rank.comm));
    OK(driver->cuDevicePrimaryCtxRetain(&context, me->rank));
    OK(driver->cuCtxPushCurrent(context));
    OK(driver->cuStreamCreateWithPriority(&rank.stream, CU_STREAM_NON_BLOCKING, 0));
    OK(driver->cuStreamCreateWithPriority(&rank.second, CU_STREAM_NON_BLOCKING, 0));
    OK(driver->cuEventCreate(&rank.event, CU_EVENT_DISABLE_TIMING));
    *rank_out = rank;
}

/* The context stays: a graph may outlive its group. */
static inline void graphs_close(struct rank *rank)
{
    CUcontext context;
    OK(driver->cuStreamDestroy(rank->stream));
    OK(driver->cuStreamDestroy(rank->second));
    OK(driver->cuEventDestroy(rank->event));
    OK(driver->cuCtxPopCurrent(&context));
    OK(driver->cuDevicePrimaryCtxRelease(rank->me->rank));
}

static inline void graphs_begin(struct rank *rank)
{
    OK(program.cuStreamBeginCapture(rank->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
}

static inline CUgraphExec graphs_end(struct rank *rank)
{
    CUgraph graph;
    CUgraphExec exec;
    OK(program.cuStreamEndCapture(rank->stream, &graph));
    OK(program.cuGraphInstantiate(&exec, graph, 0));
    OK(program.cuGraphDestroy(graph));
    return exec;
}

/* The later stream goes on behind the earlier one. */
static inline void graphs_after(struct rank *rank, CUstream later, CUstream earlier)
{
    OK(driver->cuEventRecord(rank->event, earlier));
    OK(driver->cuStreamWaitEvent(later, rank->event, 0));
}

/* Before any rank begins. */
static inline void graphs_resolve(void)
{
    pthread_barrier_init(&meeting, NULL, CALLS_RANKS);
    REQUIRE(driver_open(SMFAR_DRIVER_SOFT, &driver) == SMFAR_OK, "%s", smfar_last_error());
#define REQUIRED(name, params) *(void **)&program.name = switch_symbol(#name);
#include "../../csrc/soft/graphs.def"
}

#endif
