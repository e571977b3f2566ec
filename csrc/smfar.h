/* smfar: collectives for the GPUs of one host, summed inside the NVSwitch where there is one.
 *
 * This is the whole public C interface; it needs neither torch nor CUDA headers. A communicator
 * joins `ranks` ranks (threads or processes), each with one GPU: a real one, or a virtual one of
 * the software switch. Functions return enum smfar_status; after a failure smfar_last_error() of
 * the same thread says what happened. Unless a comment says otherwise a call
 *   - may be made from any thread (calls on one communicator are serialised),
 *   - does not block the host, and
 *   - concerns this rank alone. "Collective" means: every rank makes the same call, in the same
 *     order; a rank that does not come is reported to the others after the timeout. */
#ifndef SMFAR_H
#define SMFAR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SMFAR_VERSION "0.1.0"
#define SMFAR_EXPORT __attribute__((visibility("default")))

enum smfar_status {
    SMFAR_OK = 0,
    SMFAR_PENDING,         /* not finished yet; only from smfar_comm_query */
    SMFAR_ERR_ARGUMENT,    /* the caller's arguments cannot be right */
    SMFAR_ERR_UNSUPPORTED, /* right, but not available: the message says what would do */
    SMFAR_ERR_MEMORY,      /* out of host memory, device memory or window space */
    SMFAR_ERR_DRIVER,      /* a CUDA driver call failed */
    SMFAR_ERR_SYSTEM,      /* a system call failed */
    SMFAR_ERR_TIMEOUT,     /* a rank did not come in time */
    SMFAR_ERR_MISMATCH,    /* ranks called different collectives, or with different arguments */
    SMFAR_ERR_PEER,        /* another rank failed or died */
    SMFAR_ERR_ABORTED,     /* smfar_comm_abort was called on some rank */
};

enum smfar_dtype {
    SMFAR_U8,
    SMFAR_I8,
    SMFAR_I16,
    SMFAR_I32,
    SMFAR_I64,
    SMFAR_F16,
    SMFAR_BF16,
    SMFAR_F32,
    SMFAR_F64,
    SMFAR_BOOL,
    SMFAR_C64,
    SMFAR_C128,
    SMFAR_F8_E4M3,
    SMFAR_F8_E5M2,
    SMFAR_DTYPES /* how many there are */
};

enum smfar_op {
    SMFAR_SUM,
    SMFAR_AVG,
    SMFAR_PRODUCT,
    SMFAR_MIN,
    SMFAR_MAX,
    SMFAR_BAND,
    SMFAR_BOR,
    SMFAR_BXOR,
    SMFAR_PREMUL_SUM,
    SMFAR_OPS /* how many there are */
};

enum smfar_driver {
    SMFAR_DRIVER_CUDA, /* libcuda.so.1 */
    SMFAR_DRIVER_SOFT  /* the software switch, libsmfar_soft.so beside this library */
};

enum {
    SMFAR_MAX_RANKS = 16,
    /* of all ranks' tensors together, the most that is reduced whole: by a push or a one-shot, in
     * which each rank reads or is sent everything for the sake of a barrier less */
    SMFAR_WHOLE_BYTES = 512 << 10
};

/* A communicator. Made and ended by smfar_comm_create and smfar_comm_destroy. */
typedef struct smfar_comm smfar_comm;

/* A CUstream of the communicator's driver and device. */
typedef void *smfar_stream;

/* The key-value store through which ranks first find each other. Keys are ASCII; each is set once
 * by one rank. `get` waits until the key is there, for at most timeout_ms, and must fill exactly
 * `bytes`. Both return SMFAR_OK, SMFAR_ERR_TIMEOUT or SMFAR_ERR_SYSTEM. Called only inside
 * smfar_comm_create, on the calling thread. */
struct smfar_store {
    void *context;
    enum smfar_status (*set)(void *context, const char *key, const void *value, size_t bytes);
    enum smfar_status (*get)(void *context, const char *key, void *value, size_t bytes,
                             int64_t timeout_ms);
};

