/* See capture.h. */
#include "capture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"
#include "ring.h"

/* Captures going on at once whose collectives are kept in order. */
enum { OPEN_CAPTURES = 16 };

struct open_capture {
    uint64_t number; /* the driver's; 0: none */
    CUevent last;    /* recorded behind its last collective */
    CUstream stream; /* where that was */
};

struct captures {
    struct open_capture open[OPEN_CAPTURES];
    unsigned next;            /* whose place the next capture takes */
    uint32_t owner;           /* number of the last collective */
    struct page_entry *known; /* different calls that were captured; under path_lock */
    size_t count, capacity;
};

enum smfar_status capture_look(struct call *call)
{
    enum smfar_status status;
    struct driver *driver = call->comm->driver;
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!call->stream) call->stream = call->comm->stream;
    CU(cuStreamGetCaptureInfo, call->stream, &state, &call->capture, &call->graph, NULL, NULL);
    if (state == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        call->channel = &call->comm->window->replayed;
        return SMFAR_OK;
    }
    call->graph = NULL;
    if (state == CU_STREAM_CAPTURE_STATUS_NONE) return SMFAR_OK;
    return FAIL(SMFAR_ERR_DRIVER, "%s: an earlier call has broken the capture of this stream",
                name_collective(call->collective));
fail:
    return status;
}

/* ---- the graph's hold on the group ---- */

/* The driver calls it when the graph, all that was instantiated from it, and their launches have
 * ended; it may call nothing of the driver. Touches the page last: see smfar_comm_finalize. */
static void let_go(void *graphs) { atomic_fetch_sub((_Atomic uint32_t *)graphs, 1); }

