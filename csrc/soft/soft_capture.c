/* Stream capture: which streams are part of which capture, and the rules that end one. What is
 * captured becomes nodes of a graph (soft_graph.h); running it is not done here.
 *
 * A capture that is broken stays until its stream ends it: every call on its streams fails then. */
#include <stdlib.h>
#include <string.h>

#include "soft.h"
#include "soft_graph.h"

/* A stream's part of a capture. */
struct strand {
    struct strand *next;
    struct capture *capture; /* which outlives its strands */
    struct stream *stream;   /* retained */
    struct node_set tips;    /* what the next operation comes after */
};

struct capture {
    struct capture *next; /* of those going on */
    unsigned refs;        /* the list's, and those of cuts; under the lock */
    uint64_t id;
    CUstreamCaptureMode mode;
    const void *thread; /* that began it */
    struct graph *graph;
    struct stream *origin;
    struct strand *strands;
    int active, invalid;
};

struct cut {
    atomic_uint refs;
    struct capture *capture;
    struct node_set tips;
};

static struct {
    pthread_mutex_t lock;
    struct capture *first;
    uint64_t last_id;
    atomic_uint active; /* how many: most calls look no further */
} captures = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static _Thread_local char me; /* its address names the thread */

static void lock(void) { pthread_mutex_lock(&captures.lock); }
static void unlock(void) { pthread_mutex_unlock(&captures.lock); }

static struct strand *strand_of(struct stream *stream) { return *stream_strand(stream); }

/* Lock held. */
static void release_capture(struct capture *capture)
{
    if (--capture->refs == 0) free(capture);
}

/* ---- beginning ---- */

/* Makes the stream part of a capture. Lock held. */
static struct strand *add_strand(struct capture *capture, struct stream *stream,
                                 const struct node_set *tips)
{
    struct strand *strand = calloc(1, sizeof *strand);
    if (!strand || !node_set_copy(&strand->tips, tips)) {
        free(strand);
        return NULL;
    }
    object_retain((struct object *)stream);
    strand->capture = capture;
    strand->stream = stream;
    strand->next = capture->strands;
    capture->strands = strand;
    atomic_store(stream_strand(stream), strand);
    return strand;
}

/* Lock held. */
static CUresult begin(struct stream *stream, CUstreamCaptureMode mode, struct graph *graph)
{
    static const struct node_set nothing;
    if (strand_of(stream)) return refuse(CUDA_ERROR_ILLEGAL_STATE, "already capturing");
    struct capture *capture = calloc(1, sizeof *capture);
    if (!capture || !add_strand(capture, stream, &nothing)) {
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->refs = capture->active = 1;
    capture->id = ++captures.last_id;
    capture->mode = mode;
    capture->thread = &me;
    capture->graph = graph;
    capture->origin = stream;
    capture->next = captures.first;
    captures.first = capture;
    atomic_fetch_add(&captures.active, 1);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode)
{
    ENTER(cuStreamBeginCapture, NEED_CONTEXT);
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    struct stream *stream;
    CUresult result = stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    struct graph *graph = NULL;
    if (stream_is_legacy(stream))
        result = refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "stream NULL cannot be captured");
    else if ((graph = graph_create(stream_device(stream))) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        lock();
        result = begin(stream, mode, graph);
        unlock();
        if (result != CUDA_SUCCESS) graph_abandon(graph);
    }
    object_release((struct object *)stream);
    return result;
}

/* ---- ending ---- */

/* No stream is part of it any more. Lock held. */
static void end(struct capture *capture)
{
    struct capture **link = &captures.first;
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    capture->active = 0;
    atomic_fetch_sub(&captures.active, 1);
    while (capture->strands) {
        struct strand *strand = capture->strands;
        capture->strands = strand->next;
        atomic_store(stream_strand(strand->stream), NULL);
        object_release((struct object *)strand->stream);
        node_set_clear(&strand->tips);
        free(strand);
    }
    release_capture(capture);
}

/* Has all that was captured on other streams been waited for by the one that began? */
static int is_joined(const struct capture *capture)
{
    const struct strand *origin = strand_of(capture->origin);
    for (const struct strand *strand = capture->strands; strand; strand = strand->next)
        if (!graph_is_before(capture->graph, &strand->tips, &origin->tips)) return 0;
    return 1;
}

