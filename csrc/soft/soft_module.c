/* Modules, functions and launches. PTX is parsed and run by the other half of the switch (ptx.h);
 * here are the driver's rules around that: handles, limits, parameters copied at the call, what a
 * fault does to its device. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "soft_internal.h"

struct module {
    struct object object;
    struct ptx_module *ptx;
    pthread_mutex_t lock;
    struct function *functions;
};

/* A function lives as long as its module's handle, and holds the module's text. */
struct function {
    struct object object;
    struct module *module;
    const struct ptx_kernel *kernel;
    const struct ptx_kernel_info *info;
    struct function *next;
};

struct launch_op {
    struct op op;
    struct function *function;
    struct ptx_launch launch;
    unsigned char params[];
};

static void destroy_module(struct object *object)
{
    struct module *module = (struct module *)object;
    if (module->ptx) parsed_release(module->ptx);
    pthread_mutex_destroy(&module->lock);
    free(module);
}

static void destroy_function(struct object *object)
{
    struct function *function = (struct function *)object;
    object_release(&function->module->object);
    free(function);
}

/* ---- loading ---- */

struct error_log {
    char *buffer;
    size_t size;
    void **size_out;
};

static struct error_log find_error_log(unsigned count, const CUjit_option *options, void **values)
{
    struct error_log log = {NULL, 0, NULL};
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) log.buffer = values[i];
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
            log.size = (uintptr_t)values[i];
            log.size_out = &values[i];
        }
    }
    return log;
}

/* The driver replaces the buffer's size by how much of it was filled. */
static void write_log(const struct error_log *log, const char *text)
{
    size_t length = 0;
    if (log->buffer && log->size) {
        snprintf(log->buffer, log->size, "%s", text);
        length = strlen(log->buffer);
    }
    if (log->size_out) *log->size_out = (void *)(uintptr_t)length;
}

/* PTX is text whose first word, after comments, is ".version". */
static int is_ptx(const char *text)
{
    for (;;) {
        while (isspace((unsigned char)*text))
            text++;
        if (strncmp(text, "//", 2) == 0)
            text += strcspn(text, "\n");
        else if (strncmp(text, "/*", 2) == 0) {
            const char *end = strstr(text, "*/");
            if (!end) return 0;
            text = end + 2;
        } else
            return strncmp(text, ".version", 8) == 0;
    }
}

