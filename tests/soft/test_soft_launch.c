/* Modules and launches: PTX of this test's own, the driver's checks round it, what the kernels may
 * touch, sticky faults, and leaving while a kernel spins. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "../../csrc/soft/soft_internal.h"
#include "rig.h"

static const char head[] = ".version 8.2\n.target sm_90\n.address_size 64\n";

static const char store_word[] =
    "// a comment before the first directive\n"
    ".version 8.2\n.target sm_90\n.address_size 64\n"
    ".visible .entry store_word(.param .u64 address, .param .u64 value)\n"
    "{\n"
    "    .reg .b64 %address, %value;\n"
    "    .reg .b32 %word;\n"
    "    ld.param.u64 %address, [address];\n"
    "    ld.param.u64 %value, [value];\n"
    "    cvt.u32.u64 %word, %value;\n"
    "    st.global.u32 [%address], %word;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry empty()\n"
    "{\n"
    "    ret;\n"
    "}\n"
    ".visible .entry bounded() .maxntid 64, 1, 1\n"
    "{\n"
    "    ret;\n"
    "}\n";

static const char spin[] = ".version 8.2\n.target sm_90\n.address_size 64\n"
                           ".visible .entry spin(.param .u64 address)\n"
                           "{\n"
                           "    .reg .b64 %address;\n"
                           "    .reg .b32 %word;\n"
                           "    .reg .pred %still;\n"
                           "    ld.param.u64 %address, [address];\n"
                           "again:\n"
                           "    ld.acquire.sys.global.u32 %word, [%address];\n"
                           "    setp.eq.u32 %still, %word, 0;\n"
                           "    @%still bra again;\n"
                           "    ret;\n"
                           "}\n";

static const char multimem[] =
    ".version 8.2\n.target sm_90\n.address_size 64\n"
    ".visible .entry multimem_store(.param .u64 address, .param .u64 value)\n"
    "{\n"
    "    .reg .b64 %address, %value;\n"
    "    .reg .b32 %word;\n"
    "    ld.param.u64 %address, [address];\n"
    "    ld.param.u64 %value, [value];\n"
    "    cvt.u32.u64 %word, %value;\n"
    "    multimem.st.relaxed.sys.global.u32 [%address], %word;\n"
    "    ret;\n"
    "}\n";

static CUresult launch(CUfunction function, CUstream stream, uint64_t address, uint64_t value)
{
    void *params[] = {&address, &value};
    return cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static void test_loading(void)
{
    char log[256] = "", text[512];
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    CUmodule module;
    CUfunction function, again;
    GIVES(CUDA_ERROR_INVALID_IMAGE, cu.cuModuleLoadDataEx(&module, "\177ELF", 0, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_IMAGE, cu.cuModuleLoadDataEx(&module, "", 0, NULL, NULL));
    snprintf(text, sizeof text, "%s.visible .entry f()\n{\n    bogus.u32 1;\n}\n", head);
    GIVES(CUDA_ERROR_INVALID_PTX, cu.cuModuleLoadDataEx(&module, text, 2, options, values));
    EXPECT_HAS(log, "line ");
    EXPECT_EQ((uintptr_t)values[1], strlen(log));
    values[1] = (void *)sizeof log;
    GIVES(CUDA_ERROR_INVALID_PTX,
          cu.cuModuleLoadDataEx(&module, ".version 8.6\n.target sm_100\n.address_size 64\n", 2,
                                options, values));
    EXPECT_HAS(log, "not for compute capability 9.0");
    values[1] = (void *)sizeof log;
    GIVES(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
          cu.cuModuleLoadDataEx(&module, ".version 9.0\n.target sm_90\n.address_size 64\n", 2,
                                options, values));
    EXPECT_HAS(log, ".version 9.0: CUDA 12.9 takes PTX up to 8.8");
    int version = 0;
    OK(cu.cuDriverGetVersion(&version));
    EXPECT_EQ(version, 12090);
    function = rig_function(store_word, "store_word", &module);
    OK(cu.cuModuleGetFunction(&again, module, "store_word"));
    EXPECT(function == again, "two handles of one function");
    GIVES(CUDA_ERROR_NOT_FOUND, cu.cuModuleGetFunction(&again, module, "store_words"));
    OK(cu.cuModuleUnload(module));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.cuModuleUnload(module));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cu.cuModuleGetFunction(&again, module, "store_word"));
    GIVES(CUDA_ERROR_INVALID_HANDLE, launch(function, NULL, 0, 0));
}

/* One text is parsed once, also after its last user has gone; another is another module. */
static void test_sharing(void)
{
    char error[256] = "", text[sizeof store_word + 2];
    struct ptx_module *first = parsed_get(store_word, error, sizeof error);
    snprintf(text, sizeof text, "%s", store_word);
    EXPECT(first && parsed_get(text, error, sizeof error) == first, "parsed twice");
    parsed_release(first);
    parsed_release(first);
    EXPECT(parsed_get(text, error, sizeof error) == first, "parsed again");
    strcat(text, "\n");
    struct ptx_module *other = parsed_get(text, error, sizeof error);
    EXPECT(other && other != first, "two texts share a module");
    parsed_release(first);
    parsed_release(other);
    for (int i = 0; i < 20; i++) { /* more than are kept */
        snprintf(text, sizeof text, "%s.visible .entry f%d()\n{\n    ret;\n}\n", head, i);
        parsed_release(parsed_get(text, error, sizeof error));
    }
    EXPECT(!parsed_get(head + 1, error, sizeof error), "no PTX was parsed");
    EXPECT_HAS(error, "line ");
}