/* What ranks without a store need to meet: made once, anywhere on the host, and given to every rank
 * by the program (as an argument, through MPI_Bcast, …). Printable, ends with a zero byte. */
struct smfar_id {
    char text[64];
};

/* Zero means the default for every field but driver and device. */
struct smfar_config {
    enum smfar_driver driver;
    int device;             /* ordinal; -1: this rank's index among the ranks of its host */
    int sm_budget;          /* most blocks a kernel may use; also SMFAR_SM_BUDGET */
    int no_multicast;       /* 1: never use multicast; also SMFAR_MULTICAST=0 */
    int fixed_order;        /* 1: reductions always in rank order: smfar_fixed_order */
    int copy_engines;       /* 1: what only moves large data takes no SM, as with SMFAR_NO_SMS; also
                             * SMFAR_COPY_ENGINES=1; for all ranks or none */
    int64_t timeout_ms;     /* deadline of every wait; default 600,000 */
    size_t window_bytes;    /* of device memory per rank; default 256 MiB; rounded up */
    size_t chunk_bytes;     /* the most one step moves; default min(64 MiB, window_bytes / 4) */
    const char *plan_table; /* rank 0's: a file of docs/plan.md, "0": none; also SMFAR_PLAN_TABLE */
};

/* ---- errors ---- */

/* The enumerator's name, e.g. "SMFAR_ERR_TIMEOUT". */
SMFAR_EXPORT const char *smfar_status_name(enum smfar_status status);

/* What the last failed call of this thread says; valid until its next call. Never NULL. */
SMFAR_EXPORT const char *smfar_last_error(void);

SMFAR_EXPORT const char *smfar_version(void);

/* The PTX text of the kernels, as it travels in this library: module "peer", "mc", whose kernels
 * need a switch, or "mc_f8", whose need one that sums 8-bit floats. NULL for any other name. */
SMFAR_EXPORT const char *smfar_kernel_text(const char *module);

/* ---- communicators ---- */

/* Collective; blocks until every rank has come, or fails on every rank with one verdict.
 * `store` is used during this call only. */
SMFAR_EXPORT enum smfar_status smfar_comm_create(const struct smfar_config *config,
                                                 const struct smfar_store *store, int rank,
                                                 int ranks, smfar_comm **comm_out);

/* A new id. Never blocks. */
SMFAR_EXPORT enum smfar_status smfar_unique_id(struct smfar_id *id_out);

/* As smfar_comm_create, for ranks that hold one id: threads, processes, or started by mpirun, of
 * one user on one host. Rank 0 waits for the others under a name that the id holds, so nothing
 * else has to run. One id serves one communicator. */
SMFAR_EXPORT enum smfar_status smfar_comm_init_rank(const struct smfar_id *id, int rank, int ranks,
                                                    const struct smfar_config *config,
                                                    smfar_comm **comm_out);

/* Leaves the group: from now on this rank calls no collective, and may end without the others
 * taking that for its death. Blocks until its own work has ended, at most the timeout (after a
 * failure 2 s), and with multicast 2 s more until no other rank can write to this rank's memory.
 * Not collective: a rank may leave once its work is done; a rank that calls a further collective
 * gets SMFAR_ERR_PEER at once. What the communicator holds, memory in the window too, stays until
 * smfar_comm_destroy. Calls of other threads that came before end first, later ones are refused.
 * The last collective's stream must still be there. Of several threads that call at once each
 * returns when all of that is done. A later call does nothing, nor does one for NULL or in a forked
 * child. */
SMFAR_EXPORT void smfar_comm_finalize(smfar_comm *comm);

/* 1 once smfar_comm_finalize has seen that nothing uses this rank's memory any more. 0 before, and
 * where that could not be seen, also where CUDA graphs are left: some rank's device may then still
 * write to what is registered, which must stay until the process ends. */
