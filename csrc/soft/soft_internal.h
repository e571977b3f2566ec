/* What the files of the driver side of the software switch share: devices, objects with handles,
 * address ranges, streams. Not for anybody else, and nothing here is exported but the driver's own
 * names. The PTX side is reached through ptx.h alone.
 *
 * Locks, outermost first: an executable graph's; a stream's queue or the captures'; the memory
 * lock; a multicast object's shared lock; the registry; the retire list. */
#ifndef SMFAR_SOFT_INTERNAL_H
#define SMFAR_SOFT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "../driver/cuda_abi.h"
#include "ptx.h"

/* Protected: a real driver in the same process cannot take the place of our own functions. */
#define EXPORT __attribute__((visibility("protected")))
#define REQUIRED(name, params) EXPORT CUresult name params;
#define OPTIONAL(name, params) EXPORT CUresult name params;
#include "../driver/driver.def"
#define REQUIRED(name, params) EXPORT CUresult name params;
#include "graphs.def"

enum {
    MAX_DEVICES = 64,
    THREADS_PER_BLOCK = 1024,
    THREADS_PER_MULTIPROCESSOR = 2048,
    BLOCKS_PER_MULTIPROCESSOR = 32,
    SHARED_PER_BLOCK = 48 << 10, /* without opting in to more, which the switch does not offer */
    SHARED_PER_MULTIPROCESSOR = 228 << 10,
    GRANULARITY = 2 << 20, /* of allocations and of multicast objects */
};

/* ---- entry of every driver function (soft_device.c) ---- */

enum api_call {
#define REQUIRED(name, params) CALL_##name,
#define OPTIONAL(name, params) CALL_##name,
#include "../driver/driver.def"
#define REQUIRED(name, params) CALL_##name,
#include "graphs.def"
    CALLS
};

enum api_need { NEED_NOTHING, NEED_INIT, NEED_CONTEXT };

/* Counts the call, carries out the faults ordered for it, and says whether it may go on:
 * initialised, not in a forked child, not inside a host function; with NEED_CONTEXT, a current
 * context without a sticky fault. */
