/* Streams, events, stream memory operations and host functions: order, asynchrony, and who may
 * write where. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "rig.h"

/* Host words that streams wait for and write; registered by main. */
static _Atomic uint64_t words[512] __attribute__((aligned(4096)));
static CUstream first, second;

static CUdeviceptr word(int i) { return (uintptr_t)&words[i]; }

static void hold(CUstream stream, int i)
{
    atomic_store(&words[i], 0);
    OK(cu.cuStreamWaitValue64(stream, word(i), 1, CU_STREAM_WAIT_VALUE_EQ));
}

static void let_go(int i) { atomic_store(&words[i], 1); }

static void test_copies_are_asynchronous(void)
{
    static int from[1000], to[1000];
    for (int i = 0; i < 1000; i++)
        from[i] = i;
    hold(first, 0);
    OK(cu.cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, sizeof to, first));
    GIVES(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(first));
    usleep(2000);
    EXPECT_EQ(to[999], 0);
    from[999] = -1; /* read when the copy runs, not when it is queued */
    let_go(0);
    OK(cu.cuStreamSynchronize(first));
    OK(cu.cuStreamQuery(first));
    EXPECT_EQ(to[999], -1);
    EXPECT_EQ(to[998], 998);
}

static void test_fills(void)
{
    CUdeviceptr block;
    unsigned char bytes[16];
    OK(cu.cuMemAlloc(&block, 16));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD32Async(block + 1, 0, 1, first));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD8Async(block, 0, 17, first));
    OK(cu.cuMemsetD32Async(block, 0x01020304, 4, first));
    OK(cu.cuMemsetD8Async(block + 5, 9, 3, first));
    OK(cu.cuMemcpyDtoHAsync(bytes, block, 16, first));
    OK(cu.cuStreamSynchronize(first));
    EXPECT(bytes[4] == 4 && bytes[5] == 9 && bytes[7] == 9 && bytes[8] == 4 && bytes[15] == 1,
           "%d %d %d %d %d", bytes[4], bytes[5], bytes[7], bytes[8], bytes[15]);
    OK(cu.cuMemFree(block));
}

static void test_events(void)
{
    CUevent start, end, untimed;
    float ms = -1;
    OK(cu.cuEventCreate(&start, 0));
    OK(cu.cuEventCreate(&end, 0));
    OK(cu.cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    OK(cu.cuEventQuery(start)); /* never recorded */
    OK(cu.cuStreamWaitEvent(first, start, 0));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.cuEventElapsedTime(&ms, start, end));
    OK(cu.cuEventRecord(start, first));
    OK(cu.cuEventSynchronize(start)); /* the time of it is taken */
    hold(first, 1);
    OK(cu.cuEventRecord(end, first));
    GIVES(CUDA_ERROR_NOT_READY, cu.cuEventQuery(end));
    GIVES(CUDA_ERROR_NOT_READY, cu.cuEventElapsedTime(&ms, start, end));
    OK(cu.cuStreamWaitEvent(second, end, 0));
    OK(cu.cuStreamWriteValue32(second, word(2), 7, 0));
    usleep(20000);
    EXPECT_EQ(words[2], 0); /* the second stream waits for the first */
    let_go(1);
    OK(cu.cuEventSynchronize(end));
    OK(cu.cuEventElapsedTime(&ms, start, end));
    EXPECT(ms >= 15 && ms < 60000, "%f ms", (double)ms);
    OK(cu.cuStreamSynchronize(second));
    EXPECT_EQ(words[2], 7);
    OK(cu.cuEventRecord(untimed, first));
    OK(cu.cuEventSynchronize(untimed));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.cuEventElapsedTime(&ms, start, untimed));
    OK(cu.cuEventDestroy(start));
    OK(cu.cuEventDestroy(end));
    OK(cu.cuEventDestroy(untimed));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.cuEventRecord(start, first));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.cuEventDestroy(start));
}

