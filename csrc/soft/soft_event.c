/* Events. Each record makes a mark of its own, so that a wait or a query means the record that was
 * the last one when it was made. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "soft_internal.h"

enum { POLL_NS = 20000000 }; /* how often a wait looks whether it should give up */

struct mark {
    atomic_uint refs;
    atomic_uint done; /* a futex */
    uint64_t time;
};

struct event {
    struct object object;
    pthread_mutex_t lock;
    struct mark *mark; /* of the last record; NULL before the first */
    struct cut *cut;   /* instead, if that was captured */
    int timed;
};

struct mark_op {
    struct op op;
    struct mark *mark;
};

void mark_release(struct mark *mark)
{
    if (mark && atomic_fetch_sub(&mark->refs, 1) == 1) free(mark);
}

static void mark_wait(struct mark *mark, struct device *giving_up)
{
    struct timespec timeout = {0, POLL_NS};
    while (!atomic_load(&mark->done) && !(giving_up && stream_should_stop(giving_up)))
        syscall(SYS_futex, &mark->done, FUTEX_WAIT_PRIVATE, 0, &timeout, NULL, 0);
}

static void destroy(struct object *object)
{
    struct event *event = (struct event *)object;
    mark_release(event->mark);
    cut_release(event->cut);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

static struct event *get_event(CUevent handle)
{
    return object_get((uintptr_t)handle, OBJECT_EVENT);
}

/* The event's last mark, retained; NULL when it was never recorded, or that was captured. */
static struct mark *last_mark(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    struct mark *mark = event->mark;
    if (mark) atomic_fetch_add(&mark->refs, 1);
    pthread_mutex_unlock(&event->lock);
    return mark;
}

/* The cut that the last record was, retained; NULL when it was not captured. */
static struct cut *last_cut(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    struct cut *cut = event->cut;
    cut_retain(cut);
    pthread_mutex_unlock(&event->lock);
    return cut;
}

/* Takes over both references, of which one is NULL. */
static void set_last(struct event *event, struct mark *mark, struct cut *cut)
{
    pthread_mutex_lock(&event->lock);
    struct mark *mark_before = event->mark;
    struct cut *cut_before = event->cut;
    event->mark = mark;
    event->cut = cut;
    pthread_mutex_unlock(&event->lock);
    mark_release(mark_before);
    cut_release(cut_before);
}

/* Refuses to ask whether a captured record has been passed: nothing has run. */
static CUresult check_not_captured(struct event *event)
{
    struct cut *cut = last_cut(event);
    CUresult result = cut_check(cut);
    cut_release(cut);
    return result;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    ENTER(cuEventCreate, NEED_CONTEXT);
    if (!event || (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    struct event *created = object_create(sizeof *created, OBJECT_EVENT, device_current(), destroy);
    if (!created) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&created->lock, NULL);
    created->timed = !(flags & CU_EVENT_DISABLE_TIMING);
    uintptr_t handle = object_publish(&created->object);
    if (!handle) {
        object_release(&created->object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    held_add(HELD_EVENTS, 1);
    *event = (CUevent)handle;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent handle)
{
    ENTER(cuEventDestroy, NEED_INIT);
    struct event *event = object_withdraw((uintptr_t)handle, OBJECT_EVENT);
    if (!event) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such event");
    CUresult state = device_state(event->object.device);
    held_add(HELD_EVENTS, -1);
    object_release(&event->object);
    return state;
}

static void run_record(struct op *op)
{
    struct mark *mark = ((struct mark_op *)op)->mark;
    mark->time = now_ns();
    atomic_store(&mark->done, 1);
    syscall(SYS_futex, &mark->done, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}

static void run_wait(struct op *op)
{
    mark_wait(((struct mark_op *)op)->mark, stream_device(op->stream));
}

static void cleanup(struct op *op) { mark_release(((struct mark_op *)op)->mark); }

/* Takes over the reference to the mark. */
static struct op *make_op(struct mark *mark, void (*run)(struct op *op))
{
    struct mark_op *op = op_create(sizeof *op, run);
    if (!op) {
        mark_release(mark);
        return NULL;
    }
    op->op.cleanup = cleanup;
    op->mark = mark;
    return &op->op;
}

CUresult mark_put(struct stream *stream, struct mark **mark_out)
{
    struct mark *mark = calloc(1, sizeof *mark);
    if (!mark) return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_init(&mark->refs, 2); /* the operation's and the caller's */
    struct op *op = make_op(mark, run_record);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (op) {
        op->always = 1;
        result = stream_submit(stream, op);
    }
    if (result == CUDA_SUCCESS)
        *mark_out = mark;
    else
        mark_release(mark);
    return result;
}

CUresult mark_await(struct stream *stream, struct mark *mark)
{
    atomic_fetch_add(&mark->refs, 1);
    struct op *op = make_op(mark, run_wait);
    return op ? stream_submit(stream, op) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult record(struct event *event, struct stream *stream)
{
    struct mark *mark = NULL;
    struct cut *cut = NULL;
    if (event->object.device != stream_device(stream))
        return refuse(CUDA_ERROR_INVALID_HANDLE, "event and stream of different contexts");
    CUresult result = cut_take(stream, &cut);
    if (result == CUDA_SUCCESS && !cut) result = mark_put(stream, &mark);
    if (result == CUDA_SUCCESS) set_last(event, mark, cut);
    return result;
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    ENTER(cuEventRecord, NEED_CONTEXT);
    struct event *event = get_event(handle);
    if (!event) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such event");
    struct stream *stream = NULL;
    CUresult result = stream_get(stream_handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = record(event, stream);
        object_release((struct object *)stream);
    }
    object_release(&event->object);
    return result;
}

static CUresult await(struct event *event, struct stream *stream)
{
    struct cut *cut = last_cut(event);
    struct mark *mark = last_mark(event);
    CUresult result = CUDA_SUCCESS;
    if (cut || atomic_load(stream_strand(stream)))
        result = cut_await(stream, cut);
    else if (mark)
        result = mark_await(stream, mark);
    mark_release(mark);
    cut_release(cut);
    return result;
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags)
{
    ENTER(cuStreamWaitEvent, NEED_CONTEXT);
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    struct event *event = get_event(handle);
    if (!event) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such event");
    struct stream *stream = NULL;
    CUresult result = stream_get(stream_handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = await(event, stream);
        object_release((struct object *)stream);
    }
    object_release(&event->object);
    return result;
}

CUresult cuEventQuery(CUevent handle)
{
    ENTER(cuEventQuery, NEED_CONTEXT);
    struct event *event = get_event(handle);
    if (!event) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such event");
    struct mark *mark = last_mark(event);
    CUresult result = device_state(event->object.device);
    if (result == CUDA_SUCCESS) result = check_not_captured(event);
    if (result == CUDA_SUCCESS && mark && !atomic_load(&mark->done)) result = CUDA_ERROR_NOT_READY;
    mark_release(mark);
    object_release(&event->object);
    return result;
}

CUresult cuEventSynchronize(CUevent handle)
{
    ENTER(cuEventSynchronize, NEED_CONTEXT);
    struct event *event = get_event(handle);
    if (!event) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such event");
    struct mark *mark = last_mark(event);
    if (mark) mark_wait(mark, NULL); /* even after a fault every mark is passed */
    CUresult result = check_not_captured(event);
    if (result == CUDA_SUCCESS) result = device_state(event->object.device);
    mark_release(mark);
    object_release(&event->object);
    return result;
}

/* Nanoseconds of the event's last record. */
static CUresult event_time(CUevent handle, uint64_t *ns)
{
    struct event *event = get_event(handle);
    if (!event) return refuse(CUDA_ERROR_INVALID_HANDLE, "no such event");
    struct mark *mark = last_mark(event);
    CUresult result = CUDA_SUCCESS;
    if (!mark || !event->timed)
        result = CUDA_ERROR_INVALID_HANDLE;
    else if (!atomic_load(&mark->done))
        result = CUDA_ERROR_NOT_READY;
    else
        *ns = mark->time;
    mark_release(mark);
    object_release(&event->object);
    return result;
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    ENTER(cuEventElapsedTime, NEED_CONTEXT);
    uint64_t from, to;
    if (!ms) return CUDA_ERROR_INVALID_VALUE;
    CUresult first = event_time(start, &from), second = event_time(end, &to);
    if (first == CUDA_ERROR_INVALID_HANDLE || second == CUDA_SUCCESS) second = first;
    if (second != CUDA_SUCCESS) return second;
    *ms = (float)((double)(int64_t)(to - from) / 1e6);
    return CUDA_SUCCESS;
}

void events_drop(struct device *device)
{
    struct object *event;
    while ((event = object_next(device, OBJECT_EVENT, 0)) != NULL) {
        object_release(object_withdraw(event->handle, OBJECT_EVENT));
        object_release(event);
    }
}
