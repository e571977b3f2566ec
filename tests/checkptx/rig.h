/* A rig: `ranks` GPUs of one process with all that a kernel's arguments point to: a window per
 * rank that every GPU maps, one multicast object over them, the host page, a stream each, and two
 * buffers per rank outside the window. It speaks to the driver itself, without the core's window
 * and communicator, so that what is checked is the kernels alone. */
#ifndef SMFAR_TESTS_RIG_H
#define SMFAR_TESTS_RIG_H

#include "../../csrc/driver/driver.h"
#include "../../csrc/kernels/kernel.h"

enum {
    RIG_MAX_RANKS = 8,
    RIG_CHANNELS = 2,
    RIG_AREA = 1 << 20,
    RIG_HEAP = 64 << 10,
    RIG_BOXES = RIG_HEAP + RIG_AREA,
    RIG_BOXES_BYTES = 2 << 20
};

/* Of a launch of any kernel. */
union arguments {
    struct kargs common;
    struct norm_kargs norm;
    struct move_kargs move;
};

struct rig_rank {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    struct kernels *kernels;
    CUmemGenericAllocationHandle memory;
    CUdeviceptr window;   /* signals of every channel, from RIG_HEAP on RIG_AREA bytes, and boxes */
    CUdeviceptr src, dst; /* RIG_AREA bytes each */
};

struct rig {
    struct driver *driver;
    int ranks;
    int multicast; /* 0: only the peer kernels can run */
    int float8;    /* the switch sums 8-bit floats, too */
    size_t window_bytes;
    struct rig_rank rank[RIG_MAX_RANKS];
    CUmemGenericAllocationHandle object;
    CUdeviceptr view; /* of the multicast object */
    unsigned char *page;
    CUdeviceptr page_device;
};

/* Device of rank r is r modulo the number of devices; multicast needs a device for each. */
enum smfar_status rig_create(struct driver *driver, int ranks, struct rig **rig_out);
void rig_destroy(struct rig *rig);

/* As after creation: signals, boxes and page zero, every channel's epoch `epoch`. */
enum smfar_status rig_reset(struct rig *rig, uint32_t epoch);

/* The first of the `bytes` from RIG_BOXES on that is not zero on this rank, counted from there, or
 * `bytes`. */
enum smfar_status rig_find_packet(const struct rig *rig, int rank, size_t bytes, size_t *at_out);

/* The arguments that do not depend on the case. */
void rig_arguments(const struct rig *rig, int rank, int channel, struct kargs *args_out);

enum smfar_status rig_launch(const struct rig *rig, int rank, enum kernel_id id, int blocks,
                             int threads, const struct kargs *args);
enum smfar_status rig_synchronize(const struct rig *rig, int rank);

/* What the driver says of the rank's stream: CUDA_SUCCESS, CUDA_ERROR_NOT_READY, or a failure. */
CUresult rig_query(const struct rig *rig, int rank);

/* Copies between the host and a rank's memory, on its stream; both have ended on return. */
enum smfar_status rig_write(const struct rig *rig, int rank, CUdeviceptr to, const void *from,
                            size_t bytes);
enum smfar_status rig_read(const struct rig *rig, int rank, void *to, CUdeviceptr from,
                           size_t bytes);

/* Queue a copy from a rank's memory to the host, or the reverse, behind what its stream has to do;
 * the host's side must stay until then. */
enum smfar_status rig_read_later(const struct rig *rig, int rank, void *to, CUdeviceptr from,
                                 size_t bytes);

enum smfar_status rig_write_later(const struct rig *rig, int rank, CUdeviceptr to, const void *from,
                                  size_t bytes);

/* What rank's kernels have reported. */
const volatile struct error_record *rig_error(const struct rig *rig, int rank);

/* The first collective that rank's kernels have left undone, or 0; the last that they marked done.
 */
uint64_t rig_released(const struct rig *rig, int rank);
uint64_t rig_done(const struct rig *rig, int rank);

/* The last collective that rank took over peers because its chunks lay apart, or 0. */
uint64_t rig_apart(const struct rig *rig, int rank);

#endif