SMFAR_EXPORT int smfar_comm_quiet(const smfar_comm *comm);

/* Ends the communicator, after smfar_comm_finalize if that has not been called. What could not be
 * seen to have ended keeps its memory until the process ends. NULL is allowed, and so is a forked
 * child, which gives back nothing. Memory allocated in the window must no longer be used, and no
 * other thread may use the communicator. */
SMFAR_EXPORT void smfar_comm_destroy(smfar_comm *comm);

/* Makes every rank's pending and later calls fail with SMFAR_ERR_ABORTED and `reason`. Makes no
 * driver call; may be called from any thread while others wait. */
SMFAR_EXPORT void smfar_comm_abort(smfar_comm *comm, const char *reason);

/* SMFAR_OK, or why the communicator has failed (for good); smfar_last_error() has the words. */
SMFAR_EXPORT enum smfar_status smfar_comm_error(smfar_comm *comm);

SMFAR_EXPORT int smfar_comm_rank(const smfar_comm *comm);
SMFAR_EXPORT int smfar_comm_ranks(const smfar_comm *comm);
SMFAR_EXPORT int smfar_comm_device(const smfar_comm *comm);

/* Sets the deadline of every later wait. */
SMFAR_EXPORT void smfar_comm_set_timeout(smfar_comm *comm, int64_t timeout_ms);

/* The communicator's own high-priority stream. */
SMFAR_EXPORT smfar_stream smfar_comm_stream(const smfar_comm *comm);

/* Work enqueued on `after` from now on waits for what is on `before` now. */
SMFAR_EXPORT enum smfar_status smfar_stream_order(smfar_comm *comm, smfar_stream before,
                                                  smfar_stream after);

/* The number of the last collective enqueued here: 1, 2, …; 0 before the first. */
SMFAR_EXPORT uint64_t smfar_comm_sequence(const smfar_comm *comm);

/* Has collective number `sequence` ended? SMFAR_OK, SMFAR_PENDING, or the failure. No driver
 * call. */
SMFAR_EXPORT enum smfar_status smfar_comm_query(smfar_comm *comm, uint64_t sequence);

/* 1 once collective number `sequence` has left its stream, with success or without: until then its
 * buffers may still be read and written, even if it has failed. */
SMFAR_EXPORT int smfar_comm_released(smfar_comm *comm, uint64_t sequence);

/* Blocks the host until collective number `sequence` has ended, for at most timeout_ms (negative:
 * the communicator's own). A time-out here leaves the communicator usable. */
SMFAR_EXPORT enum smfar_status smfar_comm_wait(smfar_comm *comm, uint64_t sequence,
                                               int64_t timeout_ms);

/* ---- wishes ---- */

/* What the calling thread wishes for its later calls. The budget changes how many blocks a kernel
 * has and nothing else, so ranks may differ in it. The algorithm, and SMFAR_NO_SMS, must be the
 * same on every rank; calls that the algorithm cannot serve take the usual way, but for sums of
 * floats by "oneshot_mc", whose ranks could get different bits: SMFAR_ERR_UNSUPPORTED. With
 * "split_mc", "split_peer" and SMFAR_NO_SMS streams wait for other ranks, and copies go straight
 * into their tensors: a call blocks the host until every rank has called. */
enum { SMFAR_NO_SMS = -1 };
struct smfar_hint {
    int sm_budget;         /* most blocks; 0: the communicator's; SMFAR_NO_SMS: no kernel at all */
    const char *algorithm; /* "twoshot_mc", "split_mc", "push_mc", "oneshot_mc", "push_peer",
                              "oneshot_peer", "twoshot_peer", "split_peer", "pull_mc", "pull_peer";
                              NULL: whichever suits */
};

/* Replaces the thread's wishes; NULL: none. */
SMFAR_EXPORT enum smfar_status smfar_hint_set(const struct smfar_hint *hint);