/* A wait means the record that was the last one when the wait was made. */
static void test_event_recorded_again(void)
{
    CUevent event;
    OK(cu.cuEventCreate(&event, 0));
    OK(cu.cuEventRecord(event, first));
    OK(cu.cuStreamWaitEvent(second, event, 0));
    hold(first, 3);
    OK(cu.cuEventRecord(event, first));
    OK(cu.cuStreamSynchronize(second)); /* does not wait for the second record */
    GIVES(CUDA_ERROR_NOT_READY, cu.cuEventQuery(event));
    OK(cu.cuEventDestroy(event)); /* while its record is queued */
    let_go(3);
    OK(cu.cuStreamSynchronize(first));
}

static void expect_wait(uint64_t memory, uint64_t value, unsigned flags, int wide, int met)
{
    atomic_store(&words[4], memory);
    if (wide)
        OK(cu.cuStreamWaitValue64(first, word(4), value, flags));
    else
        OK(cu.cuStreamWaitValue32(first, word(4), (uint32_t)value, flags));
    usleep(met ? 0 : 3000);
    if (!met) GIVES(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(first));
    /* every wait here is met by one of these two */
    while (!met && cu.cuStreamQuery(first) == CUDA_ERROR_NOT_READY) {
        atomic_store(&words[4], value);
        usleep(300);
        atomic_store(&words[4], 0);
        usleep(300);
    }
    OK(cu.cuStreamSynchronize(first));
}

static void test_waits(void)
{
    enum { GEQ = CU_STREAM_WAIT_VALUE_GEQ, EQ = CU_STREAM_WAIT_VALUE_EQ };
    enum { AND = CU_STREAM_WAIT_VALUE_AND, NOR = CU_STREAM_WAIT_VALUE_NOR };
    expect_wait(5, 5, GEQ, 0, 1);
    expect_wait(4, 5, GEQ, 0, 0);
    expect_wait(0x80000004, 5, GEQ, 0, 1); /* cyclic: 2^31 - 1 ahead */
    expect_wait(0x80000005, 5, GEQ, 0, 0); /* 2^31 ahead is behind */
    expect_wait(3, 0xfffffff0, GEQ, 0, 1); /* wrapped */
    expect_wait(3, 0xfffffff0, GEQ, 1, 0); /* but not in 64 bits */
    expect_wait(3, ~0ull, GEQ, 1, 1);
    expect_wait(1ull << 32 | 5, 5, EQ, 0, 1); /* only 32 bits are read */
    expect_wait(1ull << 32 | 5, 5, EQ, 1, 0);
    expect_wait(6, 2, AND, 0, 1);
    expect_wait(4, 2, AND, 0, 0);
    expect_wait(0xfffffff0, 1, NOR, 0, 1);
    expect_wait(0xfffffffe, 1, NOR, 0, 0);
    expect_wait(~0ull << 1, 1, NOR, 1, 0);
}

static void test_memory_operation_rules(void)
{
    CUmemGenericAllocationHandle memory = rig_memory(1, MIB2);
    CUdeviceptr peer = rig_map(memory, MIB2, 0);
    static uint64_t unregistered;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuStreamWriteValue32(first, word(0) + 2, 1, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuStreamWriteValue64(first, word(0) + 4, 1, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuStreamWaitValue32(first, word(0), 1, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuStreamWriteValue32(first, peer, 1, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuStreamWriteValue64(first, (uintptr_t)&unregistered, 1, 0));
    OK(cu.cuStreamWaitValue32(first, peer, 0, CU_STREAM_WAIT_VALUE_EQ));
    OK(cu.cuStreamSynchronize(first));
    rig_unmap(peer, MIB2);
    OK(cu.cuMemRelease(memory));
}

static void test_batches(void)
{
    CUstreamBatchMemOpParams ops[257] = {0};
    for (int i = 0; i < 257; i++) {
        ops[i].value.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
        ops[i].value.address = word(5 + i % 3);
        ops[i].value.value64 = 1ull << 40 | (unsigned)i;
    }
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuStreamBatchMemOp(first, 257, ops, 0));
    ops[1].value.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    ops[1].value.flags = CU_STREAM_WAIT_VALUE_GEQ;
    ops[2].value.operation = CU_STREAM_MEM_OP_BARRIER;
    OK(cu.cuStreamBatchMemOp(first, 4, ops, 0));
    ops[3].value.address = word(0) + 1;
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuStreamBatchMemOp(first, 4, ops, 0));
    usleep(2000);
    EXPECT_EQ(words[5], 1ull << 40); /* the first write, not yet the fourth */
    atomic_store(&words[6], 1ull << 40 | 1);
    OK(cu.cuStreamSynchronize(first));
    EXPECT_EQ(words[5], 1ull << 40 | 3);
}

static CUresult inside;
static void call_the_driver(void *argument)
{
    inside = cu.cuStreamSynchronize(second);
    *(int *)argument += 1;
}

static void test_host_functions(void)
{
    int calls = 0;
    hold(first, 7);
    OK(cu.cuLaunchHostFunc(first, call_the_driver, &calls));
    EXPECT_EQ(calls, 0);
    let_go(7);
    OK(cu.cuStreamSynchronize(first));
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(inside, CUDA_ERROR_NOT_PERMITTED);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuLaunchHostFunc(first, NULL, NULL));
}