/* Lock held. Ends the capture, unless it is not this caller's to end. */
static CUresult try_end(struct stream *stream, struct graph **graph_out)
{
    struct strand *strand = strand_of(stream);
    if (!strand) return refuse(CUDA_ERROR_ILLEGAL_STATE, "the stream is not capturing");
    struct capture *capture = strand->capture;
    if (capture->origin != stream) {
        capture->invalid = 1;
        return refuse(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "another stream began this capture");
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != &me)
        return refuse(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "another thread began this capture");
    CUresult result = CUDA_SUCCESS;
    if (capture->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!is_joined(capture))
        result = refuse(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                        "work on another captured stream was not waited for");
    *graph_out = capture->graph;
    end(capture);
    return result;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph_out)
{
    ENTER(cuStreamEndCapture, NEED_CONTEXT);
    struct stream *stream;
    struct graph *graph = NULL;
    if (!graph_out) return CUDA_ERROR_INVALID_VALUE;
    *graph_out = NULL;
    CUresult result = stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    lock();
    result = try_end(stream, &graph);
    unlock();
    if (result == CUDA_SUCCESS) {
        *graph_out = graph_handle(graph);
        graph_set_captured(graph);
    } else if (graph)
        graph_abandon(graph);
    object_release((struct object *)stream);
    return result;
}

void capture_leave(struct stream *stream)
{
    struct graph *graph = NULL;
    if (!strand_of(stream)) return;
    lock();
    struct strand *strand = strand_of(stream);
    if (strand && strand->capture->origin == stream) {
        graph = strand->capture->graph;
        end(strand->capture);
    } else if (strand) {
        strand->capture->invalid = 1; /* the strand keeps the stream until the end */
    }
    unlock();
    if (graph) graph_abandon(graph);
}

/* ---- what is captured ---- */

/* Stream NULL would wait for a blocking stream that is being captured. Lock held. */
static int waits_for_captured(const struct device *device)
{
    int found = 0;
    for (struct capture *capture = captures.first; capture; capture = capture->next)
        for (struct strand *strand = capture->strands; strand; strand = strand->next) {
            if (stream_device(strand->stream) != device || !stream_is_blocking(strand->stream))
                continue;
            found = capture->invalid = 1;
        }
    return found;
}

int capture_add(struct stream *stream, struct op *op, CUresult *result_out)
{
    if (!atomic_load(&captures.active)) return 0;
    lock();
    struct strand *strand = strand_of(stream);
    int taken = strand != NULL;
    if (strand && strand->capture->invalid)
        *result_out = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (strand)
        *result_out = graph_add(strand->capture->graph, op, stream_device(stream), &strand->tips);
    else if (stream_is_legacy(stream) && waits_for_captured(stream_device(stream))) {
        *result_out = refuse(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                             "work on stream NULL while a blocking stream is captured");
        taken = 1;
    }
    unlock();
    return taken;
}