/* 1: reductions that the calling thread calls from now on are made in rank order, so that they are
 * equal to the bit from run to run, on all ranks, for any number of blocks and wherever tensors
 * lie. (Over peers they always are; the switch chooses an order of its own.) The same on every
 * rank. */
SMFAR_EXPORT void smfar_fixed_order(int fixed);

/* ---- memory in the symmetric window ---- */

/* Collective. Device memory (with the software switch: host memory) that every rank can reach,
 * 512-byte aligned, at one offset on every rank; collectives on it need no staging. When the
 * window is full: SMFAR_ERR_MEMORY on every rank. */
SMFAR_EXPORT enum smfar_status smfar_window_alloc(smfar_comm *comm, size_t bytes, void **ptr_out);

/* Not collective, never blocks: the range is used again, by a later allocation, once every rank has
 * freed it. */
SMFAR_EXPORT void smfar_window_free(smfar_comm *comm, void *ptr);

/* Collective. Has the window grow, if need be, so that `bytes` more can be allocated in one piece.
 * Blocks the host. A failure (SMFAR_ERR_MEMORY where there is no more) leaves it as it was, on
 * every rank. */
SMFAR_EXPORT enum smfar_status smfar_window_reserve(smfar_comm *comm, size_t bytes);

/* Collective, with the same `bytes` on every rank. Has collectives use this rank's [ptr, ptr +
 * bytes) without staging, over peers: every rank maps it. It must be device memory that cuMemCreate
 * has made with a handle that can be shared as a file descriptor, or lie in the window, and must
 * stay until it is deregistered, or as smfar_comm_quiet says. What is registered already is not
 * mapped again, and stays mapped until each of its registrations has been ended. *id_out becomes a
 * number for that; it is 0 where every rank's lies in the window. Blocks the host.
 * SMFAR_ERR_UNSUPPORTED, on every rank, for memory of which a rank has no such handle. */
SMFAR_EXPORT enum smfar_status smfar_window_register(smfar_comm *comm, const void *ptr,
                                                     size_t bytes, uint64_t *id_out);

/* Collective. Blocks until this rank's collectives so far have ended. Refused while CUDA graphs
 * with collectives of the communicator are there. 0 is allowed. */
SMFAR_EXPORT enum smfar_status smfar_window_deregister(smfar_comm *comm, uint64_t id);

/* ---- collectives: enqueued on `stream` (NULL: the communicator's own) ----
 *
 * They run one after another in the order of the calls, whatever their streams: one on another
 * stream waits for what is on the last one's stream then, which must still exist.
 *
 * An input and an output of one call lie apart or, where it is said, are the same; those that share
 * a part of their memory are refused. In what has several of them, an output may also lie where
 * another rank's input does, exactly.
 *
 * On a stream that is being captured a collective becomes part of the CUDA graph instead: it has no
 * number, and replays must come in the same order on every rank, one graph after the other. The
 * memory of a communicator whose graphs are still there stays when it is destroyed. Not for
 * smfar_all_to_all_v, smfar_send and smfar_recv. docs/graphs.md has the rest. */

/* recv = op over ranks of send; count elements; send may equal recv. docs/types.md has the table of
 * types and ops. Sums and products of f16 and bf16 are made in fp32, those of integers wrap. AVG
 * multiplies the sum by 1/ranks (floats) or divides it, rounding to zero (integers). MIN and MAX
 * are NaN where any rank has a NaN. BAND, BOR and BXOR take integers and bools; a SUM of bools is
 * their BOR. Complex numbers are summed and averaged. PREMUL_SUM has a function of its own. */
SMFAR_EXPORT enum smfar_status smfar_all_reduce(const void *send, void *recv, size_t count,
                                                enum smfar_dtype dtype, enum smfar_op op,
                                                smfar_comm *comm, smfar_stream stream);

/* PREMUL_SUM: recv = scale times the sum over ranks of send; f16, bf16, f32, f64 and complex. The
 * scale must be equal on every rank; all but f64 and complex128 use it rounded to fp32. */
