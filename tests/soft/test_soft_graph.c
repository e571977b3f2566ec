/* Capture and replay: what becomes a node, how streams join a capture, what ends one, and what a
 * graph keeps. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "rig.h"

/* Host words that streams wait for and write; registered by main. */
static _Atomic uint64_t words[512] __attribute__((aligned(4096)));
static CUstream first, second;
static CUevent fork_event, join_event;

#define GLOBAL CU_STREAM_CAPTURE_MODE_GLOBAL
#define THREAD CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED

static CUdeviceptr word(int i) { return (uintptr_t)&words[i]; }

static void begin(CUstream stream) { OK(cu.cuStreamBeginCapture(stream, THREAD)); }

static CUgraph end(CUstream stream)
{
    CUgraph graph = NULL;
    OK(cu.cuStreamEndCapture(stream, &graph));
    return graph;
}

/* Ends a capture that a rule has broken. */
static void expect_broken(CUstream stream, CUresult expected)
{
    CUgraph graph = (CUgraph)&words;
    GIVES(expected, cu.cuStreamEndCapture(stream, &graph));
    EXPECT(graph == NULL, "a graph came of it");
    GIVES(CUDA_ERROR_ILLEGAL_STATE, cu.cuStreamEndCapture(stream, &graph));
    OK(cu.cuStreamSynchronize(stream));
}

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec = NULL;
    OK(cu.cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

static size_t nodes_of(CUgraph graph)
{
    size_t count = 0;
    OK(cu.cuGraphGetNodes(graph, NULL, &count));
    return count;
}

/* The second stream joins the first's capture, or goes back into it. */
static void after(CUstream later, CUstream earlier, CUevent event)
{
    OK(cu.cuEventRecord(event, earlier));
    OK(cu.cuStreamWaitEvent(later, event, 0));
}

static const char add_ptx[] = ".version 7.1\n.target sm_80\n.address_size 64\n"
                              ".visible .entry add(.param .u64 to, .param .u64 what)\n{\n"
                              "  .reg .b64 %a, %b, %c;\n"
                              "  ld.param.u64 %a, [to];\n  ld.param.u64 %b, [what];\n"
                              "  ld.global.u64 %c, [%a];\n  add.u64 %c, %c, %b;\n"
                              "  st.global.u64 [%a], %c;\n  ret;\n}\n";

static void count_call(void *argument) { ++*(atomic_int *)argument; }

/* ---- what is captured ---- */

/* Every kind of work; values are those of the capture, memory is read at each launch. */
static void test_kinds_of_nodes(void)
{
    CUmodule module;
    CUfunction add = rig_function(add_ptx, "add", &module);
    CUdeviceptr block;
    uint64_t what = 5, *bytes = (uint64_t *)(uintptr_t)&words[20];
    atomic_int calls = 0;
    OK(cu.cuMemAlloc(&block, 64));
    void *params[] = {&block, &what};
    begin(first);
    OK(cu.cuMemsetD8Async(block, 0, 32, first));
    OK(cu.cuMemsetD32Async(block + 8, 7, 2, first));
    OK(cu.cuMemcpyHtoDAsync(block + 16, (void *)&words[1], 8, first));
    OK(cu.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, first, params, NULL));
    what = 1000; /* parameters were copied */
    OK(cu.cuMemcpyDtoHAsync(bytes, block, 32, first));
    OK(cu.cuStreamWaitValue64(first, word(2), 3, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cu.cuStreamWriteValue64(first, word(3), 4, 0));
    OK(cu.cuLaunchHostFunc(first, count_call, &calls));
    CUgraph graph = end(first);
    EXPECT_EQ(nodes_of(graph), 8);
    usleep(2000);
    EXPECT(calls == 0 && words[3] == 0, "a capture runs nothing");
    OK(cu.cuModuleUnload(module)); /* the graph goes on holding the kernel */
    CUgraphExec exec = instantiate(graph);
    OK(cu.cuGraphDestroy(graph));
    atomic_store(&words[2], 3);
    for (uint64_t round = 0; round < 3; round++) {
        atomic_store(&words[1], 100 + round);
        OK(cu.cuGraphLaunch(exec, round % 2 ? second : first));
        OK(cu.cuCtxSynchronize());
        EXPECT_EQ(bytes[0], 5);
        EXPECT_EQ(bytes[1], 7ull << 32 | 7);
        EXPECT_EQ(bytes[2], 100 + round);
        EXPECT_EQ(calls, (int)round + 1);
    }
    EXPECT_EQ(words[3], 4);
    OK(cu.cuGraphExecDestroy(exec));
    OK(cu.cuMemFree(block));
}

/* Launches of one executable graph follow each other, whatever streams they are on; others do not
 * wait for them. */
static void test_launches_in_order(void)
{
    begin(first);
    OK(cu.cuStreamWaitValue64(first, word(30), 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cu.cuStreamWriteValue64(first, word(30), 0, 0));
    OK(cu.cuMemcpyAsync(word(31), word(32), 8, first));
    CUgraph graph = end(first);
    CUgraphExec exec = instantiate(graph), other = instantiate(graph);
    atomic_store(&words[31], 0);
    atomic_store(&words[32], 1);
    OK(cu.cuGraphLaunch(exec, first));
    OK(cu.cuGraphLaunch(exec, second));
    OK(cu.cuGraphExecDestroy(exec)); /* what was launched still runs */
    OK(cu.cuGraphDestroy(graph));
    usleep(2000);
    GIVES(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(first));
    atomic_store(&words[30], 1);
    OK(cu.cuStreamSynchronize(first));
    GIVES(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(second)); /* the second waits for a word again */
    OK(cu.cuGraphLaunch(other, first));                    /* another one does not wait for it */
    atomic_store(&words[30], 1);
    for (int naps = 0; naps < 60000; naps++) { /* each of the two takes the word away */
        if (cu.cuStreamQuery(first) == CUDA_SUCCESS && cu.cuStreamQuery(second) == CUDA_SUCCESS)
            break;
        atomic_store(&words[30], 1);
        usleep(500);
    }
    OK(cu.cuStreamSynchronize(first));
    OK(cu.cuStreamSynchronize(second));
    EXPECT_EQ(words[31], 1);
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.cuGraphLaunch(exec, first));
    OK(cu.cuGraphExecDestroy(other));
}

/* A second stream joins, is waited for, and is a branch beside the first when the graph runs. */
static void test_branches(void)
{
    CUstreamCaptureStatus status;
    uint64_t id = 0, other = 0;
    CUgraph inside = NULL;
    begin(first);
    OK(cu.cuStreamWriteValue64(first, word(40), 1, 0));
    after(second, first, fork_event);
    OK(cu.cuStreamGetCaptureInfo(first, &status, &id, &inside, NULL, NULL));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cu.cuStreamGetCaptureInfo(second, &status, &other, NULL, NULL, NULL));
    EXPECT(id == other && id != 0, "captures %d and %d", (int)id, (int)other);
    /* each branch waits for the other to have begun: one after the other would hang */
    OK(cu.cuStreamWriteValue64(second, word(41), 1, 0));
    OK(cu.cuStreamWaitValue64(second, word(42), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cu.cuStreamWaitValue64(first, word(41), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cu.cuStreamWriteValue64(first, word(42), 1, 0));
    after(first, second, join_event);
    OK(cu.cuStreamWriteValue64(first, word(43), 1, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuGraphDestroy(inside));
    CUgraph graph = end(first);
    EXPECT(graph == inside, "another graph than was captured into");
    OK(cu.cuStreamIsCapturing(second, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_EQ(nodes_of(graph), 6);
    CUgraphExec exec = instantiate(graph);
    for (int round = 0; round < 5; round++) {
        for (int i = 40; i < 44; i++)
            atomic_store(&words[i], 0);
        OK(cu.cuGraphLaunch(exec, first));
        OK(cu.cuStreamSynchronize(first));
        EXPECT_EQ(words[40] + words[41] + words[42] + words[43], 4);
    }
    OK(cu.cuGraphExecDestroy(exec));
    OK(cu.cuGraphDestroy(graph));
}

/* ---- what ends a capture ---- */

static void test_unjoined(void)
{
    begin(first);
    after(second, first, fork_event);
    OK(cu.cuStreamWriteValue64(second, word(50), 1, 0));
    expect_broken(first, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    OK(cu.cuStreamSynchronize(second)); /* free again */
    EXPECT_EQ(words[50], 0);
}

static void test_waits_break_it(void)
{
    CUevent event;
    OK(cu.cuEventCreate(&event, 0));
    begin(first);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamSynchronize(first));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cu.cuMemsetD8Async(word(51), 0, 1, first));
    CUstreamCaptureStatus status;
    OK(cu.cuStreamIsCapturing(first, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    expect_broken(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(first);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamQuery(first));
    expect_broken(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cu.cuStreamBeginCapture(first, RELAXED));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuCtxSynchronize());
    expect_broken(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cu.cuStreamBeginCapture(first, RELAXED));
    OK(cu.cuEventRecord(event, first));
    GIVES(CUDA_ERROR_CAPTURED_EVENT, cu.cuEventQuery(event));
    expect_broken(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    GIVES(CUDA_ERROR_CAPTURED_EVENT, cu.cuEventSynchronize(event));
    GIVES(CUDA_ERROR_CAPTURED_EVENT, cu.cuStreamWaitEvent(second, event, 0));
    OK(cu.cuEventRecord(event, first)); /* an ordinary event again */
    OK(cu.cuEventSynchronize(event));
    OK(cu.cuEventDestroy(event));
}

static void test_events_from_outside(void)
{
    OK(cu.cuEventRecord(fork_event, second));
    begin(first);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cu.cuStreamWaitEvent(first, fork_event, 0));
    expect_broken(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(first);
    begin(second);
    OK(cu.cuEventRecord(fork_event, first));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_MERGE, cu.cuStreamWaitEvent(second, fork_event, 0));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cu.cuStreamEndCapture(first, &(CUgraph){NULL}));
    expect_broken(second, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void test_wrong_ends(void)
{
    CUgraph graph;
    GIVES(CUDA_ERROR_ILLEGAL_STATE, cu.cuStreamEndCapture(first, &graph));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamBeginCapture(NULL, THREAD));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuStreamBeginCapture(first, (CUstreamCaptureMode)3));
    begin(first);
    GIVES(CUDA_ERROR_ILLEGAL_STATE, cu.cuStreamBeginCapture(first, THREAD));
    after(second, first, fork_event);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cu.cuStreamEndCapture(second, &graph));
    expect_broken(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CUstream stream = rig_stream();
    begin(stream);
    OK(cu.cuMemsetD8Async(word(51), 0, 1, stream));
    OK(cu.cuStreamDestroy(stream)); /* and its capture with it */
}

static void test_stream_null(void)
{
    CUstream blocking;
    OK(cu.cuStreamCreateWithPriority(&blocking, 0, 0));
    begin(first); /* does not wait for stream NULL */
    OK(cu.cuMemsetD8Async(word(52), 0, 1, NULL));
    OK(cu.cuGraphDestroy(end(first)));
    begin(blocking);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cu.cuMemsetD8Async(word(52), 0, 1, NULL));
    expect_broken(blocking, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(first);
    OK(cu.cuEventRecord(fork_event, first));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamWaitEvent(NULL, fork_event, 0));
    expect_broken(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cu.cuStreamDestroy(blocking));
}

/* ---- modes ---- */

struct other {
    int mode; /* of the thread; -1: as it is at first */
    CUresult allocates, ends;
};

static void *call_from_another_thread(void *argument)
{
    struct other *other = argument;
    CUdeviceptr block = 0;
    CUgraph graph;
    CUstreamCaptureMode mode = (CUstreamCaptureMode)other->mode;
    rig_use(0);
    if (other->mode >= 0) OK(cu.cuThreadExchangeStreamCaptureMode(&mode));
    if (other->mode >= 0) EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    other->allocates = cu.cuMemAlloc(&block, 16);
    if (block) OK(cu.cuMemFree(block));
    other->ends = cu.cuStreamEndCapture(first, &graph);
    if (other->ends == CUDA_SUCCESS) OK(cu.cuGraphDestroy(graph));
    rig_leave(0);
    return NULL;
}

static struct other ask_another_thread(int mode)
{
    pthread_t thread;
    struct other other = {.mode = mode};
    pthread_create(&thread, NULL, call_from_another_thread, &other);
    pthread_join(thread, NULL);
    return other;
}

static void test_modes(void)
{
    CUdeviceptr block;
    OK(cu.cuStreamBeginCapture(first, GLOBAL));
    struct other other = ask_another_thread(-1);
    EXPECT_EQ(other.allocates, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(other.ends, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    expect_broken(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cu.cuStreamBeginCapture(first, GLOBAL));
    EXPECT_EQ(ask_another_thread(RELAXED).allocates, CUDA_SUCCESS);
    EXPECT_EQ(ask_another_thread(THREAD).allocates, CUDA_SUCCESS);
    OK(cu.cuGraphDestroy(end(first)));
    begin(first);
    EXPECT_EQ(ask_another_thread(-1).allocates, CUDA_SUCCESS);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuMemAlloc(&block, 16));
    expect_broken(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cu.cuStreamBeginCapture(first, RELAXED));
    OK(cu.cuMemAlloc(&block, 16));
    OK(cu.cuMemFree(block));
    EXPECT_EQ(ask_another_thread(-1).ends, CUDA_SUCCESS); /* any thread may end this one */
}

/* ---- what a graph keeps ---- */

static void test_user_objects(void)
{
    atomic_int ended = 0;
    CUuserObject object;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuUserObjectCreate(&object, &ended, count_call, 1, 0));
    OK(cu.cuUserObjectCreate(&object, &ended, count_call, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    begin(first);
    CUgraph graph = NULL;
    CUstreamCaptureStatus status;
    OK(cu.cuStreamGetCaptureInfo(first, &status, NULL, &graph, NULL, NULL));
    OK(cu.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuUserObjectRelease(object, 2));
    OK(cu.cuStreamWaitValue64(first, word(60), 1, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT(end(first) == graph, "another graph");
    CUgraphExec exec = instantiate(graph);
    OK(cu.cuGraphDestroy(graph));
    OK(cu.cuGraphLaunch(exec, first));
    OK(cu.cuGraphExecDestroy(exec));
    usleep(2000);
    EXPECT_EQ(ended, 0); /* the launch needs it */
    atomic_store(&words[60], 1);
    OK(cu.cuStreamSynchronize(first));
    for (int naps = 0; !ended && naps < 30000; naps++)
        usleep(1000);
    EXPECT_EQ(ended, 1);
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.cuUserObjectRelease(object, 1));
    /* a capture that fails gives up what its graph kept */
    OK(cu.cuUserObjectCreate(&object, &ended, count_call, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    begin(first);
    OK(cu.cuStreamGetCaptureInfo(first, &status, NULL, &graph, NULL, NULL));
    OK(cu.cuGraphRetainUserObject(graph, object, 1, 0));
    OK(cu.cuUserObjectRelease(object, 1));
    EXPECT_EQ(ended, 1);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cu.cuStreamSynchronize(first));
    expect_broken(first, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(ended, 2);
}

static void test_empty_graph(void)
{
    begin(first);
    CUgraph graph = end(first);
    CUgraphExec exec;
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cu.cuGraphInstantiate(&exec, graph, 2));
    exec = instantiate(graph);
    OK(cu.cuGraphLaunch(exec, NULL));
    OK(cu.cuStreamSynchronize(NULL));
    begin(first);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cu.cuGraphLaunch(exec, first));
    OK(cu.cuGraphDestroy(end(first)));
    OK(cu.cuGraphExecDestroy(exec));
    OK(cu.cuGraphDestroy(graph));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.cuGraphDestroy(graph));
}

int main(void)
{
    rig_open(0);
    OK(cu.cuMemHostRegister((void *)words, sizeof words, 0));
    first = rig_stream();
    second = rig_stream();
    OK(cu.cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    OK(cu.cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
    test_kinds_of_nodes();
    test_launches_in_order();
    test_branches();
    test_unjoined();
    test_waits_break_it();
    test_events_from_outside();
    test_wrong_ends();
    test_stream_null();
    test_modes();
    test_user_objects();
    test_empty_graph();
    OK(cu.cuEventDestroy(fork_event));
    OK(cu.cuEventDestroy(join_event));
    OK(cu.cuStreamDestroy(first));
    OK(cu.cuStreamDestroy(second));
    OK(cu.cuMemHostUnregister((void *)words));
    rig_leave(0);
    EXPECT_EQ(rig_leaks(), 0);
    return unit_end();
}
