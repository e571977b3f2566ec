/* Streams: each a queue of operations and a worker thread that runs them in order. What an
 * operation does is not known here.
 *
 * Stream NULL is an ordinary stream of its context: it does not wait for the others, nor they for
 * it, as the driver's legacy stream would. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "soft_internal.h"

/* How long a worker without work looks for more before it sleeps: waking it takes about this. */
enum { LINGER_NS = 20000 };

struct stream {
    struct object object;
    pthread_mutex_t lock;
    pthread_cond_t work, progress;
    struct op *first, **last;
    atomic_ullong submitted; /* changed under the lock */
    uint64_t completed;
    int sleeping, closing, started;
    int legacy, blocking;
    _Atomic(struct strand *) strand;
};

static void destroy(struct object *object)
{
    struct stream *stream = (struct stream *)object;
    pthread_cond_destroy(&stream->progress);
    pthread_cond_destroy(&stream->work);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

struct stream *stream_create(struct device *device)
{
    struct stream *stream = object_create(sizeof *stream, OBJECT_STREAM, device, destroy);
    if (!stream) return NULL;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->work, NULL);
    pthread_cond_init(&stream->progress, NULL);
    stream->last = &stream->first;
    return stream;
}

struct device *stream_device(struct stream *stream) { return stream->object.device; }

int stream_is_legacy(const struct stream *stream) { return stream->legacy; }

int stream_is_blocking(const struct stream *stream) { return stream->blocking; }

_Atomic(struct strand *) *stream_strand(struct stream *stream) { return &stream->strand; }

int stream_should_stop(struct device *device)
{
    return atomic_load_explicit(&device->stop, memory_order_relaxed);
}

/* ---- the worker ---- */

/* Looks for work for a moment, giving the processor to whoever wants it. */
static void linger(struct stream *stream, uint64_t completed)
{
    uint64_t end = now_ns() + LINGER_NS;
    while (atomic_load_explicit(&stream->submitted, memory_order_relaxed) == completed &&
           now_ns() < end)
        sched_yield();
}

/* The next operation, or NULL when the stream is closed and empty. */
static struct op *next_op(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    if (!stream->first && !stream->closing) {
        uint64_t completed = stream->completed;
        pthread_mutex_unlock(&stream->lock);
        linger(stream, completed);
        pthread_mutex_lock(&stream->lock);
    }
    while (!stream->first && !stream->closing) {
        stream->sleeping = 1;
        pthread_cond_wait(&stream->work, &stream->lock);
        stream->sleeping = 0;
    }
    struct op *op = stream->first;
    if (op) {
        stream->first = op->next;
        if (!stream->first) stream->last = &stream->first;
    }
    pthread_mutex_unlock(&stream->lock);
    return op;
}

static void run_op(struct stream *stream, struct op *op)
{
    struct device *device = stream->object.device;
    struct reader reader;
    atomic_fetch_add(&device->busy, 1);
    if (op->always || !stream_should_stop(device)) {
        reader_enter(&reader);
        op->run(op);
        reader_leave(&reader);
    }
    if (op->cleanup) op->cleanup(op);
    free(op);
    atomic_fetch_sub(&device->busy, 1);
}

static void *work(void *argument)
{
    struct stream *stream = argument;
    char name[16];
    snprintf(name, sizeof name, "smfar-gpu%d", stream->object.device->ordinal);
    pthread_setname_np(pthread_self(), name);
    prctl(PR_SET_TIMERSLACK, 1000ul); /* naps as short as asked for */
    for (struct op *op = next_op(stream); op; op = next_op(stream)) {
        run_op(stream, op);
        pthread_mutex_lock(&stream->lock);
        stream->completed++;
        pthread_cond_broadcast(&stream->progress);
        pthread_mutex_unlock(&stream->lock);
    }
    object_release(&stream->object);
    return NULL;
}

/* Signals of the process are the other threads' business. Stream lock held. */
static int start_worker(struct stream *stream)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    object_retain(&stream->object);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, work, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error) object_release(&stream->object);
    stream->started = !error;
    return error;
}

/* ---- submitting ---- */

void *op_create(size_t size, void (*run)(struct op *op))
{
    struct op *op = calloc(1, size);
    if (op) {
        op->run = run;
        op->size = size;
    }
    return op;
}

struct op *op_copy(const struct op *op)
{
    struct op *copy = malloc(op->size);
    if (!copy) return NULL;
    memcpy(copy, op, op->size);
    copy->next = NULL;
    if (copy->copied) copy->copied(copy);
    return copy;
}

void op_discard(struct op *op)
{
    if (op->cleanup) op->cleanup(op);
    free(op);
}

static CUresult enqueue(struct stream *stream, struct op *op)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&stream->lock);
    if (stream->closing)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (!stream->started && start_worker(stream) != 0)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else {
        *stream->last = op;
        stream->last = &op->next;
        atomic_fetch_add_explicit(&stream->submitted, 1, memory_order_relaxed);
        if (stream->sleeping) pthread_cond_signal(&stream->work);
    }
    pthread_mutex_unlock(&stream->lock);
    return result;
}