static void test_life_of_a_stream(void)
{
    CUstream stream = rig_stream();
    CUstreamCaptureStatus status;
    int least, greatest;
    OK(cu.cuCtxGetStreamPriorityRange(&least, &greatest));
    EXPECT(greatest < least, "%d to %d", least, greatest);
    OK(cu.cuStreamIsCapturing(stream, &status));
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuStreamCreateWithPriority(&stream, 2, 0));
    hold(stream, 8);
    OK(cu.cuStreamWriteValue32(stream, word(9), 9, 0));
    OK(cu.cuStreamDestroy(stream)); /* returns at once, the work goes on */
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.cuStreamDestroy(stream));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.cuStreamSynchronize(stream));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.cuStreamQuery((CUstream)(uintptr_t)12345));
    EXPECT_EQ(words[9], 0);
    let_go(8);
    for (int naps = 0; words[9] != 9 && naps < 30000; naps++)
        usleep(1000);
    EXPECT_EQ(words[9], 9);
}

/* Streams of one device do not wait for each other; all of them for cuCtxSynchronize. */
static void test_independence(void)
{
    hold(first, 10);
    OK(cu.cuStreamWriteValue32(second, word(11), 1, 0));
    OK(cu.cuStreamWriteValue32(NULL, word(12), 1, 0));
    OK(cu.cuStreamSynchronize(second));
    OK(cu.cuStreamSynchronize(NULL));
    EXPECT_EQ(words[11] + words[12], 2);
    OK(cu.cuStreamWriteValue32(first, word(13), 1, 0));
    let_go(10);
    OK(cu.cuCtxSynchronize());
    EXPECT_EQ(words[13], 1);
}

/* A stream that waits sleeps most of the time. */
static void test_waiting_is_cheap(void)
{
    hold(first, 14);
    usleep(10000);
    double begin = unit_ms(CLOCK_MONOTONIC), before = unit_ms(CLOCK_PROCESS_CPUTIME_ID);
    usleep(100000);
    double used = unit_ms(CLOCK_PROCESS_CPUTIME_ID) - before;
    double took = unit_ms(CLOCK_MONOTONIC) - begin;
    let_go(14);
    OK(cu.cuStreamSynchronize(first));
    EXPECT(used < 0.4 * took, "%.1f ms of processor time in %.1f ms", used, took);
}

static int exits_while_streams_wait(int unused)
{
    (void)unused;
    rig_open(0);
    OK(cu.cuMemHostRegister((void *)words, sizeof words, 0));
    hold(rig_stream(), 15);
    hold(NULL, 15);
    return unit_failures > 0;
}

int main(void)
{
    rig_resolve();
    int child = rig_fork(exits_while_streams_wait, 0);
    EXPECT_EQ(rig_join(child), 0);
    rig_open(0);
    OK(cu.cuMemHostRegister((void *)words, sizeof words, 0));
    first = rig_stream();
    second = rig_stream();
    test_copies_are_asynchronous();
    test_fills();
    test_events();
    test_event_recorded_again();
    test_waits();
    test_memory_operation_rules();
    test_batches();
    test_host_functions();
    test_life_of_a_stream();
    test_independence();
    test_waiting_is_cheap();
    OK(cu.cuStreamDestroy(first));
    OK(cu.cuStreamDestroy(second));
    OK(cu.cuMemHostUnregister((void *)words));
    rig_leave(0);
    EXPECT_EQ(rig_leaks(), 0);
    return unit_end();
}
