/* The CUDA driver as a table of pointers, filled from libcuda.so.1 or from the software switch.
 * A table belongs to a communicator, so one process can use both. Every driver call of the core
 * goes through a table; nothing links to CUDA. */
#ifndef SMFAR_DRIVER_DRIVER_H
#define SMFAR_DRIVER_DRIVER_H

#include "../base/status.h"
#include "cuda_abi.h"
#include "watch.h"

struct driver {
#define REQUIRED(name, params) CUresult(*name) params;
#define OPTIONAL(name, params) CUresult(*name) params;
#include "driver.def"
    const char *name; /* "CUDA driver" or "software switch" */
    int version;      /* as cuDriverGetVersion gives it: 12020 is CUDA 12.2 */
    int users;        /* of this table; driver.c's */
};

/* Opens (or shares) the table of one driver and calls cuInit. Fails with SMFAR_ERR_UNSUPPORTED and
 * a sentence when the library is missing, too old, or finds no GPU. */
enum smfar_status driver_open(enum smfar_driver which, struct driver **driver_out);
void driver_close(struct driver *driver);

/* Records a failed driver call and returns SMFAR_ERR_DRIVER (SMFAR_ERR_MEMORY when the driver was
 * out of memory). */
enum smfar_status driver_failed_at(const char *file, int line, const struct driver *driver,
                                   const char *call, CUresult result);

/* The CUresult of a driver function, called through the table `driver` in scope. */
#define CU_RESULT(function, ...)                                                                   \
    driver_returned((driver_watch_begin(#function), driver->function(__VA_ARGS__)))
static inline CUresult driver_returned(CUresult result)
{
    driver_watch_end();
    return result;
}

/* Calls a driver function; a failure goes to `fail:`. */
#define CU(function, ...)                                                                          \
    do {                                                                                           \
        CUresult cu_result = CU_RESULT(function, __VA_ARGS__);                                     \
        if (cu_result != CUDA_SUCCESS) {                                                           \
            status = driver_failed_at(__FILE__, __LINE__, driver, #function, cu_result);           \
            goto fail;                                                                             \
        }                                                                                          \
    } while (0)

/* The same in destructors: a failure is logged and execution goes on. */
void driver_warn_at(const char *file, int line, const struct driver *driver, const char *call,
                    CUresult result);
#define CU_WARN(function, ...)                                                                     \
    do {                                                                                           \
        CUresult cu_result = CU_RESULT(function, __VA_ARGS__);                                     \
        if (cu_result != CUDA_SUCCESS)                                                             \
            driver_warn_at(__FILE__, __LINE__, driver, #function, cu_result);                      \
    } while (0)

#endif
