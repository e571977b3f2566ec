/* The software switch's process state: settings, virtual GPUs, primary contexts, the stack of
 * current contexts, and the way in and out (cuInit, cuGetProcAddress, fork, exit). Not memory or
 * work. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "soft_faults.h"

enum {
    MAX_STACK = 64,
    EXIT_WAIT_MS = 2000,
    LEAST_COMPUTE = 80, /* 8.0 */
    MOST_COMPUTE = 129
};

struct settings settings;
struct device devices[MAX_DEVICES];
atomic_int soft_stopping;
_Thread_local int in_host_function;

static pthread_once_t initialise_once = PTHREAD_ONCE_INIT;
static atomic_int initialised, forked;
static unsigned char boot_id[16];
static atomic_uintptr_t next_context = 0x5e0000000010;

static _Thread_local struct {
    struct device *device;
    uintptr_t context;
} stack[MAX_STACK];
static _Thread_local int depth;

uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

void nap_us(unsigned microseconds)
{
    struct timespec time = {0, microseconds * 1000l};
    nanosleep(&time, NULL);
}

CUresult api_enter(enum api_call call, enum api_need need)
{
    stats_count_call(call);
    CUresult ordered = faults_apply(call);
    if (ordered != CUDA_SUCCESS) return ordered;
    if (need == NEED_NOTHING) return CUDA_SUCCESS;
    if (atomic_load(&forked)) return refuse(CUDA_ERROR_NOT_INITIALIZED, "call in a forked child");
    if (atomic_load(&soft_stopping)) return CUDA_ERROR_DEINITIALIZED;
    if (in_host_function) return refuse(CUDA_ERROR_NOT_PERMITTED, "call inside a host function");
    if (!atomic_load(&initialised)) return CUDA_ERROR_NOT_INITIALIZED;
    if (need == NEED_INIT) return CUDA_SUCCESS;
    struct device *device = device_current();
    if (!device) return refuse(CUDA_ERROR_INVALID_CONTEXT, "no current context");
    CUresult state = device_state(device);
    return state == CUDA_SUCCESS ? capture_check_call(call) : state;
}

/* ---- start, fork, exit ---- */

static long read_setting(const char *name, long fallback, long least, long most)
{
    const char *text = getenv(name);
    if (!text || !*text) return fallback;
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < least || value > most) {
        soft_print("%s=%s is not a number from %ld to %ld; using %ld", name, text, least, most,
                   fallback);
        return fallback;
    }
    return value;
}

/* 16 bytes that all processes of this boot share. */
static void read_boot_id(void)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    char text[64] = "";
    if (file) {
        if (!fgets(text, sizeof text, file)) text[0] = 0;
        fclose(file);
    }
    int nibble = 0;
    for (const char *c = text; *c && nibble < 32; c++) {
        const char *digits = "0123456789abcdef", *digit = strchr(digits, *c);
        if (!digit) continue;
        boot_id[nibble / 2] |= (digit - digits) << (nibble % 2 ? 0 : 4);
        nibble++;
    }
}

/* Workers may still run our code after the caller's dlclose. */
static void keep_loaded(void)
{
    Dl_info info;
    if (dladdr(&devices, &info)) dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

static void mark_forked(void) { atomic_store(&forked, 1); }

static void initialise(void)
{
    settings.devices = read_setting("SMFAR_SOFT_GPUS", 8, 0, MAX_DEVICES);
    settings.multiprocessors = read_setting("SMFAR_SOFT_SMS", 8, 1, 1024);
    settings.multicast = read_setting("SMFAR_SOFT_MULTICAST", 1, 0, 1);
    settings.compute = read_setting("SMFAR_SOFT_CC", 90, LEAST_COMPUTE, MOST_COMPUTE);
    settings.block_ms = read_setting("SMFAR_SOFT_BLOCK_MS", 60000, 0, 3600000);
    settings.leaks = read_setting("SMFAR_SOFT_LEAKS", 0, 0, 1);
    settings.seed = read_setting("SMFAR_SOFT_SEED", 1, 0, 0x7fffffff);
    settings.checked = read_setting("SMFAR_SOFT_CHECKED", 0, 0, 1);
    for (int i = 0; i < settings.devices; i++) {
        devices[i].ordinal = i;
        pthread_mutex_init(&devices[i].lock, NULL);
    }
    read_boot_id();
    keep_loaded();
    pthread_atfork(NULL, NULL, mark_forked);
    atomic_store(&initialised, 1);
}

CUresult cuInit(unsigned int flags)
{
    ENTER(cuInit, NEED_NOTHING);
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&forked)) return CUDA_ERROR_NOT_INITIALIZED;
    if (atomic_load(&soft_stopping)) return CUDA_ERROR_DEINITIALIZED;
    pthread_once(&initialise_once, initialise);
    return settings.devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* Kernels and waits are told to stop and given a moment, so that none still touches memory that
 * later destructors free; then the process exits whether they have ended or not. */
