/* Opens a driver library and fills the table. The library itself is never closed: the real driver
 * does not support it, and the software switch may have threads running. */
#define _GNU_SOURCE /* dladdr */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../base/env.h"
#include "../base/log.h"

/* The API version whose function variants we ask for, and the least a driver must have. */
enum { API_VERSION = 12020 };

typedef CUresult (*get_proc_address)(const char *symbol, void **function, int version,
                                     uint64_t flags, int *found);

struct symbol {
    const char *name;
    size_t offset; /* of its pointer in struct driver */
    int required;
};

static const struct symbol symbols[] = {
#define REQUIRED(name, params) {#name, offsetof(struct driver, name), 1},
#define OPTIONAL(name, params) {#name, offsetof(struct driver, name), 0},
#include "driver.def"
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct driver tables[2];

/* The software switch lies beside the library (or program) that holds this function. */
static void soft_path(char *path, size_t size)
{
    const char *given = env_text(ENV_SOFT_LIBRARY);
    Dl_info info;
    const char *slash = NULL;
    if (!given && dladdr(&tables, &info) && info.dli_fname) slash = strrchr(info.dli_fname, '/');
    if (given)
        snprintf(path, size, "%s", given);
    else if (slash)
        snprintf(path, size, "%.*s/libsmfar_soft.so", (int)(slash - info.dli_fname),
                 info.dli_fname);
    else
        snprintf(path, size, "libsmfar_soft.so");
}

static enum smfar_status resolve_symbols(struct driver *driver, get_proc_address get)
{
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *function = NULL;
        int found = 0;
        CUresult result = get(symbols[i].name, &function, API_VERSION, 0, &found);
        if (result != CUDA_SUCCESS) function = NULL;
        if (!function && symbols[i].required)
            return FAIL(SMFAR_ERR_UNSUPPORTED,
                        "the %s lacks %s; CUDA 12.2 or later is needed: update the NVIDIA driver",
                        driver->name, symbols[i].name);
        memcpy((char *)driver + symbols[i].offset, &function, sizeof(function));
    }
    return SMFAR_OK;
}

static enum smfar_status start_driver(struct driver *driver)
{
    enum smfar_status status;
    int count = 0;
    CUresult result = CU_RESULT(cuInit, 0);
    if (result == CUDA_ERROR_NO_DEVICE)
        return FAIL(SMFAR_ERR_UNSUPPORTED, "the %s finds no GPU", driver->name);
    if (result != CUDA_SUCCESS)
        return driver_failed_at(__FILE__, __LINE__, driver, "cuInit", result);
    CU(cuDriverGetVersion, &driver->version);
    if (driver->version < API_VERSION)
        return FAIL(SMFAR_ERR_UNSUPPORTED,
                    "the %s is of CUDA %d.%d; 12.2 or later is needed: update the NVIDIA driver",
                    driver->name, driver->version / 1000, driver->version % 1000 / 10);
    CU(cuDeviceGetCount, &count);
    if (count == 0) return FAIL(SMFAR_ERR_UNSUPPORTED, "the %s finds no GPU", driver->name);
    log_info("%s: CUDA %d.%d, %d GPUs", driver->name, driver->version / 1000,
             driver->version % 1000 / 10, count);
    return SMFAR_OK;
fail:
    return status;
}

static enum smfar_status load_driver(enum smfar_driver which, struct driver *driver)
{
    char path[4096] = "libcuda.so.1";
    driver->name = which == SMFAR_DRIVER_SOFT ? "software switch" : "CUDA driver";
    if (which == SMFAR_DRIVER_SOFT) soft_path(path, sizeof(path));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return FAIL(SMFAR_ERR_UNSUPPORTED, "no %s: %s", driver->name, dlerror());
    void *symbol = dlsym(library, "cuGetProcAddress_v2");
    if (!symbol)
        return FAIL(SMFAR_ERR_UNSUPPORTED,
                    "%s is older than CUDA 12: update the NVIDIA driver to 12.2 or later", path);
    get_proc_address get;
    memcpy(&get, &symbol, sizeof(get));
    enum smfar_status status = resolve_symbols(driver, get);
    return status == SMFAR_OK ? start_driver(driver) : status;
}

enum smfar_status driver_open(enum smfar_driver which, struct driver **driver_out)
{
    if (which != SMFAR_DRIVER_CUDA && which != SMFAR_DRIVER_SOFT)
        return FAIL(SMFAR_ERR_ARGUMENT, "driver %d is neither SMFAR_DRIVER_CUDA nor _SOFT", which);
    struct driver *driver = &tables[which];
    enum smfar_status status = SMFAR_OK;
    driver_watch_begin("another thread's cuInit");
    pthread_mutex_lock(&lock);
    driver_watch_end();
    if (driver->users == 0) {
        memset(driver, 0, sizeof(*driver));
        status = load_driver(which, driver);
    }
    if (status == SMFAR_OK) {
        driver->users++;
        *driver_out = driver;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void driver_close(struct driver *driver)
{
    if (!driver) return;
    pthread_mutex_lock(&lock);
    driver->users--;
    pthread_mutex_unlock(&lock);
}

static void describe(const struct driver *driver, CUresult result, const char **name,
                     const char **text)
{
    *name = *text = NULL;
    if (driver->cuGetErrorName) driver->cuGetErrorName(result, name);
    if (driver->cuGetErrorString) driver->cuGetErrorString(result, text);
    if (!*name) *name = "unknown error";
    if (!*text) *text = "no description";
}

enum smfar_status driver_failed_at(const char *file, int line, const struct driver *driver,
                                   const char *call, CUresult result)
{
    const char *name, *text;
    describe(driver, result, &name, &text);
    return status_set_at(
        file, line, result == CUDA_ERROR_OUT_OF_MEMORY ? SMFAR_ERR_MEMORY : SMFAR_ERR_DRIVER,
        "%s (%s) failed: %s (%d), %s", call, driver->name, name, (int)result, text);
}

void driver_warn_at(const char *file, int line, const struct driver *driver, const char *call,
                    CUresult result)
{
    const char *name, *text;
    describe(driver, result, &name, &text);
    const char *slash = strrchr(file, '/');
    log_warn("%s (%s) failed at %s:%d: %s, %s", call, driver->name, slash ? slash + 1 : file, line,
             name, text);
}
