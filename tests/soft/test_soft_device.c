/* Devices, contexts, and what holds for every driver function: it is exported, it counts its
 * calls, it refuses nonsense without crashing, and it refuses to work in a forked child. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "rig.h"

/* More arguments than any driver function has. */
typedef CUresult (*any_function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                                 uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static CUresult call_with_zeros(void *slot)
{
    any_function function;
    memcpy(&function, slot, sizeof function);
    return function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

static void expect_counted(const char *name, void *slot)
{
    uint64_t before = soft_call_count(name);
    call_with_zeros(slot);
    EXPECT(soft_call_count(name) == before + 1, "%s does not count", name);
}

/* cuCtxPopCurrent and the release of context 0 are among them, so contexts are gone afterwards. */
static void test_every_function_counts(void)
{
#define REQUIRED(name, params) expect_counted(#name, &cu.name);
#define OPTIONAL(name, params) expect_counted(#name, &cu.name);
#include "../../csrc/driver/driver.def"
    soft_stats_reset();
    EXPECT_EQ(soft_call_count("cuInit"), 0);
    EXPECT_EQ(soft_call_count("no such function"), 0);
}

static void test_before_init(void)
{
    int count;
    CUcontext context;
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cu.cuDeviceGetCount(&count));
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cu.cuDevicePrimaryCtxRetain(&context, 0));
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cu.cuCtxSynchronize());
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuInit(1));
}

static void test_devices(void)
{
    int count, can, value;
    CUdevice device;
    CUuuid first, second;
    char name[64];
    OK(cu.cuDeviceGetCount(&count));
    EXPECT_EQ(count, 8);
    OK(cu.cuDeviceGet(&device, 7));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cu.cuDeviceGet(&device, 8));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cu.cuDeviceGet(&device, -1));
    OK(cu.cuDeviceGetName(name, sizeof name, 0));
    EXPECT(strcmp(name, "smfar virtual GPU") == 0, "%s", name);
    OK(cu.cuDeviceGetUuid(&first, 0));
    OK(cu.cuDeviceGetUuid(&second, 1));
    EXPECT(memcmp(&first, &second, sizeof first) != 0, "two devices, one UUID");
    OK(cu.cuDeviceCanAccessPeer(&can, 0, 1));
    EXPECT_EQ(can, 1);
    OK(cu.cuDeviceCanAccessPeer(&can, 1, 1));
    EXPECT_EQ(can, 0);
    OK(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
    EXPECT_EQ(value, 1);
    OK(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    EXPECT_EQ(value, 9);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuDeviceGetAttribute(&value, 9999, 0));
}

static void test_contexts(void)
{
    CUcontext zero, again, one, current;
    unsigned long long id, other_id;
    CUstream stream;
    unsigned flags;
    int active;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cu.cuStreamCreateWithPriority(&stream, 0, 0));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cu.cuDevicePrimaryCtxRelease(0));
    OK(cu.cuDevicePrimaryCtxRetain(&zero, 0));
    OK(cu.cuDevicePrimaryCtxRetain(&again, 0));
    OK(cu.cuDevicePrimaryCtxRetain(&one, 1));
    EXPECT(zero == again && zero != one, "contexts %p %p %p", (void *)zero, (void *)again,
           (void *)one);
    OK(cu.cuCtxPushCurrent(zero));
    OK(cu.cuCtxPushCurrent(one));
    OK(cu.cuCtxPopCurrent(&current));
    EXPECT(current == one, "the last one pushed is popped");
    OK(cu.cuCtxGetCurrent(&current));
    EXPECT(current == zero, "the one below is current");
    OK(cu.cuCtxGetId(zero, &id));
    OK(cu.cuCtxGetId(one, &other_id));
    EXPECT(id != other_id, "both have id %llu", id);
    OK(cu.cuDevicePrimaryCtxRelease(0));
    OK(cu.cuCtxSynchronize());
    OK(cu.cuDevicePrimaryCtxRelease(0));
    OK(cu.cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT_EQ(active, 0);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cu.cuCtxSynchronize());
    OK(cu.cuCtxPopCurrent(NULL));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cu.cuCtxPushCurrent(zero));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cu.cuCtxGetId(zero, &id));
    OK(cu.cuDevicePrimaryCtxRelease(1));
}