CUresult cut_take(struct stream *stream, struct cut **cut_out)
{
    *cut_out = NULL;
    if (!strand_of(stream)) return CUDA_SUCCESS;
    struct cut *cut = calloc(1, sizeof *cut);
    if (!cut) return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_init(&cut->refs, 1);
    CUresult result = CUDA_SUCCESS;
    lock();
    struct strand *strand = strand_of(stream);
    if (strand && strand->capture->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (strand && !node_set_copy(&cut->tips, &strand->tips))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (strand) {
        cut->capture = strand->capture;
        cut->capture->refs++;
        *cut_out = cut;
    }
    unlock();
    if (!*cut_out) free(cut);
    return result;
}

/* Lock held. */
static CUresult join(struct stream *stream, struct strand *strand, const struct cut *cut)
{
    struct capture *capture = cut->capture;
    if (!capture->active)
        return refuse(CUDA_ERROR_CAPTURED_EVENT, "a wait for an event of a capture that has ended");
    if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (strand && strand->capture != capture) {
        strand->capture->invalid = capture->invalid = 1;
        return refuse(CUDA_ERROR_STREAM_CAPTURE_MERGE, "a wait for another capture's event");
    }
    if (!strand && stream_is_legacy(stream)) {
        capture->invalid = 1;
        return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "stream NULL cannot be captured");
    }
    int done = strand ? node_set_add(&strand->tips, &cut->tips)
                      : add_strand(capture, stream, &cut->tips) != NULL;
    return done ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cut_await(struct stream *stream, struct cut *cut)
{
    CUresult result = CUDA_SUCCESS;
    lock();
    struct strand *strand = strand_of(stream);
    if (strand && strand->capture->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (cut)
        result = join(stream, strand, cut);
    else if (strand) {
        strand->capture->invalid = 1;
        result = refuse(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                        "a captured wait for an event that was not captured");
    }
    unlock();
    return result;
}

CUresult cut_check(struct cut *cut)
{
    if (!cut) return CUDA_SUCCESS;
    lock();
    cut->capture->invalid = 1;
    unlock();
    return refuse(CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture");
}

void cut_retain(struct cut *cut)
{
    if (cut) atomic_fetch_add(&cut->refs, 1);
}

void cut_release(struct cut *cut)
{
    if (!cut || atomic_fetch_sub(&cut->refs, 1) != 1) return;
    lock();
    release_capture(cut->capture);
    unlock();
    node_set_clear(&cut->tips);
    free(cut);
}

/* ---- what a capture forbids ---- */

/* Calls that may wait for work, or make other streams wait: as the driver's documentation has it,
 * "potentially unsafe". */
static int is_unsafe(enum api_call call)
{
    switch (call) {
    case CALL_cuMemAlloc:
    case CALL_cuMemFree:
    case CALL_cuMemHostRegister:
    case CALL_cuMemHostUnregister:
    case CALL_cuModuleLoadDataEx:
    case CALL_cuModuleUnload:
    case CALL_cuEventQuery:
    case CALL_cuEventSynchronize:
    case CALL_cuStreamQuery:
    case CALL_cuStreamSynchronize:
    case CALL_cuCtxSynchronize:
        return 1;
    default:
        return 0;
    }
}

static int forbids(const struct capture *capture)
{
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return 0;
    if (capture->thread == &me) return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult capture_check_call(enum api_call call)
{
    int broken = 0;
    if (!atomic_load(&captures.active) || !is_unsafe(call)) return CUDA_SUCCESS;
    lock();
    for (struct capture *capture = captures.first; capture; capture = capture->next)
        if (forbids(capture)) broken = capture->invalid = 1;
    unlock();
    if (!broken) return CUDA_SUCCESS;
    return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "%s while a stream is captured",
                  soft_call_name(call));
}

CUresult capture_check_stream(struct stream *stream)
{
    if (!strand_of(stream)) return CUDA_SUCCESS;
    lock();
    struct strand *strand = strand_of(stream);
    if (strand) strand->capture->invalid = 1;
    unlock();
    if (!strand) return CUDA_SUCCESS;
    return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                  "a stream that is captured cannot be waited for");
}

CUresult capture_check_device(struct device *device)
{
    int broken = 0;
    lock();
    for (struct capture *capture = captures.first; capture; capture = capture->next)
        for (struct strand *strand = capture->strands; strand; strand = strand->next)
            if (stream_device(strand->stream) == device) broken = capture->invalid = 1;
    unlock();
    if (!broken) return CUDA_SUCCESS;
    return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                  "a context with a captured stream cannot be waited for");
}

/* ---- asking ---- */

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    ENTER(cuThreadExchangeStreamCaptureMode, NEED_INIT);
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult get_info(CUstream handle, CUstreamCaptureStatus *status, uint64_t *id,
                         CUgraph *graph)
{
    struct stream *stream;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!strand_of(stream)) {
        object_release((struct object *)stream);
        return CUDA_SUCCESS;
    }
    lock();
    const struct strand *strand = strand_of(stream);
    if (strand) {
        int invalid = strand->capture->invalid;
        *status = invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
        if (id) *id = strand->capture->id;
        if (graph) *graph = graph_handle(strand->capture->graph);
    }
    unlock();
    object_release((struct object *)stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    ENTER(cuStreamIsCapturing, NEED_CONTEXT);
    return get_info(stream, status, NULL, NULL);
}

/* Nodes have no handles here. */
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id,
                                CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
    ENTER(cuStreamGetCaptureInfo, NEED_CONTEXT);
    if (dependencies || count)
        return refuse(CUDA_ERROR_NOT_SUPPORTED, "capture info: the nodes that come next");
    return get_info(stream, status, id, graph);
}