static enum smfar_status hold(const struct call *call)
{
    enum smfar_status status;
    struct driver *driver = call->comm->driver;
    _Atomic uint32_t *graphs = &call->comm->page.host->words[call->comm->rank].graphs;
    CUuserObject object = NULL;
    /* before looking whether a rank has left: the other half of life_wait_quiet */
    atomic_fetch_add(graphs, 1);
    CU(cuUserObjectCreate, &object, graphs, let_go, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    CU(cuGraphRetainUserObject, call->graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    return SMFAR_OK;
fail:
    if (object)
        CU_WARN(cuUserObjectRelease, object, 1);
    else
        let_go(graphs);
    return status;
}

/* ---- order inside a capture ---- */

static struct open_capture *find(const struct captures *captures, uint64_t number)
{
    for (int i = 0; i < OPEN_CAPTURES; i++)
        if (captures->open[i].number == number)
            return (struct open_capture *)(uintptr_t)&captures->open[i];
    return NULL;
}

static enum smfar_status open_new(const struct call *call, struct open_capture **open_out)
{
    enum smfar_status status;
    struct driver *driver = call->comm->driver;
    struct captures *captures = call->comm->captures;
    struct open_capture *open = &captures->open[captures->next];
    if (!open->last) CU(cuEventCreate, &open->last, CU_EVENT_DISABLE_TIMING);
    TRY(hold(call));
    captures->next = (captures->next + 1) % OPEN_CAPTURES;
    open->number = call->capture;
    open->stream = NULL;
    *open_out = open;
    return SMFAR_OK;
fail:
    return status;
}

/* The call's capture, which the group's graphs are counted by. */
static enum smfar_status open_capture(const struct call *call, struct open_capture **open_out)
{
    struct smfar_comm *comm = call->comm;
    if (!comm->captures) comm->captures = calloc(1, sizeof(*comm->captures));
    if (!comm->captures) return FAIL(SMFAR_ERR_MEMORY, "no memory for capturing");
    *open_out = find(comm->captures, call->capture);
    return *open_out ? SMFAR_OK : open_new(call, open_out);
}

/* ---- words for later ---- */

static struct page_entry entry_of(const struct call *call)
{
    return (struct page_entry){.hash = call->hash,
                               .collective = (int32_t)call->collective,
                               .dtype = call->dtype,
                               .op = call->op,
                               .root = call->root,
                               .kernel = call->kernel,
                               .count = call->count,
                               .scale = call->scale};
}

static const struct page_entry *find_known(const struct captures *captures, uint32_t hash)
{
    for (size_t i = 0; captures && i < captures->count; i++)
        if (captures->known[i].hash == hash) return &captures->known[i];
    return NULL;
}

/* Without memory a failure of this call will be told in fewer words. */
static void remember(const struct call *call)
{
    struct smfar_comm *comm = call->comm;
    struct captures *captures = comm->captures;
    pthread_mutex_lock(&comm->path_lock);
    if (!find_known(captures, call->hash)) {
        if (captures->count == captures->capacity) {
            size_t capacity = captures->capacity ? 2 * captures->capacity : 16;
            struct page_entry *known = realloc(captures->known, capacity * sizeof(*known));
            if (known) {
                captures->known = known;
                captures->capacity = capacity;
            }
        }
        if (captures->count < captures->capacity)
            captures->known[captures->count++] = entry_of(call);
    }
    pthread_mutex_unlock(&comm->path_lock);
}

void capture_describe(struct smfar_comm *comm, uint32_t hash, char *text, size_t size)
{
    pthread_mutex_lock(&comm->path_lock);
    const struct page_entry *known = find_known(comm->captures, hash);
    if (known)
        ring_describe_entry(known, text, size);
    else
        snprintf(text, size, "a collective that this rank has not captured");
    pthread_mutex_unlock(&comm->path_lock);
}

/* ---- a call ---- */

/* A rank that has left and keeps its memory has graphs of its own, which may still be replayed. */
static enum smfar_status check_left(const struct smfar_comm *comm)
{
    for (int r = 0; r < comm->ranks; r++)
        if (atomic_load(&comm->page.host->words[r].left) == LEFT_QUIET)
            return FAIL(SMFAR_ERR_PEER,
                        "rank %d has left the group: a graph that is captured now could never run",
                        r);
    return SMFAR_OK;
}

enum smfar_status capture_begin(struct call *call)
{
    enum smfar_status status;
    struct driver *driver = call->comm->driver;
    struct open_capture *open = NULL;
    call->sequence = CAPTURE_SEQUENCE;
    TRY(open_capture(call, &open));
    TRY(check_left(call->comm));
    if (open->stream && open->stream != call->stream)
        CU(cuStreamWaitEvent, call->stream, open->last, 0);
    remember(call);
    do /* not 0, when it has wrapped */
        call->owner = ++call->comm->captures->owner;
    while (!call->owner);
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status capture_end(struct call *call, enum smfar_status status)
{
    struct driver *driver = call->comm->driver;
    struct open_capture *open = find(call->comm->captures, call->capture);
    if (status != SMFAR_OK) return status;
    CU(cuEventRecord, open->last, call->stream);
    open->stream = call->stream;
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status capture_refuse(const struct smfar_comm *comm, CUstream stream, const char *what)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    CU(cuStreamIsCapturing, stream, &state);
    if (state == CU_STREAM_CAPTURE_STATUS_NONE) return SMFAR_OK;
    return FAIL(SMFAR_ERR_UNSUPPORTED,
                "%s cannot be captured in a CUDA graph: hosts take part in it; call it outside "
                "the capture, or use a collective whose parts have one size",
                what);
fail:
    return status;
}

void capture_ignore(const struct smfar_comm *comm)
{
    struct driver *driver = comm->driver;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CU_WARN(cuThreadExchangeStreamCaptureMode, &mode);
}

void capture_free(struct smfar_comm *comm, int destroy)
{
    struct captures *captures = comm->captures;
    struct driver *driver = comm->driver;
    if (!captures) return;
    for (int i = 0; i < OPEN_CAPTURES && destroy; i++)
        if (captures->open[i].last) CU_WARN(cuEventDestroy, captures->open[i].last);
    free(captures->known);
    free(captures);
    comm->captures = NULL;
}