SMFAR_EXPORT enum smfar_status smfar_all_reduce_scaled(const void *send, void *recv, size_t count,
                                                       enum smfar_dtype dtype, double scale,
                                                       smfar_comm *comm, smfar_stream stream);

/* Every rank's recv gets root's send (send matters on root alone; may equal recv). */
SMFAR_EXPORT enum smfar_status smfar_broadcast(const void *send, void *recv, size_t count,
                                               enum smfar_dtype dtype, int root, smfar_comm *comm,
                                               smfar_stream stream);

/* recv[r] gets rank r's send, count elements each; recv is an array of `ranks` pointers, to memory
 * of which no two share any. */
SMFAR_EXPORT enum smfar_status smfar_all_gather(const void *send, void *const *recv, size_t count,
                                                enum smfar_dtype dtype, smfar_comm *comm,
                                                smfar_stream stream);

/* The same into one buffer of ranks * count elements, rank r's at r * count. */
SMFAR_EXPORT enum smfar_status smfar_all_gather_into(const void *send, void *recv, size_t count,
                                                     enum smfar_dtype dtype, smfar_comm *comm,
                                                     smfar_stream stream);

/* The same of parts of count[r] elements, the same `count` on every rank: a broadcast of each in
 * turn, so `send` must lie apart from the other ranks' recv[r]. */
SMFAR_EXPORT enum smfar_status smfar_all_gather_v(const void *send, void *const *recv,
                                                  const size_t *count, enum smfar_dtype dtype,
                                                  smfar_comm *comm, smfar_stream stream);

/* As smfar_all_reduce, but only root's recv is written; it may equal send. The other ranks' recv is
 * not used. `scale` is PREMUL_SUM's (smfar_all_reduce_scaled); other ops do not use it. */
SMFAR_EXPORT enum smfar_status smfar_reduce(const void *send, void *recv, size_t count,
                                            enum smfar_dtype dtype, enum smfar_op op, double scale,
                                            int root, smfar_comm *comm, smfar_stream stream);

/* recv = op over ranks of their send[my rank], count elements each; send is an array of `ranks`
 * pointers; recv may equal send[my rank]. Types, ops and `scale` are those of smfar_reduce. */
SMFAR_EXPORT enum smfar_status smfar_reduce_scatter(const void *const *send, void *recv,
                                                    size_t count, enum smfar_dtype dtype,
                                                    enum smfar_op op, double scale,
                                                    smfar_comm *comm, smfar_stream stream);

/* The same of parts as smfar_all_gather_v has them: a reduction of each in turn. */
SMFAR_EXPORT enum smfar_status smfar_reduce_scatter_v(const void *const *send, void *recv,
                                                      const size_t *count, enum smfar_dtype dtype,
                                                      enum smfar_op op, double scale,
                                                      smfar_comm *comm, smfar_stream stream);

/* As smfar_reduce_scatter, from one buffer of ranks * count elements, rank r's at r * count. */
SMFAR_EXPORT enum smfar_status smfar_reduce_scatter_from(const void *send, void *recv, size_t count,
                                                         enum smfar_dtype dtype, enum smfar_op op,
                                                         double scale, smfar_comm *comm,
                                                         smfar_stream stream);

/* recv[r] gets rank r's send[my rank], count elements each; arrays of `ranks` pointers; recv[r] may
 * equal send[r]. */
SMFAR_EXPORT enum smfar_status smfar_all_to_all(const void *const *send, void *const *recv,
                                                size_t count, enum smfar_dtype dtype,
                                                smfar_comm *comm, smfar_stream stream);

/* recv[r] of root gets rank r's send, count elements each. recv, an array of `ranks` pointers, is
 * used on root alone. */
SMFAR_EXPORT enum smfar_status smfar_gather(const void *send, void *const *recv, size_t count,
                                            enum smfar_dtype dtype, int root, smfar_comm *comm,
                                            smfar_stream stream);

