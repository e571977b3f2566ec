/* Loads the module images and launches kernels. See kernel.h. */
#include "kernel.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../base/log.h"
#include "image.h"

/* The spellings of kernels.def as the numbers of smfar.h. */
#define OP_sum SMFAR_SUM
#define OP_avg SMFAR_AVG
#define OP_product SMFAR_PRODUCT
#define OP_min SMFAR_MIN
#define OP_max SMFAR_MAX
#define OP_band SMFAR_BAND
#define OP_bor SMFAR_BOR
#define OP_bxor SMFAR_BXOR
#define TYPE_u8 SMFAR_U8
#define TYPE_i8 SMFAR_I8
#define TYPE_i16 SMFAR_I16
#define TYPE_f64 SMFAR_F64
#define TYPE_f32 SMFAR_F32
#define TYPE_f16 SMFAR_F16
#define TYPE_bf16 SMFAR_BF16
#define TYPE_f8_e4m3 SMFAR_F8_E4M3
#define TYPE_f8_e5m2 SMFAR_F8_E5M2
#define TYPE_i32 SMFAR_I32
#define TYPE_i64 SMFAR_I64

/* 1 when the literal ends in "_mc" */
#define IS_MC(literal)                                                                             \
    (literal[sizeof(literal) - 4] == '_' && literal[sizeof(literal) - 3] == 'm' &&                 \
     literal[sizeof(literal) - 2] == 'c')

const struct kernel_row kernel_rows[KERNELS] = {
#define PLAIN(file) {"smfar_" #file, #file, SMFAR_OPS, SMFAR_DTYPES, IS_MC(#file)},
#define KERNEL(file, op, type)                                                                     \
    {"smfar_" #file "_" #op "_" #type, #file, OP_##op, TYPE_##type, IS_MC(#file)},
#include "kernels.def"
#undef PLAIN
#undef KERNEL
};

/* Of one context: shared by all who ask for them there. */
struct kernels {
    struct kernels *next;
    struct driver *driver;
    unsigned long long context; /* its id: a handle comes again after a reset of the device */
    int users;
    CUmodule modules[MODULES];
    CUfunction functions[KERNELS]; /* written once, before its module is */
};

/* Held for a look and a note, never during a driver call. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kernels *loaded;

struct form {
    enum smfar_op op;
    enum smfar_dtype dtype;
};

static int is_bitwise(enum smfar_op op)
{
    return op == SMFAR_BAND || op == SMFAR_BOR || op == SMFAR_BXOR;
}

static int is_sum(enum smfar_op op)
{
    return op == SMFAR_SUM || op == SMFAR_AVG || op == SMFAR_PREMUL_SUM;
}

/* Of bytes that are 0 or 1. A sum says whether any is true, as NCCL's does. */
static enum smfar_op op_of_bools(enum smfar_op op)
{
    if (op == SMFAR_SUM || op == SMFAR_MAX) return SMFAR_BOR;
    if (op == SMFAR_PRODUCT || op == SMFAR_MIN) return SMFAR_BAND;
    return is_bitwise(op) ? op : SMFAR_OPS;
}

/* The row's op and type that do this. What has no such row is returned as it is, or as SMFAR_OPS.
 */
static struct form form_of(enum smfar_op op, enum smfar_dtype dtype)
{
    int is_integer = dtype <= SMFAR_I64;
    if (dtype == SMFAR_BOOL) return (struct form){op_of_bools(op), SMFAR_U8};
    if (is_bitwise(op)) return (struct form){is_integer ? op : SMFAR_OPS, SMFAR_U8};
    if (dtype == SMFAR_C64 || dtype == SMFAR_C128) {
        if (!is_sum(op)) return (struct form){SMFAR_OPS, dtype};
        dtype = dtype == SMFAR_C64 ? SMFAR_F32 : SMFAR_F64; /* part by part */
    }
    if (op == SMFAR_PREMUL_SUM) return (struct form){is_integer ? SMFAR_OPS : SMFAR_AVG, dtype};
    /* what wraps has the same bits with and without a sign */
    if (dtype == SMFAR_U8 && (op == SMFAR_SUM || op == SMFAR_PRODUCT)) dtype = SMFAR_I8;
    return (struct form){op, dtype};
}

enum kernel_id kernel_find(const char *file, enum smfar_op op, enum smfar_dtype dtype)
{
    struct form form = form_of(op, dtype);
    for (int id = 0; id < KERNELS; id++)
        if (!strcmp(kernel_rows[id].file, file) && kernel_rows[id].op == form.op &&
            kernel_rows[id].dtype == form.dtype)
            return id;
    return KERNELS;
}

const char *smfar_kernel_text(const char *module)
{
    for (const struct kernel_image *image = kernel_images; module && image->module; image++)
        if (!image->compute && !strcmp(image->module, module)) return (const char *)image->data;
    return NULL;
}

static CUresult load_image(struct driver *driver, const struct kernel_image *image,
                           CUmodule *module, char *log, size_t size)
{
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)size};
    log[0] = 0;
    return CU_RESULT(cuModuleLoadDataEx, module, image->data, 2, options, values);
}

