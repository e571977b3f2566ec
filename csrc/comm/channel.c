/* See channel.h. */
#include "channel.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "../base/hash.h"
#include "capture.h"
#include "courier.h"
#include "failure.h"
#include "meeting.h"
#include "ring.h"

/* Only what must be equal on every rank, and nothing that differs legally: no offsets, no launch
 * shapes. Never 0: a push marks its packets with it. */
static uint32_t hash_call(const struct call *call)
{
    uint64_t scale;
    memcpy(&scale, &call->scale, sizeof(scale));
    /* kernels of others write to that place by my number, not by theirs; copies do not */
    int told = call->collective == COLLECTIVE_RMS_NORM && !call->streams;
    uint64_t place = told ? call->place : 0;
    uint64_t words[] = {(uint64_t)call->collective,
                        (uint64_t)call->dtype,
                        (uint64_t)call->op,
                        (uint64_t)call->root,
                        call->count,
                        (uint64_t)call->kernel,
                        (uint64_t)call->streams,
                        call->row,
                        place,
                        scale};
    uint64_t hash = hash_bytes(words, sizeof(words));
    uint32_t folded = (uint32_t)(hash ^ hash >> 32);
    return folded ? folded : 1;
}

/* Told before anything is launched, so that whoever finds a mismatch can name both sides. */
static void announce(const struct call *call)
{
    struct smfar_comm *comm = call->comm;
    struct page_entry *entry = &comm->page.host->ring[comm->rank][call->sequence % PAGE_RING];
    atomic_store_explicit(&entry->sequence, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    entry->hash = call->hash;
    entry->collective = (int32_t)call->collective;
    entry->dtype = call->dtype;
    entry->op = call->op;
    entry->root = call->root;
    entry->kernel = call->kernel;
    entry->count = call->count;
    entry->scale = call->scale;
    entry->row = call->row;
    entry->place = call->place;
    entry->chain = ring_chain(comm, call->sequence, call->hash);
    atomic_store_explicit(&entry->sequence, call->sequence, memory_order_release);
}

/* Collectives of a group run one after another, in the order in which the host calls them, on
 * whatever streams. The event is recorded only when the stream changes. */
static enum smfar_status order_streams(struct call *call)
{
    enum smfar_status status;
    struct driver *driver = call->comm->driver;
    struct smfar_comm *comm = call->comm;
    if (!comm->last_stream || comm->last_stream == call->stream) return SMFAR_OK;
    CU(cuEventRecord, comm->order, comm->last_stream);
    CU(cuStreamWaitEvent, call->stream, comm->order, 0);
    return SMFAR_OK;
fail:
    return status;
}

/* The others have begun, or will: without this rank they would wait for the deadline. */
static enum smfar_status give_up(const struct call *call, enum smfar_status status)
{
    char text[PAGE_TEXT];
    snprintf(text, sizeof(text), "rank %d could not enqueue %s: %s", call->comm->rank,
             name_collective(call->collective), smfar_last_error());
    failure_publish(call->comm, status, call->sequence, text);
    return FAIL(status, "%s", text);
}

/* Begins the collective unless a rank has left, or calls another. Announcing first and looking
 * second is one half of an agreement with smfar_comm_destroy, which says that it leaves and then
 * waits for whatever was begun: so no kernel writes to a multicast address from which a rank's
 * memory has been unbound. */
static enum smfar_status join_others(const struct call *call)
{
    struct smfar_comm *comm = call->comm;
    struct page_words *words = comm->page.host->words;
    atomic_store(&words[comm->rank].begun, call->sequence);
    uint64_t different = ring_difference(comm, call->sequence);
    enum smfar_status status =
        different ? failure_mismatch(comm, different) : failure_check_left(comm, call->sequence);
    if (status != SMFAR_OK) atomic_store(&words[comm->rank].begun, call->sequence - 1);
    return status;
}

enum smfar_status channel_begin(struct call *call)
{
    struct smfar_comm *comm = call->comm;
    call->hash = hash_call(call);
    if (call->graph) return capture_begin(call);
    call->sequence = atomic_load(&comm->sequence) + 1;
    enum smfar_status status = courier_await_collected(comm, call->sequence);
    if (status == SMFAR_OK) status = order_streams(call);
    if (status != SMFAR_OK) return give_up(call, status);
    /* before anybody can copy to the place that is announced: see work.c */
    if (call->streams) atomic_store(&comm->page.host->words[comm->rank].streamed, call->sequence);
    announce(call);
    status = join_others(call);
    if (status != SMFAR_OK) return status;
    atomic_store(&comm->sequence, call->sequence);
    return SMFAR_OK;
}

static void fill_args(const struct call *call, struct kargs *args)
{
    const struct smfar_comm *comm = call->comm;
    const struct window *window = comm->window;
    args->window = window->peer[comm->rank];
    args->multicast = window->multicast;
    args->page = comm->page.device;
    args->timeout_ns = (uint64_t)atomic_load(&comm->timeout_ms) * 1000000u;
    args->sequence = call->sequence;
    args->rank = (uint32_t)comm->rank;
    args->ranks = (uint32_t)comm->ranks;
    args->hash = call->hash;
    args->scale = call->op == SMFAR_PREMUL_SUM ? call->scale : 1.0 / comm->ranks;
    args->signals = (uint32_t)call->channel->signals;
    for (int r = 0; r < comm->ranks; r++)
        args->peer[r] = window->peer[r];
}

enum smfar_status channel_launch(struct call *call, enum kernel_id id, int blocks, int threads,
                                 int last, struct kargs *args)
{
    fill_args(call, args);
    args->done = !last ? DONE_NOT : call->graph ? DONE_REPLAYED : DONE_CALLED;
    args->owner = call->owner;
    args->free = call->launches++ ? call->owner : 0;
    call->finished = last;
    return kernel_launch(call->comm->kernels, id, blocks, threads, args, call->stream);
}

enum smfar_status channel_barrier(struct call *call, int last)
{
    struct kargs args;
    memset(&args, 0, sizeof(args));
    enum kernel_id id = call->comm->agreed.multicast ? KERNEL_barrier_mc : KERNEL_barrier_peer;
    return channel_launch(call, id, 1, 32, last, &args);
}

/* Where a kernel has waited for the others, not a write by the stream, which would say so whatever
 * happened to the kernels before it. */
static enum smfar_status finish(struct call *call)
{
    struct kargs args;
    if (call->meetings) return meeting_pass(call);
    memset(&args, 0, sizeof(args));
    return channel_launch(call, KERNEL_finish_peer, 1, 32, 1, &args);
}

enum smfar_status channel_end(struct call *call, enum smfar_status status)
{
    struct smfar_comm *comm = call->comm;
    if (call->graph) {
        if (status == SMFAR_OK && !call->finished) status = finish(call);
        return capture_end(call, status);
    }
    comm->last_stream = call->stream;
    if (call->meetings) atomic_store(&comm->page.host->words[comm->rank].streamed, call->sequence);
    if (status == SMFAR_OK && !call->finished) status = finish(call);
    return status == SMFAR_OK ? SMFAR_OK : give_up(call, status);
}

struct smfar_path *channel_path(struct smfar_comm *comm, enum collective collective,
                                const char *algorithm, const char *reason)
{
    const char *name = name_collective(collective);
    int i = 0;
    pthread_mutex_lock(&comm->path_lock);
    while (i < comm->path_count &&
           (strcmp(comm->paths[i].collective, name) || strcmp(comm->paths[i].algorithm, algorithm)))
        i++;
    assert(i < COMM_PATHS);
    if (i == comm->path_count) {
        comm->paths[i] = (struct smfar_path){.collective = name, .algorithm = algorithm};
        comm->path_count++;
    }
    snprintf(comm->paths[i].reason, sizeof(comm->paths[i].reason), "%s", reason);
    pthread_mutex_unlock(&comm->path_lock);
    return &comm->paths[i];
}
