/* The kernels of one device: each module is loaded once, when the first communicator there that may
 * need it is created (loading later, while its kernels spin, can deadlock); they are launched with
 * one struct kargs. */
#ifndef SMFAR_KERNELS_KERNEL_H
#define SMFAR_KERNELS_KERNEL_H

#include "../driver/driver.h"
#include "kargs.h"

/* One number per row of kernels.def: KERNEL_all_reduce_twoshot_mc_sum_f32, KERNEL_barrier_peer … */
enum kernel_id {
#define PLAIN(file) KERNEL_##file,
#define KERNEL(file, op, type) KERNEL_##file##_##op##_##type,
#include "kernels.def"
#undef PLAIN
#undef KERNEL
    KERNELS
};

enum kernel_module {
    MODULE_PEER,
    MODULE_MC,
    MODULE_MC_F8, /* floats of 8 bits in the switch: see kernel_float8_in_switch */
    MODULES
};

struct kernel_row {
    const char *entry;      /* "smfar_all_reduce_twoshot_mc_sum_f32" */
    const char *file;       /* "all_reduce_twoshot_mc" */
    enum smfar_op op;       /* SMFAR_OPS for PLAIN rows */
    enum smfar_dtype dtype; /* SMFAR_DTYPES for PLAIN rows */
    int multicast;          /* the file ends in _mc */
};
extern const struct kernel_row kernel_rows[KERNELS];

/* Which module each row's kernel is in, as embed.py has built them. */
extern const enum kernel_module kernel_modules[KERNELS];

/* The row of this file that serves the op and type, or KERNELS when there is none. Its type may be
 * another: of a call's bytes, the kernel's count is how many of the row's type they hold. Bitwise
 * ops work on bytes; bools are bytes under bitwise ops (a sum is "any"); complex numbers are summed
 * part by part; PREMUL_SUM is an average with another scale. */
enum kernel_id kernel_find(const char *file, enum smfar_op op, enum smfar_dtype dtype);

struct kernels;

/* The peer module, and the multicast module when `multicast`, on the current context: loaded unless
 * they are there. Each is to be followed by kernels_unload. */
enum smfar_status kernels_load(struct driver *driver, int multicast, struct kernels **kernels_out);

/* Has a GPU of this compute capability (100 is 10.0) a switch that sums floats of 8 bits, and is
 * that module for it? */
int kernel_float8_in_switch(int compute);

/* That module, too, on the same context. After an error the others are as they were: a driver may
 * be older than the module's PTX. */
enum smfar_status kernels_load_float8(struct kernels *kernels);

/* On the same context. The last user's unloads them. */
void kernels_unload(struct kernels *kernels);

/* `args` is copied, for the rms_norm kernels the struct norm_kargs and for pull_peer the struct
 * move_kargs that begins with it; blocks x threads, threads a multiple of 32. */
enum smfar_status kernel_launch(const struct kernels *kernels, enum kernel_id id, int blocks,
                                int threads, const struct kargs *args, CUstream stream);

/* Registers and local (spill) bytes per thread that the driver reports. */
enum smfar_status kernel_resources(const struct kernels *kernels, enum kernel_id id,
                                   int *registers_out, int *local_bytes_out);

#endif