/* The cubin made for this GPU if there is one and the driver takes it, else the PTX text. */
static enum smfar_status load_module(struct driver *driver, const char *name, CUmodule *module_out)
{
    enum smfar_status status;
    CUdevice device = 0;
    int major = 0, minor = 0;
    char log[2048];
    CU(cuCtxGetDevice, &device);
    CU(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    CU(cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    for (const struct kernel_image *image = kernel_images; image->module; image++) {
        if (strcmp(image->module, name)) continue;
        if (image->compute && image->compute != 10 * major + minor) continue;
        CUresult result = load_image(driver, image, module_out, log, sizeof(log));
        if (result == CUDA_SUCCESS) {
            log_info("loaded module %s as %s", name, image->compute ? "cubin" : "PTX");
            return SMFAR_OK;
        }
        if (image->compute) continue;
        driver_failed_at(__FILE__, __LINE__, driver, "cuModuleLoadDataEx", result);
        return FAIL(SMFAR_ERR_DRIVER, "module %s: %s; %s", name, smfar_last_error(), log);
    }
    return FAIL(SMFAR_ERR_UNSUPPORTED, "this build holds no module %s", name);
fail:
    return status;
}

static enum smfar_status find_functions(struct driver *driver, enum kernel_module number,
                                        CUmodule module, CUfunction functions[KERNELS])
{
    enum smfar_status status;
    for (int id = 0; id < KERNELS; id++)
        if (kernel_modules[id] == number)
            CU(cuModuleGetFunction, &functions[id], module, kernel_rows[id].entry);
    return SMFAR_OK;
fail:
    return status;
}

/* Returns 0 when another thread has been faster. */
static int publish(struct kernels *kernels, enum kernel_module number, CUmodule module,
                   const CUfunction functions[KERNELS])
{
    pthread_mutex_lock(&lock);
    int is_first = !kernels->modules[number];
    for (int id = 0; id < KERNELS && is_first; id++)
        if (kernel_modules[id] == number) kernels->functions[id] = functions[id];
    if (is_first) kernels->modules[number] = module;
    pthread_mutex_unlock(&lock);
    return is_first;
}

static int has_module(struct kernels *kernels, enum kernel_module number)
{
    pthread_mutex_lock(&lock);
    int has = kernels->modules[number] != NULL;
    pthread_mutex_unlock(&lock);
    return has;
}

static enum smfar_status need_module(struct kernels *kernels, enum kernel_module number)
{
    static const char *const names[MODULES] = {"peer", "mc", "mc_f8"};
    struct driver *driver = kernels->driver;
    CUfunction functions[KERNELS];
    CUmodule module;
    if (has_module(kernels, number)) return SMFAR_OK;
    enum smfar_status status = load_module(driver, names[number], &module);
    if (status != SMFAR_OK) return status;
    status = find_functions(driver, number, module, functions);
    if (status != SMFAR_OK || !publish(kernels, number, module, functions))
        CU_WARN(cuModuleUnload, module);
    return status;
}

/* Those of the current context, with one user more. */
static enum smfar_status join(struct driver *driver, struct kernels **kernels_out)
{
    enum smfar_status status;
    CUcontext current = NULL;
    struct kernels *kernels, *fresh = calloc(1, sizeof(*fresh));
    if (!fresh) return FAIL(SMFAR_ERR_MEMORY, "no memory for the kernel table");
    CU(cuCtxGetCurrent, &current);
    CU(cuCtxGetId, current, &fresh->context);
    fresh->driver = driver;
    pthread_mutex_lock(&lock);
    for (kernels = loaded; kernels; kernels = kernels->next)
        if (kernels->driver == driver && kernels->context == fresh->context) break;
    if (!kernels) {
        kernels = fresh;
        kernels->next = loaded;
        loaded = kernels;
        fresh = NULL;
    }
    kernels->users++;
    pthread_mutex_unlock(&lock);
    free(fresh);
    *kernels_out = kernels;
    return SMFAR_OK;
fail:
    free(fresh);
    return status;
}

/* Returns 1 when nobody uses them any more: they are the caller's to unload. */
static int leave(struct kernels *kernels)
{
    struct kernels **at = &loaded;
    pthread_mutex_lock(&lock);
    int is_last = --kernels->users == 0;
    while (*at != kernels)
        at = &(*at)->next;
    if (is_last) *at = kernels->next;
    pthread_mutex_unlock(&lock);
    return is_last;
}

enum smfar_status kernels_load(struct driver *driver, int multicast, struct kernels **kernels_out)
{
    struct kernels *kernels = NULL;
    enum smfar_status status = join(driver, &kernels);
    if (status != SMFAR_OK) return status;
    status = need_module(kernels, MODULE_PEER);
    if (status == SMFAR_OK && multicast) status = need_module(kernels, MODULE_MC);
    if (status == SMFAR_OK)
        *kernels_out = kernels;
    else
        kernels_unload(kernels);
    return status;
}

/* those that .target sm_100f is for */
int kernel_float8_in_switch(int compute) { return compute == 100 || compute == 103; }

enum smfar_status kernels_load_float8(struct kernels *kernels)
{
    return need_module(kernels, MODULE_MC_F8);
}

void kernels_unload(struct kernels *kernels)
{
    if (!kernels || !leave(kernels)) return;
    struct driver *driver = kernels->driver;
    for (int i = 0; i < MODULES; i++)
        if (kernels->modules[i]) CU_WARN(cuModuleUnload, kernels->modules[i]);
    free(kernels);
}

enum smfar_status kernel_launch(const struct kernels *kernels, enum kernel_id id, int blocks,
                                int threads, const struct kargs *args, CUstream stream)
{
    enum smfar_status status;
    struct driver *driver = kernels->driver;
    void *params[] = {(void *)(uintptr_t)args}; /* read during the call, and not written */
    if (!kernels->functions[id])
        return FAIL(SMFAR_ERR_UNSUPPORTED, "kernel %s is not loaded", kernel_rows[id].entry);
    CU(cuLaunchKernel, kernels->functions[id], (unsigned)blocks, 1, 1, (unsigned)threads, 1, 1, 0,
       stream, params, NULL);
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status kernel_resources(const struct kernels *kernels, enum kernel_id id,
                                   int *registers_out, int *local_bytes_out)
{
    enum smfar_status status;
    struct driver *driver = kernels->driver;
    if (!kernels->functions[id])
        return FAIL(SMFAR_ERR_UNSUPPORTED, "kernel %s is not loaded", kernel_rows[id].entry);
    CU(cuFuncGetAttribute, registers_out, CU_FUNC_ATTRIBUTE_NUM_REGS, kernels->functions[id]);
    CU(cuFuncGetAttribute, local_bytes_out, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
       kernels->functions[id]);
    return SMFAR_OK;
fail:
    return status;
}