/* recv gets root's send[my rank], count elements. send, an array of `ranks` pointers, is used on
 * root alone. */
SMFAR_EXPORT enum smfar_status smfar_scatter(const void *const *send, void *recv, size_t count,
                                             enum smfar_dtype dtype, int root, smfar_comm *comm,
                                             smfar_stream stream);

/* What becomes of the sums that smfar_all_reduce_rms_norm normalises. */
enum smfar_sums {
    SMFAR_SUMS_NONE,      /* nothing is added and nobody gets them */
    SMFAR_SUMS_SHARDED,   /* `residual` holds this rank's own rows and is updated in place */
    SMFAR_SUMS_REPLICATED /* every rank's `sums` gets all of them; `residual` may be added */
};

/* What smfar_all_reduce_rms_norm normalises: `rows` of `hidden` elements, one after the other. Rank
 * r's own rows are those from rows * r / ranks up to rows * (r + 1) / ranks. */
struct smfar_rms_norm {
    size_t rows, hidden;           /* hidden: elements of a row, below 2^24 */
    enum smfar_dtype dtype;        /* F32, F16 or BF16: of all but the weight */
    enum smfar_dtype weight_dtype; /* one of these, or F64 */
    const void *weight;            /* `hidden` numbers, or NULL: ones */
    double eps;                    /* added to the mean square */
    enum smfar_sums sums_layout;
    void *residual; /* added to the sums: own rows, or all of them, or NULL (REPLICATED alone) */
    void *sums;     /* REPLICATED alone; may be `residual` */
};

/* recv = (s / sqrt(mean of s^2 in its row + eps)) * weight, where s = sum over ranks of send +
 * residual. The sum over ranks is rounded to the type, and so is that with the residual; statistics
 * are made in fp32 and the result is rounded once. send may equal recv; weight, residual and sums
 * share no memory with it, nor what is updated of these with send. Where recv lies in the window,
 * nothing is staged; so does `sums`, which must then lie at the same place on every rank (else
 * SMFAR_ERR_MISMATCH), or on none in the window. Weight, eps and shapes must be the same on every
 * rank. */
SMFAR_EXPORT enum smfar_status smfar_all_reduce_rms_norm(const void *send, void *recv,
                                                         const struct smfar_rms_norm *norm,
                                                         smfar_comm *comm, smfar_stream stream);

/* Ends (as work on the stream) once every rank's barrier has begun. */
SMFAR_EXPORT enum smfar_status smfar_barrier(smfar_comm *comm, smfar_stream stream);

/* As smfar_all_to_all with counts of each pair's own: recv_count[r] here must be rank r's
 * send_count[my rank], else every rank gets SMFAR_ERR_MISMATCH, nothing is moved, and the group
 * goes on. No part of recv may share memory with one of send, but recv[my rank] may equal send[my
 * rank]. Returns once every rank has called it, at most after the timeout: how many steps there are
 * is known only then. */
SMFAR_EXPORT enum smfar_status smfar_all_to_all_v(const void *const *send, const size_t *send_count,
                                                  void *const *recv, const size_t *recv_count,
                                                  enum smfar_dtype dtype, smfar_comm *comm,
                                                  smfar_stream stream);

/* ---- messages from one rank to another ----
 *
 * They concern two ranks, run beside the collectives, and are matched by sender, receiver and tag;
 * those of one tag in the order of the calls. At most 32 messages of a pair wait to be matched at
 * once, further ones come after them. A message that has no partner within the timeout, or whose
 * sizes differ, fails the communicator on every rank. A message may be posted while another
 * thread's call waits for the other ranks. */

/* One message under way. Freed by its owner at any time, also after the communicator. */
typedef struct smfar_request smfar_request;

enum { SMFAR_ANY_RANK = -1 };

/* `ended`, unless NULL, is called once, when the request has ended, with success or without, and
 * its buffer is no longer used; on a thread of the communicator that holds no lock. It must not
 * block. */
