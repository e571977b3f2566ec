#define _GNU_SOURCE
#include "rig.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags,
                             int *status);

struct rig_table cu;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        CUresult must_result = (call);                                                             \
        REQUIRE(must_result == CUDA_SUCCESS, "it gives %s", rig_name(must_result));                \
    } while (0)

const char *rig_name(CUresult result)
{
    const char *name = NULL;
    return cu.cuGetErrorName(result, &name) == CUDA_SUCCESS ? name : "?";
}

static void resolve(const char *name, void *slot)
{
    void *function;
    int status;
    CUresult result = cuGetProcAddress_v2(name, &function, 12020, 0, &status);
    REQUIRE(result == CUDA_SUCCESS && status == 0 && function, "%s is missing", name);
    memcpy(slot, &function, sizeof function);
}

void rig_resolve(void)
{
#define REQUIRED(name, params) resolve(#name, &cu.name);
#define OPTIONAL(name, params) resolve(#name, &cu.name);
#include "../../csrc/driver/driver.def"
#define REQUIRED(name, params) resolve(#name, &cu.name);
#include "../../csrc/soft/graphs.def"
}

void rig_use(int device)
{
    CUcontext context;
    MUST(cu.cuDevicePrimaryCtxRetain(&context, device));
    MUST(cu.cuCtxPushCurrent(context));
}

void rig_leave(int device)
{
    MUST(cu.cuCtxPopCurrent(NULL));
    MUST(cu.cuDevicePrimaryCtxRelease(device));
}

void rig_open(int device)
{
    rig_resolve();
    MUST(cu.cuInit(0));
    rig_use(device);
}

CUmemGenericAllocationHandle rig_memory(int device, size_t size)
{
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    MUST(cu.cuMemCreate(&handle, size, &prop, 0));
    return handle;
}

void rig_access(CUdeviceptr ptr, size_t size, int device, CUmemAccess_flags flags)
{
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    MUST(cu.cuMemSetAccess(ptr, size, &access, 1));
}

CUdeviceptr rig_map(CUmemGenericAllocationHandle handle, size_t size, int device)
{
    CUdeviceptr ptr = 0;
    MUST(cu.cuMemAddressReserve(&ptr, size, 0, 0, 0));
    MUST(cu.cuMemMap(ptr, size, 0, handle, 0));
    if (device >= 0) rig_access(ptr, size, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return ptr;
}

void rig_unmap(CUdeviceptr ptr, size_t size)
{
    MUST(cu.cuMemUnmap(ptr, size));
    MUST(cu.cuMemAddressFree(ptr, size));
}

CUmemGenericAllocationHandle rig_multicast(unsigned devices, size_t size)
{
    CUmemGenericAllocationHandle handle = 0;
    CUmulticastObjectProp prop = {devices, size, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0};
    MUST(cu.cuMulticastCreate(&handle, &prop));
    return handle;
}

CUstream rig_stream(void)
{
    CUstream stream = NULL;
    MUST(cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    return stream;
}

CUfunction rig_function(const char *ptx, const char *name, CUmodule *module_out)
{
    char log[512] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    CUfunction function = NULL;
    CUresult result = cu.cuModuleLoadDataEx(module_out, ptx, 2, options, values);
    REQUIRE(result == CUDA_SUCCESS, "%s", log);
    MUST(cu.cuModuleGetFunction(&function, *module_out, name));
    return function;
}

int rig_leaks(void)
{
    struct soft_leaks l;
    soft_leaks(&l);
    int held = (int)(l.handles + l.mappings + l.ranges + l.streams + l.events + l.modules +
                     l.descriptors + l.graphs);
    if (held)
        printf("held: %d handles, %d mappings, %d ranges, %d streams, %d events, %d modules, "
               "%d descriptors, %d graphs\n",
               (int)l.handles, (int)l.mappings, (int)l.ranges, (int)l.streams, (int)l.events,
               (int)l.modules, (int)l.descriptors, (int)l.graphs);
    return held;
}

/* ---- child processes ---- */

int rig_fork(int (*child)(int argument), int argument)
{
    fflush(stdout);
    pid_t pid = fork();
    REQUIRE(pid >= 0, "fork failed");
    if (pid == 0) exit(child(argument));
    return pid;
}

int rig_join(int pid)
{
    int status = 0;
    for (int naps = 0; waitpid(pid, &status, WNOHANG) == 0; naps++) {
        if (naps == 60000) kill(pid, SIGKILL);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

struct rig_sync {
    atomic_int arrived;
    int parties;
};

struct rig_sync *rig_sync_create(int parties)
{
    struct rig_sync *sync =
        mmap(NULL, sizeof *sync, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(sync != MAP_FAILED, "no shared page");
    sync->parties = parties;
    return sync;
}

void rig_sync(struct rig_sync *sync)
{
    int round = atomic_fetch_add(&sync->arrived, 1) / sync->parties;
    for (int naps = 0; atomic_load(&sync->arrived) < (round + 1) * sync->parties; naps++) {
        REQUIRE(naps < 60000, "another party never came");
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

void rig_send_fd(int socket, int fd)
{
    char byte = 0;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.space,
                             .msg_controllen = sizeof control.space};
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    EXPECT(sendmsg(socket, &message, 0) == 1, "sendmsg");
}

int rig_receive_fd(int socket)
{
    char byte;
    int fd = -1;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.space,
                             .msg_controllen = sizeof control.space};
    REQUIRE(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1, "recvmsg");
    memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    return fd;
}