static void test_shapes(void)
{
    CUmodule module;
    CUfunction empty = rig_function(store_word, "empty", &module), bounded, store;
    int value, blocks;
    OK(cu.cuModuleGetFunction(&bounded, module, "bounded"));
    OK(cu.cuModuleGetFunction(&store, module, "store_word"));
    OK(cu.cuLaunchKernel(empty, 3, 2, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cu.cuLaunchKernel(empty, 0, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cu.cuLaunchKernel(empty, 1, 1, 1, 1024, 2, 1, 0, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cu.cuLaunchKernel(empty, 1, 65536, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cu.cuLaunchKernel(empty, 1, 1, 1, 32, 1, 1, 49153, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cu.cuLaunchKernel(bounded, 1, 1, 1, 65, 1, 1, 0, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cu.cuLaunchKernel(store, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    OK(cu.cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, bounded));
    EXPECT_EQ(value, 64);
    OK(cu.cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, store));
    EXPECT_EQ(value, 0);
    OK(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, empty, 512, 0));
    EXPECT_EQ(blocks, 4);
    OK(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, empty, 32, 0));
    EXPECT_EQ(blocks, 32);
    OK(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, bounded, 65, 0));
    EXPECT_EQ(blocks, 0);
    OK(cu.cuCtxSynchronize());
    OK(cu.cuModuleUnload(module));
}

/* Parameters are copied at the call; a module may be unloaded while its kernel is queued. */
static void test_launches(void)
{
    static _Atomic uint32_t flag, host;
    CUmodule module, spinning;
    CUfunction store = rig_function(store_word, "store_word", &module);
    CUfunction wait = rig_function(spin, "spin", &spinning);
    CUstream stream = rig_stream();
    CUdeviceptr block;
    uint32_t word = 0;
    OK(cu.cuMemAlloc(&block, 4));
    OK(launch(wait, stream, (uintptr_t)&flag, 0));
    OK(launch(store, stream, block, 77));
    OK(launch(store, stream, (uintptr_t)&host, 78)); /* ordinary host memory */
    OK(cu.cuMemcpyDtoHAsync(&word, block, 4, stream));
    OK(cu.cuModuleUnload(module));
    OK(cu.cuModuleUnload(spinning));
    GIVES(CUDA_ERROR_NOT_READY, cu.cuStreamQuery(stream));
    atomic_store(&flag, 1);
    OK(cu.cuStreamSynchronize(stream));
    EXPECT_EQ(word, 77);
    EXPECT_EQ(host, 78);
    OK(cu.cuMemFree(block));
    OK(cu.cuStreamDestroy(stream));
}

static int find_stats(const char *name, struct soft_kernel_stats *stats)
{
    for (unsigned i = 0; soft_kernel_stats(i, stats); i++)
        if (strcmp(stats->name, name) == 0) return 1;
    return 0;
}

/* The switch knows this kernel by no name, and it reaches both copies. */
static void test_multimem(void)
{
    CUmodule module;
    CUfunction store = rig_function(multimem, "multimem_store", &module);
    CUmemGenericAllocationHandle object = rig_multicast(2, MIB2), memory[2];
    CUdeviceptr own[2], view;
    struct soft_kernel_stats stats;
    for (int i = 0; i < 2; i++)
        OK(cu.cuMulticastAddDevice(object, i));
    for (int i = 0; i < 2; i++) {
        memory[i] = rig_memory(i, MIB2);
        own[i] = rig_map(memory[i], MIB2, 0);
        OK(cu.cuMulticastBindMem(object, 0, memory[i], 0, MIB2, 0));
    }
    view = rig_map(object, MIB2, 0);
    soft_stats_reset();
    OK(launch(store, NULL, view + 8, 99));
    OK(launch(store, NULL, view + 8, 98));
    OK(cu.cuCtxSynchronize());
    EXPECT_EQ(*(volatile uint32_t *)(uintptr_t)(own[0] + 8), 98);
    EXPECT_EQ(*(volatile uint32_t *)(uintptr_t)(own[1] + 8), 98);
    REQUIRE(find_stats("multimem_store", &stats), "no statistics");
    EXPECT_EQ(stats.launches, 2);
    EXPECT_EQ(stats.multimem_stores, 2);
    EXPECT_EQ(stats.multimem_bytes, 8);
    soft_stats_reset();
    EXPECT(!find_stats("multimem_store", &stats), "still there after a reset");
    rig_unmap(view, MIB2);
    for (int i = 0; i < 2; i++) {
        OK(cu.cuMulticastUnbind(object, i, 0, MIB2));
        rig_unmap(own[i], MIB2);
        OK(cu.cuMemRelease(memory[i]));
    }
    OK(cu.cuMemRelease(object));
    OK(cu.cuModuleUnload(module));
}

/* ---- faults: each in a process of its own, since they last ---- */

static void expect_sticky(CUresult fault, CUstream stream, CUmodule module)
{
    CUdeviceptr ptr;
    GIVES(fault, cu.cuStreamSynchronize(stream));
    GIVES(fault, cu.cuMemAlloc(&ptr, 4));
    GIVES(fault, cu.cuCtxSynchronize());
    GIVES(fault, cu.cuStreamQuery(NULL));
    GIVES(fault, cu.cuModuleUnload(module)); /* says so, and does it */
    GIVES(fault, cu.cuStreamDestroy(stream));
    EXPECT_EQ(rig_leaks(), 0);
    rig_use(1); /* the fault is device 0's alone */
    OK(cu.cuMemAlloc(&ptr, 4));
    OK(cu.cuMemFree(ptr));
}

static int touches_a_reserved_address(int unused)
{
    CUmodule module;
    CUdeviceptr ptr;
    (void)unused;
    rig_open(0);
    CUfunction store = rig_function(store_word, "store_word", &module);
    CUstream stream = rig_stream();
    OK(cu.cuMemAddressReserve(&ptr, MIB2, 0, 0, 0));
    OK(launch(store, stream, ptr, 1));
    while (cu.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
        usleep(100);
    OK(cu.cuMemAddressFree(ptr, MIB2)); /* needs no context */
    expect_sticky(CUDA_ERROR_ILLEGAL_ADDRESS, stream, module);
    return unit_failures > 0;
}

static int touches_a_multicast_address(int unused)
{
    CUmodule module;
    (void)unused;
    rig_open(0);
    CUfunction store = rig_function(store_word, "store_word", &module);
    CUmemGenericAllocationHandle object = rig_multicast(1, MIB2), memory = rig_memory(0, MIB2);
    OK(cu.cuMulticastAddDevice(object, 0));
    OK(cu.cuMulticastBindMem(object, 0, memory, 0, MIB2, 0));
    OK(launch(store, NULL, rig_map(object, MIB2, 0), 1));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.cuCtxSynchronize());
    return unit_failures > 0;
}

static int multimem_on_plain_memory(int unused)
{
    CUmodule module;
    (void)unused;
    rig_open(0);
    CUfunction store = rig_function(multimem, "multimem_store", &module);
    OK(launch(store, NULL, rig_map(rig_memory(0, MIB2), MIB2, 0), 1));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.cuCtxSynchronize());
    return unit_failures > 0;
}

static int multimem_before_all_have_bound(int unused)
{
    CUmodule module;
    (void)unused;
    rig_open(0);
    CUfunction store = rig_function(multimem, "multimem_store", &module);
    CUmemGenericAllocationHandle object = rig_multicast(2, MIB2);
    OK(cu.cuMulticastAddDevice(object, 0));
    OK(cu.cuMulticastAddDevice(object, 1));
    OK(cu.cuMulticastBindMem(object, 0, rig_memory(0, MIB2), 0, MIB2, 0));
    OK(launch(store, NULL, rig_map(object, MIB2, 0), 1));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.cuCtxSynchronize());
    return unit_failures > 0;
}

/* cuMemAlloc gives memory to one device; peers reach what cuMemSetAccess has opened to them. */
static int touches_a_block_of_another_device(int unused)
{
    CUmodule module;
    CUdeviceptr block;
    (void)unused;
    rig_open(0);
    OK(cu.cuMemAlloc(&block, 4));
    rig_use(1);
    OK(launch(rig_function(store_word, "store_word", &module), NULL, block, 1));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.cuCtxSynchronize());
    return unit_failures > 0;
}