CUresult stream_submit(struct stream *stream, struct op *op)
{
    CUresult result;
    op->stream = stream;
    if (!capture_add(stream, op, &result)) {
        if (op->prepare) op->prepare(op);
        result = enqueue(stream, op);
    }
    if (result != CUDA_SUCCESS) op_discard(op);
    return result;
}

CUresult stream_submit_to(CUstream handle, struct op *op)
{
    struct stream *stream;
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) {
        op_discard(op);
        return result;
    }
    result = stream_submit(stream, op);
    object_release(&stream->object);
    return result;
}

/* ---- handles ---- */

/* The current context's own stream, made when first used; not counted as held by anybody. */
static struct stream *get_null_stream(struct device *device)
{
    uintptr_t handle = atomic_load(&device->null_stream);
    if (handle) return object_get(handle, OBJECT_STREAM);
    pthread_mutex_lock(&device->lock);
    handle = atomic_load(&device->null_stream);
    if (!handle) {
        struct stream *stream = stream_create(device);
        handle = stream ? object_publish(&stream->object) : 0;
        if (stream && !handle) object_release(&stream->object);
        if (handle) stream->legacy = 1;
        atomic_store(&device->null_stream, handle);
    }
    pthread_mutex_unlock(&device->lock);
    return handle ? object_get(handle, OBJECT_STREAM) : NULL;
}

static int is_null_stream(CUstream handle) { return (uintptr_t)handle <= 1; }

CUresult stream_get(CUstream handle, struct stream **stream_out)
{
    struct stream *stream = is_null_stream(handle) ? get_null_stream(device_current())
                                                   : object_get((uintptr_t)handle, OBJECT_STREAM);
    if (!stream) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream");
    CUresult state = device_state(stream->object.device);
    if (state == CUDA_SUCCESS)
        *stream_out = stream;
    else
        object_release(&stream->object);
    return state;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    ENTER(cuStreamCreateWithPriority, NEED_CONTEXT);
    (void)priority; /* clamped by the driver; every stream has a worker here */
    if (!stream || (flags & ~CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
    struct stream *created = stream_create(device_current());
    if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
    created->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    uintptr_t handle = object_publish(&created->object);
    if (!handle) {
        object_release(&created->object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    held_add(HELD_STREAMS, 1);
    *stream = (CUstream)handle;
    return CUDA_SUCCESS;
}

void stream_close(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->closing = 1;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->lock);
    object_release(&stream->object);
}

/* Returns at once: what is queued still runs. */
CUresult cuStreamDestroy(CUstream handle)
{
    ENTER(cuStreamDestroy, NEED_INIT);
    if (is_null_stream(handle)) return refuse(CUDA_ERROR_INVALID_HANDLE, "stream NULL stays");
    struct stream *stream = object_withdraw((uintptr_t)handle, OBJECT_STREAM);
    if (!stream) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream");
    CUresult state = device_state(stream->object.device);
    held_add(HELD_STREAMS, -1);
    capture_leave(stream);
    stream_close(stream);
    return state;
}

/* ---- waiting ---- */

static void wait_for_submitted(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    uint64_t target = atomic_load(&stream->submitted);
    while (stream->completed < target)
        pthread_cond_wait(&stream->progress, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

CUresult cuStreamSynchronize(CUstream handle)
{
    ENTER(cuStreamSynchronize, NEED_CONTEXT);
    struct stream *stream;
    CUresult result = stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    result = capture_check_stream(stream);
    if (result == CUDA_SUCCESS) {
        wait_for_submitted(stream);
        result = device_state(stream->object.device);
    }
    object_release(&stream->object);
    return result;
}

CUresult cuStreamQuery(CUstream handle)
{
    ENTER(cuStreamQuery, NEED_CONTEXT);
    struct stream *stream;
    CUresult result = stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    result = capture_check_stream(stream);
    if (result == CUDA_SUCCESS && !stream_is_idle(stream)) result = CUDA_ERROR_NOT_READY;
    object_release(&stream->object);
    return result;
}

void streams_wait(struct device *device)
{
    struct stream *stream;
    for (uintptr_t at = 0; (stream = object_next(device, OBJECT_STREAM, at)) != NULL;) {
        at = stream->object.handle;
        wait_for_submitted(stream);
        object_release(&stream->object);
    }
}

int stream_is_idle(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    int idle = stream->completed == atomic_load(&stream->submitted);
    pthread_mutex_unlock(&stream->lock);
    return idle;
}

void streams_drop(struct device *device)
{
    uint64_t deadline = now_ns() + settings.block_ms * 1000000ull;
    struct stream *stream;
    for (uintptr_t at = 0; (stream = object_next(device, OBJECT_STREAM, at)) != NULL;) {
        at = stream->object.handle;
        while (!stream_is_idle(stream) && now_ns() < deadline)
            nap_us(100);
        if (!stream_is_idle(stream)) atomic_store(&device->stop, 1);
        wait_for_submitted(stream);
        capture_leave(stream);
        if (object_withdraw(at, OBJECT_STREAM)) stream_close(stream);
        object_release(&stream->object);
    }
    atomic_store(&device->null_stream, 0);
}