/* Does this driver take that version, and has its GPU that target? */
static CUresult check_header(const struct ptx_module *ptx, char *error, size_t size)
{
    unsigned version = ptx_module_version(ptx);
    if (version > DRIVER_PTX) {
        snprintf(error, size, ".version %u.%u: CUDA %d.%d takes PTX up to %d.%d", version / 10,
                 version % 10, DRIVER_VERSION / 1000, DRIVER_VERSION % 1000 / 10, DRIVER_PTX / 10,
                 DRIVER_PTX % 10);
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    }
    if (ptx_module_runs_on(ptx, (unsigned)settings.compute)) return CUDA_SUCCESS;
    snprintf(error, size, "the .target is not for compute capability %d.%d", settings.compute / 10,
             settings.compute % 10);
    return CUDA_ERROR_INVALID_PTX;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int num_options,
                            CUjit_option *options, void **values)
{
    ENTER(cuModuleLoadDataEx, NEED_CONTEXT);
    if (!module || !image || (num_options && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    struct error_log log = find_error_log(num_options, options, values);
    char error[512] = "";
    if (!is_ptx(image)) {
        write_log(&log, "not PTX text: the software switch runs nothing else");
        return refuse(CUDA_ERROR_INVALID_IMAGE, "module: not PTX text");
    }
    struct module *created =
        object_create(sizeof *created, OBJECT_MODULE, device_current(), destroy_module);
    if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&created->lock, NULL);
    created->ptx = parsed_get(image, error, sizeof error);
    CUresult failed =
        created->ptx ? check_header(created->ptx, error, sizeof error) : CUDA_ERROR_INVALID_PTX;
    write_log(&log, error);
    uintptr_t handle = failed ? 0 : object_publish(&created->object);
    if (!handle) {
        object_release(&created->object);
        return failed ? refuse(failed, "module: %s", error) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    held_add(HELD_MODULES, 1);
    *module = (CUmodule)handle;
    return CUDA_SUCCESS;
}

/* Ends the handles of a module that was withdrawn. Launches under way go on. */
static void drop_module(struct module *module)
{
    struct function *function = module->functions;
    while (function) {
        struct function *next = function->next;
        object_release(object_withdraw(function->object.handle, OBJECT_FUNCTION));
        function = next;
    }
    object_release(&module->object);
}

CUresult cuModuleUnload(CUmodule handle)
{
    ENTER(cuModuleUnload, NEED_INIT);
    struct module *module = object_withdraw((uintptr_t)handle, OBJECT_MODULE);
    if (!module) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such module");
    CUresult state = device_state(module->object.device);
    held_add(HELD_MODULES, -1);
    drop_module(module);
    return state;
}

void modules_drop(struct device *device)
{
    struct module *module;
    while ((module = object_next(device, OBJECT_MODULE, 0)) != NULL) {
        if (object_withdraw(module->object.handle, OBJECT_MODULE)) drop_module(module);
        object_release(&module->object);
    }
}

/* ---- functions ---- */

static struct function *make_function(struct module *module, const struct ptx_kernel *kernel)
{
    struct function *function =
        object_create(sizeof *function, OBJECT_FUNCTION, module->object.device, destroy_function);
    if (!function) return NULL;
    object_retain(&module->object);
    function->module = module;
    function->kernel = kernel;
    function->info = ptx_kernel_info(kernel);
    if (!object_publish(&function->object)) {
        object_release(&function->object);
        return NULL;
    }
    function->next = module->functions;
    module->functions = function;
    return function;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name)
{
    ENTER(cuModuleGetFunction, NEED_CONTEXT);
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    struct module *module = object_get((uintptr_t)handle, OBJECT_MODULE);
    if (!module) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such module");
    const struct ptx_kernel *kernel = ptx_module_kernel(module->ptx, name);
    struct function *found = NULL;
    if (kernel) {
        pthread_mutex_lock(&module->lock);
        found = module->functions;
        while (found && found->kernel != kernel)
            found = found->next;
        if (!found) found = make_function(module, kernel);
        if (found) *function = (CUfunction)found->object.handle;
        pthread_mutex_unlock(&module->lock);
    }
    object_release(&module->object);
    if (!kernel) return refuse(CUDA_ERROR_NOT_FOUND, "no function %s in the module", name);
    return found ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static struct function *get_function(CUfunction handle)
{
    return object_get((uintptr_t)handle, OBJECT_FUNCTION);
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle)
{
    ENTER(cuFuncGetAttribute, NEED_CONTEXT);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    struct function *function = get_function(handle);
    if (!function) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such function");
    const struct ptx_kernel_info *info = function->info;
    CUresult result = CUDA_SUCCESS;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = (int)info->max_threads;
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = (int)info->shared_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = (int)info->local_bytes;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = (int)info->registers;
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
    object_release(&function->object);
    return result;
}

/* Blocks of this many threads and bytes of shared memory that one multiprocessor holds. */
static int resident_blocks(unsigned threads, size_t shared)
{
    enum { RESERVED = 1024, WARP = 32 };
    size_t blocks = THREADS_PER_MULTIPROCESSOR / ((threads + WARP - 1) / WARP * WARP);
    size_t by_shared = SHARED_PER_MULTIPROCESSOR / (shared + RESERVED);
    if (by_shared < blocks) blocks = by_shared;
    return blocks < BLOCKS_PER_MULTIPROCESSOR ? (int)blocks : BLOCKS_PER_MULTIPROCESSOR;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int block_size,
                                                     size_t shared_bytes)
{
    ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor, NEED_CONTEXT);
    if (!blocks || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
    struct function *function = get_function(handle);
    if (!function) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such function");
    size_t shared = function->info->shared_bytes + shared_bytes;
    int fits = (unsigned)block_size <= function->info->max_threads && shared <= SHARED_PER_BLOCK;
    *blocks = fits ? resident_blocks((unsigned)block_size, shared) : 0;
    object_release(&function->object);
    return CUDA_SUCCESS;
}

/* ---- launches ---- */

static CUresult check_shape(const struct ptx_kernel_info *info, const unsigned grid[3],
                            const unsigned block[3], unsigned shared)
{
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    for (int i = 0; i < 3; i++)
        if (!grid[i] || !block[i]) return refuse(CUDA_ERROR_INVALID_VALUE, "launch: an empty axis");
    if (grid[0] > 0x7fffffff || grid[1] > 0xffff || grid[2] > 0xffff || block[0] > 1024 ||
        block[1] > 1024 || block[2] > 64 || threads > THREADS_PER_BLOCK)
        return refuse(CUDA_ERROR_INVALID_VALUE, "launch: grid or block too large");
    if (threads > info->max_threads)
        return refuse(CUDA_ERROR_INVALID_VALUE, "launch: %s takes at most %u threads", info->name,
                      info->max_threads);
    if (info->shared_bytes + shared > SHARED_PER_BLOCK)
        return refuse(CUDA_ERROR_INVALID_VALUE, "launch: more than 48 KiB of shared memory");
    return CUDA_SUCCESS;
}

static CUresult fault_of(enum ptx_outcome outcome)
{
    switch (outcome) {
    case PTX_BAD_ADDRESS:
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    case PTX_MISALIGNED:
        return CUDA_ERROR_MISALIGNED_ADDRESS;
    default:
        return CUDA_ERROR_LAUNCH_FAILED;
    }
}

static int step_launch(void *machine) { return (int)ptx_step(machine); }

static void run_launch(struct op *op)
{
    struct launch_op *launch = (struct launch_op *)op;
    struct device *device = stream_device(op->stream);
    struct ptx_counts counts = {0};
    char error[512] = "out of host memory";
    struct ptx_machine *machine = ptx_open(&launch->launch, error, sizeof error);
    if (!machine) return device_fault(device, CUDA_ERROR_LAUNCH_FAILED, error);
    turns_run(op->stream, step_launch, machine);
    enum ptx_outcome outcome = ptx_close(machine, &counts);
    stats_count_launch(launch->function->info->name, &counts);
    if (outcome != PTX_DONE && outcome != PTX_STOPPED)
        device_fault(device, fault_of(outcome), error);
}

static void cleanup_launch(struct op *op)
{
    object_release(&((struct launch_op *)op)->function->object);
}

static void prepare_launch(struct op *op)
{
    struct launch_op *launch = (struct launch_op *)op;
    launch->launch.seed = turns_seed(stream_device(op->stream));
    launch->launch.clock = turns_clock();
}

static void copied_launch(struct op *op)
{
    struct launch_op *launch = (struct launch_op *)op;
    object_retain(&launch->function->object);
    launch->launch.params = launch->params;
}

static struct launch_op *make_launch(struct function *function, struct device *device,
                                     void **params)
{
    const struct ptx_kernel_info *info = function->info;
    struct launch_op *op = op_create(sizeof *op + info->param_bytes, run_launch);
    if (!op) return NULL;
    for (size_t i = 0; i < info->params; i++)
        memcpy(op->params + info->param_offset[i], params[i], info->param_size[i]);
    object_retain(&function->object);
    op->function = function;
    op->op.prepare = prepare_launch;
    op->op.copied = copied_launch;
    op->op.cleanup = cleanup_launch;
    op->launch.kernel = function->kernel;
    op->launch.params = op->params;
    op->launch.multiprocessors = settings.multiprocessors;
    op->launch.threads_per_multiprocessor = THREADS_PER_MULTIPROCESSOR;
    op->launch.checked = settings.checked;
    op->launch.gpu = (unsigned)device->ordinal;
    op->launch.memory = (struct ptx_memory){device, span_range};
    op->launch.stop = &device->stop;
    return op;
}

static CUresult launch(struct function *function, const unsigned grid[3], const unsigned block[3],
                       unsigned shared, CUstream handle, void **params)
{
    struct stream *stream;
    CUresult result = stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (stream_device(stream) != function->object.device)
        result = refuse(CUDA_ERROR_INVALID_HANDLE, "launch: function and stream of two contexts");
    if (result == CUDA_SUCCESS) {
        struct launch_op *op = make_launch(function, stream_device(stream), params);
        if (op) {
            memcpy(op->launch.grid, grid, sizeof op->launch.grid);
            memcpy(op->launch.block, block, sizeof op->launch.block);
            op->launch.shared_bytes = shared;
        }
        result = op ? stream_submit(stream, &op->op) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    object_release((struct object *)stream);
    return result;
}

/* Parameters come as an array of pointers; the driver's other way, one packed buffer in `extra`, is
 * not offered. */
CUresult cuLaunchKernel(CUfunction handle, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                        void **params, void **extra)
{
    ENTER(cuLaunchKernel, NEED_CONTEXT);
    if (extra) return refuse(CUDA_ERROR_NOT_SUPPORTED, "launch: parameters in `extra`");
    struct function *function = get_function(handle);
    if (!function) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such function");
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    CUresult result = check_shape(function->info, grid, block, shared_bytes);
    if (result == CUDA_SUCCESS && function->info->params && !params)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = launch(function, grid, block, shared_bytes, stream, params);
    object_release(&function->object);
    return result;
}
