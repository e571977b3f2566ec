/* The collectives as steps on a stream. Arguments have been checked by api.c; each function runs
 * under the communicator's lock, on its context. */
#ifndef SMFAR_COLLECTIVES_COLLECTIVES_H
#define SMFAR_COLLECTIVES_COLLECTIVES_H

#include "../base/range.h"
#include "../comm/channel.h"
#include "plan.h"

enum smfar_status all_reduce_enqueue(struct call *call, const void *send, void *recv);
enum smfar_status broadcast_enqueue(struct call *call, const void *send, void *recv);
enum smfar_status all_gather_enqueue(struct call *call, const void *send, void *const *recv);
enum smfar_status barrier_enqueue(struct call *call);
enum smfar_status reduce_enqueue(struct call *call, const void *send, void *recv);
enum smfar_status reduce_scatter_enqueue(struct call *call, const void *const *send, void *recv);
enum smfar_status all_to_all_enqueue(struct call *call, const void *const *send, void *const *recv);
enum smfar_status all_to_all_v_enqueue(struct call *call, const void *const *send,
                                       const size_t *send_count, void *const *recv,
                                       const size_t *recv_count);
enum smfar_status gather_enqueue(struct call *call, const void *send, void *const *recv);
enum smfar_status scatter_enqueue(struct call *call, const void *const *send, void *recv);
enum smfar_status rms_norm_enqueue(struct call *call, const void *send, void *recv,
                                   const struct smfar_rms_norm *norm);

/* What the plan of a call is made from. */
struct plan_query collective_query(const struct call *call);

/* A call's plan, and the path that counts it. */
struct planned {
    struct plan plan;
    struct smfar_path *path;
    enum collective counted; /* on that path */
};

/* The plan for a call; it stays as it is until the communicator's next call. */
enum smfar_status collective_plan(const struct call *call, const struct planned **planned_out);

/* Begins a planned call on its stream. */
enum smfar_status collective_start(struct call *call, const struct planned *planned);

/* Both. */
enum smfar_status collective_begin(struct call *call, const struct planned **planned_out);

/* split.c: an all-reduce by split_mc or split_peer, or with `norm` one with RMSNorm. */
enum smfar_status split_enqueue(struct call *call, const struct planned *planned, const void *send,
                                void *recv, const struct smfar_rms_norm *norm);

/* What is the same in every launch of a norm. */
void norm_fill_args(const struct smfar_rms_norm *norm, const struct plan *plan,
                    struct norm_kargs *args);

/* Copies between two places of this GPU on the blocks that it is given, or by a copy engine from
 * and to host memory. */
enum smfar_status copy_inside(struct call *call, int blocks, void *to, const void *from,
                              size_t bytes);

/* The most that a rank has to reduce of so many bytes. */
static inline size_t share_bytes(size_t bytes, int ranks)
{
    size_t share = (bytes + (size_t)ranks - 1) / (size_t)ranks;
    return (share + 127) / 128 * 128;
}

/* Rank r's share of `bytes`: [begin, end). Whole lines; the last ranks may have less, or nothing.
 */
void share_of(size_t bytes, int ranks, int r, size_t *begin_out, size_t *end_out);

/* Counts the call on its path. */
void collective_count(const struct call *call, const struct planned *planned, uint64_t bytes,
                      uint64_t staged_bytes);

/* Of so many rows how many are the ranks' before r: its own begin there (smfar.h). */
static inline size_t rows_before(size_t rows, int r, int ranks)
{
    return rows * (size_t)r / (size_t)ranks;
}

static inline size_t lesser(size_t a, size_t b) { return a < b ? a : b; }

/* Do the two share memory? NULL shares none, nor does nothing. */
static inline int overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return a && b && range_overlaps((uintptr_t)a, a_bytes, (uintptr_t)b, b_bytes);
}

/* How a tensor comes into the window. */
enum staging {
    STAGED_NOT,       /* it lies there */
    STAGED_BY_KERNEL, /* copies inside a GPU run on all its SMs; the kernel keeps to its budget */
    STAGED_BY_COPY    /* copies from and to host memory run on a copy engine */
};

/* 1 when the tensor at `ptr` is better staged by copies. */
int copies_suit(const struct call *call, const void *ptr, size_t bytes);

/* The chunks of a plan that pulls, begun by collective_begin: `parts` inputs, one per rank or one
 * for all; recv is NULL where no result is wanted. */
enum smfar_status reduce_scatter_run(struct call *call, const struct planned *planned,
                                     const void *const *send, int parts, void *recv);

/* Copies `bytes` from `src` into every rank's staging slot at `at`: once to the multicast address,
 * or once to each rank. */
enum smfar_status copy_to_slots(const struct call *call, const void *src, size_t at, size_t bytes);

/* Copies `bytes` from `src` into my own staging slot at `at`, or into that of `rank`. */
enum smfar_status copy_to_slot(const struct call *call, const void *src, size_t at, size_t bytes);
enum smfar_status copy_to_slot_of(const struct call *call, int rank, const void *src, size_t at,
                                  size_t bytes);

/* Copies `bytes` from my own staging slot at `at` to `dst`. */
enum smfar_status copy_from_slot(const struct call *call, void *dst, size_t at, size_t bytes);

/* Copies between two places outside the window, unless they are the same. */
enum smfar_status copy_outside(const struct call *call, void *dst, const void *src, size_t bytes);

#endif