static void test_errors(void)
{
    const char *text;
    OK(cu.cuGetErrorName(CUDA_ERROR_SYSTEM_NOT_READY, &text));
    EXPECT(strcmp(text, "CUDA_ERROR_SYSTEM_NOT_READY") == 0, "%s", text);
    OK(cu.cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    EXPECT_HAS(text, "illegal memory access");
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuGetErrorName(12345, &text));
}

static void test_forked_child(void)
{
    int pid = fork(), count;
    if (pid == 0)
        _exit(cu.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                      cu.cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED
                  ? 0
                  : 1);
    EXPECT_EQ(rig_join(pid), 0);
}

static int without_multicast(int unused)
{
    int value;
    size_t granularity;
    CUmulticastObjectProp prop = {2, MIB2, 0, 0};
    CUmemGenericAllocationHandle handle;
    (void)unused;
    setenv("SMFAR_SOFT_MULTICAST", "0", 1);
    setenv("SMFAR_SOFT_GPUS", "3", 1);
    OK(cu.cuInit(0));
    OK(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
    EXPECT_EQ(value, 0);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cu.cuMulticastGetGranularity(&granularity, &prop, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cu.cuMulticastCreate(&handle, &prop));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cu.cuMulticastBindMem(1, 0, 2, 0, MIB2, 0));
    OK(cu.cuDeviceGetCount(&value));
    EXPECT_EQ(value, 3);
    return unit_failures > 0;
}

static int another_capability(int compute)
{
    int major, minor, multicast;
    char text[16];
    snprintf(text, sizeof text, "%d", compute);
    setenv("SMFAR_SOFT_CC", text, 1);
    OK(cu.cuInit(0));
    OK(cu.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    OK(cu.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
    OK(cu.cuDeviceGetAttribute(&multicast, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
    EXPECT_EQ(10 * major + minor, compute);
    EXPECT_EQ(multicast, compute >= 90);
    return unit_failures > 0;
}

static int leaves_things_behind(int error)
{
    CUstream stream;
    setenv("SMFAR_SOFT_LEAKS", "1", 1);
    dup2(error, STDERR_FILENO);
    rig_open(0);
    rig_memory(0, MIB2);
    OK(cu.cuStreamCreateWithPriority(&stream, 0, 0));
    rig_leave(0); /* takes the stream along, which nobody gave back */
    return unit_failures > 0;
}

static void test_leaks_are_printed(void)
{
    char text[512] = "";
    int error = memfd_create("stderr", MFD_CLOEXEC);
    EXPECT_EQ(rig_join(rig_fork(leaves_things_behind, error)), 0);
    EXPECT(pread(error, text, sizeof text - 1, 0) > 0, "nothing was printed");
    EXPECT_HAS(text, "leak: 1 allocation handles");
    EXPECT_HAS(text, "leak: 1 streams");
    EXPECT_HAS(text, "leak: 1 descriptors");
    EXPECT(!strstr(text, "modules"), "%s", text);
    close(error);
}

int main(void)
{
    rig_resolve();
    EXPECT_EQ(rig_join(rig_fork(without_multicast, 0)), 0);
    EXPECT_EQ(rig_join(rig_fork(another_capability, 80)), 0);
    EXPECT_EQ(rig_join(rig_fork(another_capability, 103)), 0);
    test_leaks_are_printed();
    test_before_init();
    test_every_function_counts(); /* cuInit among them */
    test_devices();
    test_contexts();
    test_errors();
    test_forked_child();
    EXPECT_EQ(rig_leaks(), 0);
    return unit_end();
}