CUresult api_enter(enum api_call call, enum api_need need);
#define ENTER(name, need)                                                                          \
    do {                                                                                           \
        CUresult enter_result = api_enter(CALL_##name, need);                                      \
        if (enter_result != CUDA_SUCCESS) return enter_result;                                     \
    } while (0)

/* Returns `result`; with SMFAR_SOFT_VERBOSE=1 also prints why. */
CUresult refuse(CUresult result, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints one line to stderr behind "smfar software switch: ". */
void soft_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- settings, read once by cuInit (soft_device.c) ---- */

/* What the driver calls itself, CUDA 12.9, and the newest PTX that it takes: of ISA 8.8. */
enum { DRIVER_VERSION = 12090, DRIVER_PTX = 88 };

struct settings {
    int devices;         /* SMFAR_SOFT_GPUS */
    int multiprocessors; /* SMFAR_SOFT_SMS */
    int multicast;       /* SMFAR_SOFT_MULTICAST */
    int compute;         /* SMFAR_SOFT_CC: the compute capability, 90 is 9.0 */
    int block_ms;        /* SMFAR_SOFT_BLOCK_MS: the longest a call waits for other processes */
    int leaks;           /* SMFAR_SOFT_LEAKS: print them at exit */
    uint64_t seed;       /* SMFAR_SOFT_SEED */
    int checked;         /* SMFAR_SOFT_CHECKED: weak memory and random schedules (ptx_checked.h) */
};
extern struct settings settings;

/* ---- devices and their primary contexts (soft_device.c) ---- */

struct table;

struct device {
    int ordinal;
    pthread_mutex_t lock; /* of the primary context's life; held outside all other locks */
    unsigned retains;
    atomic_uintptr_t context;      /* handle of the primary context; 0 while nobody retains it */
    atomic_int fault;              /* CUresult; sticky for the life of the process */
    atomic_int stop;               /* ends running kernels and waits: after a fault and at exit */
    atomic_int busy;               /* operations that workers are executing now */
    atomic_uintptr_t null_stream;  /* handle of stream NULL; 0 until first used */
    _Atomic(struct table *) table; /* what each address means to this device */
};
extern struct device devices[MAX_DEVICES];

/* The device of the calling thread's current context, or NULL. */
struct device *device_current(void);
int device_valid(int ordinal);
/* Makes `result` the device's sticky fault, stops its kernels, and prints the text if it is the
 * first one. */
void device_fault(struct device *device, CUresult result, const char *text);
/* CUDA_SUCCESS or the sticky fault. */
CUresult device_state(struct device *device);
/* Not 0 once the process has begun to exit. */
extern atomic_int soft_stopping;
/* Set in a worker while it runs a host function. */
extern _Thread_local int in_host_function;

uint64_t now_ns(void);
void nap_us(unsigned microseconds);

/* ---- objects and their handles (soft_object.c) ---- */

enum object_kind {
    OBJECT_ALLOCATION, /* device memory or a multicast object */
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_FUNCTION,
    OBJECT_GRAPH,
    OBJECT_EXEC,
    OBJECT_USER, /* a user object, which graphs keep */
    OBJECT_KINDS
};

/* Begins every structure that has a handle. Made with one reference, which the registry takes
 * over when the object is published. */
struct object {
    enum object_kind kind;
    atomic_uint refs;
    struct device *device; /* whose context owns it; NULL for memory */
    uintptr_t handle;
    void (*destroy)(struct object *object);
};

/* Zeroed, with one reference; NULL when out of memory. */
void *object_create(size_t size, enum object_kind kind, struct device *device,
                    void (*destroy)(struct object *object));
void object_retain(struct object *object);
void object_release(struct object *object);

/* Gives the object a handle. Values are never used twice. Returns 0 when out of memory. */
uintptr_t object_publish(struct object *object);
/* The object of a handle, retained; NULL when there is no such handle or it is of another kind. */
void *object_get(uintptr_t handle, enum object_kind kind);
/* The same, and the handle is no longer valid: the registry's reference becomes the caller's. */
void *object_withdraw(uintptr_t handle, enum object_kind kind);
/* Any object of this kind that the device's context owns, with a handle above `after`; retained. */
void *object_next(struct device *device, enum object_kind kind, uintptr_t after);

/* ---- what is held, for soft_leaks (soft_stats.c) ---- */

enum held {
    HELD_HANDLES,
    HELD_MAPPINGS,
    HELD_RANGES,
    HELD_STREAMS,
    HELD_EVENTS,
    HELD_MODULES,
    HELD_DESCRIPTORS,
    HELD_GRAPHS, /* and what was instantiated from them, and user objects */
    HELD_KINDS
};
void held_add(enum held kind, int change);
void stats_count_call(enum api_call call);
void stats_count_launch(const char *kernel, const struct ptx_counts *counts);
void stats_print_leaks(void);

/* ---- things that running operations may still read (soft_retire.c) ---- */

/* While a reader is entered, nothing retired after its entry is freed. */
struct reader {
    uint64_t epoch;
    struct reader *next, **link;
};
void reader_enter(struct reader *reader);
void reader_leave(struct reader *reader);
/* Calls dispose(argument) once no reader that entered before now is left; now, if there is none. */
void retire(void (*dispose)(void *argument), void *argument);

/* ---- allocations and sharing (soft_share.c) ---- */

struct multicast;

enum { OBJECT_ID_BYTES = 16 };

struct allocation {
    struct object object;
    int fd; /* a memfd: `size` bytes, then a page that says what they are */
    size_t size;
    int device; /* -1 for a multicast object */
    int shareable;
    unsigned char id[OBJECT_ID_BYTES];
    struct multicast *multicast; /* NULL for memory */
};

/* What the last page of a memfd says. */
struct allocation_header {
    char magic[16];
    uint64_t size;
    int32_t device;
    uint32_t multicast;
    unsigned char id[OBJECT_ID_BYTES];
};

/* A new memfd of `size` bytes. */
CUresult allocation_create(size_t size, int device, int shareable, int multicast,
                           struct allocation **allocation_out);
/* Reads the header of a descriptor; 0 when it is not one of the switch's. */
int allocation_identify(int fd, struct allocation_header *header_out);
/* The allocation of a handle, retained. */
struct allocation *allocation_get(CUmemGenericAllocationHandle handle);
/* Publishes a handle and returns it; on failure the allocation is released. */
CUresult allocation_publish(struct allocation *allocation,
                            CUmemGenericAllocationHandle *handle_out);
/* A further handle of the same memory; releases the caller's reference to `allocation`. */
CUresult allocation_reopen(struct allocation *allocation, CUmemGenericAllocationHandle *handle_out);
/* What ptx_range calls the place of byte 0 of the allocation with this id: the same in every
 * process, far from every other allocation's and from every host address. */
uint64_t allocation_place(const unsigned char id[OBJECT_ID_BYTES]);
int descriptor_dup(int fd);
void descriptor_close(int fd);

/* ---- multicast objects (soft_multicast.c, soft_copies.c) ---- */

enum { MAX_BINDS = 1024 };

/* Maps the shared state of a multicast object; `create` initialises it. */
CUresult multicast_open(struct allocation *allocation, const CUmulticastObjectProp *create);
/* Withdraws nothing: binds outlive the process's hold on the object, as in the driver, but the
 * descriptors that published them are closed. */
void multicast_close(struct multicast *multicast);
size_t multicast_state_bytes(void);
size_t multicast_size(const struct multicast *multicast);
/* Blocks until every device has been added; CUDA_ERROR_SYSTEM_NOT_READY after settings.block_ms. */
CUresult multicast_wait_devices(struct multicast *multicast);

/* One piece of a multicast object between two bounds of binds. */
struct piece {
    uint64_t begin, end; /* offsets in the object */
    unsigned copies;     /* 0 unless every device has bound the piece and it could be opened */
    unsigned char *copy[PTX_MAX_COPIES];
    uint64_t place[PTX_MAX_COPIES]; /* of each copy, as ptx_range counts them */
};
/* Opens the copies bound in [begin, end) of the object: what cannot be opened is an error now, and
 * not a kernel's fault later. Call with the memory lock held. */
CUresult multicast_open_copies(struct multicast *multicast, uint64_t begin, uint64_t end);

/* Calls visit for every piece of [begin, end), in order, and returns the generation of the binds
 * it saw. Call with the memory lock held. */
unsigned multicast_pieces(struct multicast *multicast, uint64_t begin, uint64_t end,
                          void (*visit)(void *context, const struct piece *piece), void *context);
const atomic_uint *multicast_generation(const struct multicast *multicast);

/* ---- address ranges (soft_memory.c changes them, soft_table.c reads them) ---- */

struct mapping {
    struct mapping *next; /* by address */
    uint64_t begin, end;
    struct allocation *allocation;
    uint64_t offset;
    unsigned char access[MAX_DEVICES]; /* CUmemAccess_flags */
};

/* A reservation, or a block of cuMemAlloc with the guard page behind it. */
struct region {
    struct region *next; /* by address */
    uint64_t begin, end;
    int device;        /* of a block; -1: a reservation */
    size_t block_size; /* as asked for */
    struct mapping *mappings;
};
extern struct region *regions; /* under the memory lock */
void memory_lock(void);
void memory_unlock(void);
/* Frees the blocks of cuMemAlloc that a context leaves behind. */
void memory_drop_blocks(int device);

enum span_kind { SPAN_HOST, SPAN_NOTHING, SPAN_MEMORY, SPAN_BLOCK, SPAN_MULTICAST };

/* A range as the interpreter sees it, and what the driver calls check beside that. */
struct span {
    struct ptx_range range; /* first: the interpreter gets a pointer to it */
    enum span_kind kind;
    int device;                    /* where the memory lies; -1 for host memory and multicast */
    const atomic_uint *generation; /* multicast: the object's, and the one this span was made of */
    unsigned seen;
};

/* Builds the device's table anew; with NULL, every device's that has one. Memory lock held. */
void table_rebuild(struct device *device);
/* The span that holds the address. Only inside a reader. */
const struct span *span_find(struct device *device, uint64_t address);
/* ptx_memory.range, with the device as its context. */
const struct ptx_range *span_range(void *device, uint64_t address);

/* ---- registered host memory (soft_host.c) ---- */

int host_registered(uint64_t address, size_t bytes);

/* ---- streams (soft_stream.c) ---- */

struct stream;

/* One piece of queued work; begins every structure of that kind. Those that can be captured are
 * copied for every launch of their graph. */
struct op {
    struct op *next;
    struct stream *stream;
    size_t size;                    /* of the whole structure */
    int always;                     /* runs even after a fault */
    void (*prepare)(struct op *op); /* as it is queued, each time: draws what is left to chance; may
                                     * be NULL */
    void (*run)(struct op *op);     /* on the worker */
    void (*copied)(struct op *op);  /* the copy takes its own part of what is held; may be NULL */
    void (*cleanup)(struct op *op); /* run or not; may be NULL */
};

/* The stream of a handle, retained (object_release((struct object *)stream)); NULL and 1 mean the
 * current context's own stream. Fails when its device has a fault. */
CUresult stream_get(CUstream handle, struct stream **stream_out);
struct device *stream_device(struct stream *stream);
/* Is it a context's own stream, NULL? Is it one that waits for that stream? */
int stream_is_legacy(const struct stream *stream);
int stream_is_blocking(const struct stream *stream);
/* The stream's part of a capture, or NULL; soft_capture.c's. */
struct strand;
_Atomic(struct strand *) *stream_strand(struct stream *stream);
/* A stream without a handle, for the switch's own use; stream_close ends it when its queue is empty
 * and gives up the reference. */
struct stream *stream_create(struct device *device);
void stream_close(struct stream *stream);
/* Zeroed; NULL when out of memory. Freed by the stream, or with op_discard if never submitted. */
void *op_create(size_t size, void (*run)(struct op *op));
struct op *op_copy(const struct op *op);
void op_discard(struct op *op);
/* Queues the operation, which now belongs to the stream, even on failure; or adds it to the graph
 * that is being captured on the stream. */
CUresult stream_submit(struct stream *stream, struct op *op);
/* op_create's result to a stream by its handle: what most entry points end with. */
CUresult stream_submit_to(CUstream handle, struct op *op);
/* 1 when everything queued so far has ended. */
int stream_is_idle(struct stream *stream);
/* Waits for everything queued so far on every stream of the device. */
void streams_wait(struct device *device);
/* Ends every stream of a context, letting queued work finish for at most settings.block_ms. */
void streams_drop(struct device *device);
/* 1 when a wait on this device should give up: a fault, or the process exits. */
int stream_should_stop(struct device *device);

/* ---- turns (soft_turns.c) ---- */

/* Runs step(context) until it returns 0: here and now, or turn by turn with other streams' work
 * while soft_hold asks for that. */
void turns_run(struct stream *stream, int (*step)(void *context), void *context);
/* Counts and seeds of launches, and the clock that kernels see: NULL for the machine's. */
uint64_t turns_seed(const struct device *device);
const uint64_t *turns_clock(void);

/* ---- marks: what an event's record leaves in a stream (soft_event.c) ---- */

struct mark;

/* Puts a mark behind everything queued so far; the caller's to release. */
CUresult mark_put(struct stream *stream, struct mark **mark_out);
/* Makes the stream wait for the mark. */
CUresult mark_await(struct stream *stream, struct mark *mark);
void mark_release(struct mark *mark);

/* ---- capture (soft_capture.c) ---- */

/* Refuses a call that could disturb a capture, which it ends. */
CUresult capture_check_call(enum api_call call);
/* 1 when the stream is being captured: the operation is a node of its graph then, or an error. Also
 * 1, with an error, when a capture forbids work on stream NULL. */
int capture_add(struct stream *stream, struct op *op, CUresult *result_out);
/* Refuses to wait for, or ask about, a stream that is being captured; or all of a device's. */
CUresult capture_check_stream(struct stream *stream);
CUresult capture_check_device(struct device *device);
/* The stream goes: so does the capture it is part of. */
void capture_leave(struct stream *stream);

/* How far a captured stream has come, as an event remembers it. */
struct cut;
/* NULL when the stream is not being captured. */
CUresult cut_take(struct stream *stream, struct cut **cut_out);
/* Behind the cut in the graph, which the stream joins unless it is part of it. */
CUresult cut_await(struct stream *stream, struct cut *cut);
/* Refuses to ask about an event that holds a cut. */
CUresult cut_check(struct cut *cut);
void cut_retain(struct cut *cut);
void cut_release(struct cut *cut);

/* ---- parsed modules (soft_parsed.c) ---- */

/* The module of this text, parsed at most once for all who hold it, and never written to; NULL,
 * with ptx_module_parse's words in `error`. Given back with parsed_release. */
struct ptx_module *parsed_get(const char *text, char *error, size_t error_size);
void parsed_release(struct ptx_module *module);

/* ---- events, graphs and modules, at a context's end ---- */

void events_drop(struct device *device);
void graphs_drop(struct device *device);
void modules_drop(struct device *device);

#endif
