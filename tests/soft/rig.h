/* What the software switch's driver tests share: the driver's functions resolved as a program
 * would, the usual set-up in one call each, and child processes that pass descriptors. Not for the
 * PTX tests, which need no driver. */
#ifndef SMFAR_TESTS_SOFT_RIG_H
#define SMFAR_TESTS_SOFT_RIG_H

#include "../../csrc/driver/cuda_abi.h"
#include "../../csrc/soft/soft.h"
#include "../unit/unit.h"

enum { MIB2 = 2 << 20 };

/* Every function of driver.def and graphs.def, through cuGetProcAddress_v2. */
struct rig_table {
#define REQUIRED(name, params) CUresult(*name) params;
#define OPTIONAL(name, params) CUresult(*name) params;
#include "../../csrc/driver/driver.def"
#define REQUIRED(name, params) CUresult(*name) params;
#include "../../csrc/soft/graphs.def"
};
extern struct rig_table cu;

/* Expects one result of a driver call. The helpers below end the program when a call fails. */
#define GIVES(expected, call)                                                                      \
    do {                                                                                           \
        CUresult rig_result = (call);                                                              \
        EXPECT(rig_result == (expected), "it gives %s", rig_name(rig_result));                     \
    } while (0)
#define OK(call) GIVES(CUDA_SUCCESS, call)
const char *rig_name(CUresult result);

/* Fills the table; what every test begins with, before cuInit. */
void rig_resolve(void);
/* rig_resolve, cuInit, and the primary context of a device, current. */
void rig_open(int device);
/* Makes the device's context current in this thread. */
void rig_use(int device);
/* The reverse of rig_use. */
void rig_leave(int device);

CUmemGenericAllocationHandle rig_memory(int device, size_t size);
/* Reserves and maps, with access for one device; -1: for none. */
CUdeviceptr rig_map(CUmemGenericAllocationHandle handle, size_t size, int device);
void rig_unmap(CUdeviceptr ptr, size_t size);
void rig_access(CUdeviceptr ptr, size_t size, int device, CUmemAccess_flags flags);
CUmemGenericAllocationHandle rig_multicast(unsigned devices, size_t size);

CUstream rig_stream(void);
/* Loads PTX and returns its function `name`. */
CUfunction rig_function(const char *ptx, const char *name, CUmodule *module_out);

/* How many things the switch still holds in this process; names them if there are any. */
int rig_leaks(void);

/* ---- child processes ---- */

/* Runs child(argument) in a process of its own, which exits with what it returns. This process
 * must not have called cuInit before. Returns its pid. */
int rig_fork(int (*child)(int argument), int argument);
/* Its exit code, or minus the signal that ended it; after a minute it is killed. */
int rig_join(int pid);
/* A barrier of processes or threads, in shared memory made by rig_sync_create. */
struct rig_sync;
struct rig_sync *rig_sync_create(int parties);
void rig_sync(struct rig_sync *sync);
void rig_send_fd(int socket, int fd);
int rig_receive_fd(int socket);

#endif