__attribute__((destructor)) static void stop_at_exit(void)
{
    if (!atomic_load(&initialised) || atomic_load(&forked)) return;
    atomic_store(&soft_stopping, 1);
    uint64_t deadline = now_ns() + EXIT_WAIT_MS * 1000000ull;
    for (int i = 0; i < settings.devices; i++)
        atomic_store(&devices[i].stop, 1);
    for (int i = 0; i < settings.devices; i++)
        while (atomic_load(&devices[i].busy) && now_ns() < deadline)
            nap_us(200);
    if (settings.leaks) stats_print_leaks();
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, uint64_t flags,
                                    int *status);

/* An export that nobody has written is an error of the linker here. */
static const struct {
    const char *name;
    void *function;
} symbols[] = {
#define REQUIRED(name, params) {#name, (void *)name},
#define OPTIONAL(name, params) {#name, (void *)name},
#include "../driver/driver.def"
#define REQUIRED(name, params) {#name, (void *)name},
#include "graphs.def"
};

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, uint64_t flags,
                             int *status)
{
    enum { FOUND = 0, NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2, MOST_FLAGS = 2 };
    if (!symbol || !pfn || cudaVersion < 0 || flags > MOST_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    *pfn = NULL;
    if (cudaVersion <= DRIVER_VERSION)
        for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
            if (strcmp(symbols[i].name, symbol) == 0) *pfn = symbols[i].function;
    int reason = cudaVersion > DRIVER_VERSION ? VERSION_NOT_SUFFICIENT : NOT_FOUND;
    if (status) *status = *pfn ? FOUND : reason;
    return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuDriverGetVersion(int *version)
{
    ENTER(cuDriverGetVersion, NEED_NOTHING);
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

/* ---- faults ---- */

CUresult device_state(struct device *device) { return atomic_load(&device->fault); }

void device_fault(struct device *device, CUresult result, const char *text)
{
    int none = CUDA_SUCCESS;
    if (!atomic_compare_exchange_strong(&device->fault, &none, result)) return;
    soft_print("GPU %d: %s", device->ordinal, text);
    atomic_store(&device->stop, 1);
}

/* ---- devices ---- */

int device_valid(int ordinal) { return ordinal >= 0 && ordinal < settings.devices; }

CUresult cuDeviceGetCount(int *count)
{
    ENTER(cuDeviceGetCount, NEED_INIT);
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = settings.devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(cuDeviceGet, NEED_INIT);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
    ENTER(cuDeviceGetName, NEED_INIT);
    if (!name || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, len, "smfar virtual GPU");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    ENTER(cuDeviceGetUuid, NEED_INIT);
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, boot_id, sizeof uuid->bytes);
    uuid->bytes[15] ^= device + 1;
    return CUDA_SUCCESS;
}

#define ATTRIBUTE(name) CU_DEVICE_ATTRIBUTE_##name
static const struct {
    CUdevice_attribute attribute;
    int value;
} attributes[] = {
    {ATTRIBUTE(MAX_THREADS_PER_BLOCK), THREADS_PER_BLOCK},
    {ATTRIBUTE(WARP_SIZE), 32},
    {ATTRIBUTE(MAX_THREADS_PER_MULTIPROCESSOR), THREADS_PER_MULTIPROCESSOR},
    {ATTRIBUTE(PCI_DEVICE_ID), 0},
    {ATTRIBUTE(PCI_DOMAIN_ID), 0xffff},
    {ATTRIBUTE(ASYNC_ENGINE_COUNT), 1},
    {ATTRIBUTE(UNIFIED_ADDRESSING), 1},
    {ATTRIBUTE(PAGEABLE_MEMORY_ACCESS), 1},
    {ATTRIBUTE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 1},
    {ATTRIBUTE(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED), 1},
    {ATTRIBUTE(CAN_USE_64_BIT_STREAM_MEM_OPS), 1},
    {ATTRIBUTE(HANDLE_TYPE_FABRIC_SUPPORTED), 0},
};

static CUresult attribute_value(CUdevice_attribute attribute, int device, int *value)
{
    if (attribute == ATTRIBUTE(MULTIPROCESSOR_COUNT))
        *value = settings.multiprocessors;
    else if (attribute == ATTRIBUTE(MULTICAST_SUPPORTED))
        *value = settings.multicast && settings.compute >= 90;
    else if (attribute == ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR))
        *value = settings.compute / 10;
    else if (attribute == ATTRIBUTE(COMPUTE_CAPABILITY_MINOR))
        *value = settings.compute % 10;
    else if (attribute == ATTRIBUTE(PCI_BUS_ID))
        *value = device + 1;
    else {
        size_t i = 0, count = sizeof attributes / sizeof *attributes;
        while (i < count && attributes[i].attribute != attribute)
            i++;
        if (i == count)
            return refuse(CUDA_ERROR_INVALID_VALUE, "unknown device attribute %d", attribute);
        *value = attributes[i].value;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER(cuDeviceGetAttribute, NEED_INIT);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    return attribute_value(attribute, device, value);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    ENTER(cuDeviceCanAccessPeer, NEED_INIT);
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device) || !device_valid(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

/* ---- primary contexts ---- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    ENTER(cuDevicePrimaryCtxRetain, NEED_INIT);
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    struct device *device = &devices[ordinal];
    pthread_mutex_lock(&device->lock);
    if (device->retains++ == 0) {
        memory_lock();
        table_rebuild(device);
        memory_unlock();
        atomic_store(&device->stop, device_state(device) != CUDA_SUCCESS);
        atomic_store(&device->context, atomic_fetch_add(&next_context, 0x10));
    }
    *context = (CUcontext)atomic_load(&device->context);
    pthread_mutex_unlock(&device->lock);
    return device_state(device);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
    ENTER(cuDevicePrimaryCtxRelease, NEED_INIT);
    if (!device_valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    struct device *device = &devices[ordinal];
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&device->lock);
    if (!device->retains)
        result = refuse(CUDA_ERROR_INVALID_CONTEXT, "context not retained");
    else if (--device->retains == 0) {
        atomic_store(&device->context, 0);
        streams_drop(device);
        graphs_drop(device);
        events_drop(device);
        modules_drop(device);
        memory_drop_blocks(ordinal);
    }
    pthread_mutex_unlock(&device->lock);
    return result;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
    ENTER(cuDevicePrimaryCtxGetState, NEED_INIT);
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = atomic_load(&devices[ordinal].context) != 0;
    return CUDA_SUCCESS;
}

/* ---- the calling thread's stack of contexts ---- */

struct device *device_current(void)
{
    if (!depth) return NULL;
    struct device *device = stack[depth - 1].device;
    return atomic_load(&device->context) == stack[depth - 1].context ? device : NULL;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    ENTER(cuCtxPushCurrent, NEED_INIT);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    for (int i = 0; i < settings.devices; i++) {
        if (atomic_load(&devices[i].context) != (uintptr_t)context) continue;
        if (depth == MAX_STACK) return refuse(CUDA_ERROR_OUT_OF_MEMORY, "context stack is full");
        stack[depth].device = &devices[i];
        stack[depth++].context = (uintptr_t)context;
        return CUDA_SUCCESS;
    }
    return refuse(CUDA_ERROR_INVALID_CONTEXT, "no such context");
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    ENTER(cuCtxPopCurrent, NEED_INIT);
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context) *context = (CUcontext)stack[depth].context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER(cuCtxGetCurrent, NEED_INIT);
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = depth ? (CUcontext)stack[depth - 1].context : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    ENTER(cuCtxGetId, NEED_INIT);
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; context && i < settings.devices; i++)
        if (atomic_load(&devices[i].context) == (uintptr_t)context) {
            *id = (uintptr_t)context; /* here no handle comes twice */
            return CUDA_SUCCESS;
        }
    return refuse(CUDA_ERROR_INVALID_CONTEXT, "no such context");
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER(cuCtxGetDevice, NEED_INIT);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    struct device *current = device_current();
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER(cuCtxGetStreamPriorityRange, NEED_CONTEXT);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    ENTER(cuCtxSynchronize, NEED_CONTEXT);
    struct device *device = device_current();
    CUresult captured = capture_check_device(device);
    if (captured != CUDA_SUCCESS) return captured;
    streams_wait(device);
    return device_state(device);
}