struct smfar_ending {
    void (*ended)(void *context);
    void *context;
};

/* Sends `bytes` to `peer`, which may be this rank itself. What `stream` holds now comes first
 * (NULL: nothing has to). Ends once the buffer may be used again, which is not before the receiver
 * has asked for the message. `ending` and `request_out` may be NULL. */
SMFAR_EXPORT enum smfar_status smfar_send(const void *send, size_t bytes, int peer, int tag,
                                          smfar_comm *comm, smfar_stream stream,
                                          const struct smfar_ending *ending,
                                          smfar_request **request_out);

/* Receives exactly `bytes` from `peer`, or from whichever rank sends first (SMFAR_ANY_RANK). Ends
 * once they are there; other work that uses them is to be enqueued after that. */
SMFAR_EXPORT enum smfar_status smfar_recv(void *recv, size_t bytes, int peer, int tag,
                                          smfar_comm *comm, smfar_stream stream,
                                          const struct smfar_ending *ending,
                                          smfar_request **request_out);

/* SMFAR_OK once it has ended, SMFAR_PENDING, or the failure, with its words. */
SMFAR_EXPORT enum smfar_status smfar_request_query(const smfar_request *request);

/* Blocks the host until it has ended, for at most timeout_ms (negative: as long as it takes, which
 * is at most the communicator's timeout). A time-out leaves the message under way. */
SMFAR_EXPORT enum smfar_status smfar_request_wait(const smfar_request *request, int64_t timeout_ms);

/* The other rank; for a receive from any rank the sender, once it has ended. */
SMFAR_EXPORT int smfar_request_peer(const smfar_request *request);

/* A message under way goes on. NULL is allowed. */
SMFAR_EXPORT void smfar_request_free(smfar_request *request);

/* ---- what runs, and why ---- */

/* Writes into `text` which algorithm an all-reduce of `count` elements at `ptr` (NULL: a plain
 * tensor) would take here, with how many blocks, and why. */
SMFAR_EXPORT enum smfar_status smfar_explain(smfar_comm *comm, const void *ptr, size_t count,
                                             enum smfar_dtype dtype, enum smfar_op op, char *text,
                                             size_t size);

/* Writes into `text` what the communicator is: driver, devices, capabilities, why multicast is on
 * or off, memory held. */
SMFAR_EXPORT enum smfar_status smfar_comm_describe(smfar_comm *comm, char *text, size_t size);

/* Where a plan table is kept that all of the user's programs find: SMFAR_PLAN_TABLE, or, also where
 * that says 0, smfar/plan_table in XDG_CONFIG_HOME or else in HOME's .config. "" where neither says
 * an absolute path. SMFAR_ERR_ARGUMENT where it has no room in `size` bytes. */
SMFAR_EXPORT enum smfar_status smfar_plan_table_place(char *path, size_t size);

/* Reads a plan table, with all its rows, for whatever topology. SMFAR_ERR_ARGUMENT, naming file,
 * line, field and what would do; also for what is no regular file. */
SMFAR_EXPORT enum smfar_status smfar_plan_table_check(const char *path);

/* What one path (a collective with an algorithm) has carried so far. */
struct smfar_path {
    const char *collective; /* "all_reduce" */
    const char *algorithm;  /* "twoshot_mc" */
    char reason[256];       /* of the last plan */
    uint64_t calls;        /* one of parts of different sizes on the path of its first part alone */
    uint64_t bytes;        /* of this rank's tensors */
    uint64_t staged_bytes; /* of these, copied through a staging slot */
    int blocks, threads;   /* of the last launch */
};

/* Path number `index` (0, 1, …) in *path_out; SMFAR_ERR_ARGUMENT past the last. */
SMFAR_EXPORT enum smfar_status smfar_comm_path(smfar_comm *comm, int index,
                                               struct smfar_path *path_out);

#ifdef __cplusplus
}
#endif
#endif