static int misaligned(int unused)
{
    CUmodule module;
    CUdeviceptr ptr;
    (void)unused;
    rig_open(0);
    CUfunction store = rig_function(store_word, "store_word", &module);
    CUstream stream = rig_stream();
    OK(cu.cuMemAlloc(&ptr, 16));
    OK(launch(store, stream, ptr + 2, 1));
    GIVES(CUDA_ERROR_MISALIGNED_ADDRESS, cu.cuStreamSynchronize(stream));
    return unit_failures > 0;
}

/* A fault ends what else runs on the device, and no wait outlives it, on other devices neither. */
static int fault_beside_a_spin(int unused)
{
    static _Atomic uint32_t never;
    CUmodule module, spinning;
    CUevent event;
    (void)unused;
    rig_open(1);
    CUstream elsewhere = rig_stream();
    rig_use(0);
    CUfunction store = rig_function(store_word, "store_word", &module);
    CUstream busy = rig_stream(), bad = rig_stream();
    OK(cu.cuEventCreate(&event, 0));
    OK(launch(rig_function(spin, "spin", &spinning), busy, (uintptr_t)&never, 0));
    OK(cu.cuEventRecord(event, busy));
    OK(cu.cuStreamWaitEvent(NULL, event, 0));
    OK(cu.cuStreamWaitEvent(elsewhere, event, 0));
    OK(launch(store, bad, 64, 1));
    while (cu.cuStreamQuery(bad) == CUDA_ERROR_NOT_READY)
        usleep(100);
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.cuEventSynchronize(event));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cu.cuCtxSynchronize());
    OK(cu.cuCtxPopCurrent(NULL));
    OK(cu.cuStreamSynchronize(elsewhere));
    return unit_failures > 0;
}

/* Runs after the switch's own destructor, before the process ends: no kernel runs any more. */
static int check_at_exit;
__attribute__((destructor(101))) static void expect_quiet(void)
{
    if (check_at_exit && atomic_load(&devices[0].busy)) _exit(9);
}

static int exits_while_a_kernel_spins(int unused)
{
    static _Atomic uint32_t never;
    CUmodule module;
    (void)unused;
    rig_open(0);
    OK(launch(rig_function(spin, "spin", &module), rig_stream(), (uintptr_t)&never, 0));
    while (!atomic_load(&devices[0].busy))
        usleep(100);
    check_at_exit = 1;
    return unit_failures > 0;
}

/* The context's last user leaves a kernel behind that never ends. */
static int releases_while_a_kernel_spins(int unused)
{
    static _Atomic uint32_t never;
    CUmodule module;
    (void)unused;
    setenv("SMFAR_SOFT_BLOCK_MS", "200", 1);
    rig_open(0);
    OK(launch(rig_function(spin, "spin", &module), NULL, (uintptr_t)&never, 0));
    rig_leave(0);
    rig_use(0);
    OK(launch(rig_function(store_word, "store_word", &module), NULL, (uintptr_t)&never, 3));
    OK(cu.cuCtxSynchronize());
    EXPECT_EQ(never, 3);
    return unit_failures > 0;
}

int main(void)
{
    int (*const faults[])(int) = {touches_a_reserved_address,
                                  touches_a_multicast_address,
                                  multimem_on_plain_memory,
                                  multimem_before_all_have_bound,
                                  touches_a_block_of_another_device,
                                  misaligned,
                                  fault_beside_a_spin,
                                  exits_while_a_kernel_spins,
                                  releases_while_a_kernel_spins};
    rig_resolve();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        EXPECT(rig_join(rig_fork(faults[i], 0)) == 0, "fault %zu", i);
    rig_open(0);
    test_loading();
    test_sharing();
    test_shapes();
    test_launches();
    test_multimem();
    rig_leave(0);
    EXPECT_EQ(rig_leaks(), 0);
    return unit_end();
}
