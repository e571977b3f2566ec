/* See courier.h. */
#include "courier.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../base/log.h"
#include "../base/thread.h"
#include "../bootstrap/fdpass.h"
#include "failure.h"
#include "ring.h"

/* How the thread waits for ranks that have not called yet: a while by giving way, then by naps. */
enum { YIELDS = 500, NAP_NS = 50000 };

struct courier {
    CUstream stream; /* of errands */
    CUstream feed;
    CUevent fed;
    pthread_t thread;
    int started;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct errand *first, **last; /* in the order of the calls */
    int busy;                     /* the thread has one in hand */
    int stopping;
    CUevent *spare; /* events that nothing refers to */
    int spare_count, spare_room;
    uint64_t errands[PAGE_RING]; /* numbers of recent collectives with an errand */
};

static void free_streams(struct driver *driver, struct courier *courier)
{
    if (courier->fed) CU_WARN(cuEventDestroy, courier->fed);
    if (courier->feed) CU_WARN(cuStreamDestroy, courier->feed);
    if (courier->stream) CU_WARN(cuStreamDestroy, courier->stream);
}

enum smfar_status courier_open(struct smfar_comm *comm)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    int least = 0, greatest = 0;
    struct courier *courier = calloc(1, sizeof(*courier));
    if (!courier) return FAIL(SMFAR_ERR_MEMORY, "no memory for the courier");
    CU(cuCtxGetStreamPriorityRange, &least, &greatest);
    CU(cuStreamCreateWithPriority, &courier->stream, CU_STREAM_NON_BLOCKING, greatest);
    CU(cuStreamCreateWithPriority, &courier->feed, CU_STREAM_NON_BLOCKING, greatest);
    CU(cuEventCreate, &courier->fed, CU_EVENT_DISABLE_TIMING);
    pthread_mutex_init(&courier->lock, NULL);
    pthread_cond_init(&courier->changed, NULL);
    courier->last = &courier->first;
    comm->courier = courier;
    return SMFAR_OK;
fail:
    free_streams(driver, courier);
    free(courier);
    return status;
}

enum smfar_status courier_feed(const struct call *call, CUstream *stream_out)
{
    enum smfar_status status;
    struct courier *courier = call->comm->courier;
    struct driver *driver = call->comm->driver;
    CU(cuEventRecord, courier->fed, call->stream);
    CU(cuStreamWaitEvent, courier->feed, courier->fed, 0);
    *stream_out = courier->feed;
    return SMFAR_OK;
fail:
    return status;
}

/* ---- making an errand ---- */

enum smfar_status courier_begin(const struct call *call, int legs, struct errand **errand_out)
{
    struct smfar_comm *comm = call->comm;
    struct errand *errand = calloc(1, sizeof(*errand) + (size_t)legs * sizeof(errand->legs[0]));
    if (!errand) return FAIL(SMFAR_ERR_MEMORY, "no memory for %d copies", legs);
    errand->comm = comm;
    errand->sequence = call->sequence;
    errand->most = legs;
    comm->courier->errands[call->sequence % PAGE_RING] = call->sequence;
    *errand_out = errand;
    return SMFAR_OK;
}

static enum smfar_status take_event(struct smfar_comm *comm, CUevent *event_out)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    struct courier *courier = comm->courier;
    CUevent event = NULL;
    pthread_mutex_lock(&courier->lock);
    if (courier->spare_count) event = courier->spare[--courier->spare_count];
    pthread_mutex_unlock(&courier->lock);
    if (!event) CU(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    *event_out = event;
    return SMFAR_OK;
fail:
    return status;
}

/* Under the courier's lock. */
static void give_event(struct courier *courier, struct driver *driver, CUevent event)
{
    if (courier->spare_count == courier->spare_room) {
        int room = courier->spare_room ? 2 * courier->spare_room : 16;
        CUevent *spare = realloc(courier->spare, (size_t)room * sizeof(*spare));
        if (!spare) {
            CU_WARN(cuEventDestroy, event);
            return;
        }
        courier->spare = spare;
        courier->spare_room = room;
    }
    courier->spare[courier->spare_count++] = event;
}

enum smfar_status courier_add(struct errand *errand, CUstream stream, const struct leg *leg)
{
    enum smfar_status status;
    struct driver *driver = errand->comm->driver;
    struct leg *mine = &errand->legs[errand->count];
    *mine = *leg;
    TRY(take_event(errand->comm, &mine->ready));
    errand->count++;
    CU(cuEventRecord, mine->ready, stream);
    return SMFAR_OK;
fail:
    return status;
}

/* Under the courier's lock. */
static void end(struct errand *errand)
{
    struct smfar_comm *comm = errand->comm;
    for (int i = 0; i < errand->count; i++)
        give_event(comm->courier, comm->driver, errand->legs[i].ready);
    free(errand);
}

void courier_drop(struct errand *errand)
{
    if (!errand) return;
    struct courier *courier = errand->comm->courier;
    pthread_mutex_lock(&courier->lock);
    end(errand);
    pthread_mutex_unlock(&courier->lock);
}

/* ---- enqueuing the copies ---- */

/* Every rank's answer to where its data should go. Returns 0 when one has not called yet. */
static int find_places(const struct errand *errand, uint64_t *places)
{
    for (int r = 0; r < errand->comm->ranks; r++)
        if (!ring_place(errand->comm, r, errand->sequence, &places[r])) return 0;
    return 1;
}

/* In rank r's window. */
static size_t target(const struct errand *errand, const struct leg *leg, const uint64_t *places,
                     int r)
{
    if (places[r]) return places[r] + leg->at;
    return errand->comm->window->slot + errand->slot[r] + leg->slot_at;
}

/* One copy serves all when everybody, I too, wants the data at one place and they do not lie there
 * already. */
static int suits_multicast(const struct errand *errand, const struct leg *leg,
                           const uint64_t *places)
{
    const struct smfar_comm *comm = errand->comm;
    if (!errand->everyone || !comm->agreed.multicast_copy) return 0;
    size_t mine = target(errand, leg, places, comm->rank);
    for (int r = 0; r < comm->ranks; r++)
        if (target(errand, leg, places, r) != mine) return 0;
    uint64_t source = (uint64_t)(uintptr_t)errand->to[(comm->rank + 1) % comm->ranks] + leg->source;
    uint64_t there = comm->window->peer[comm->rank] + mine;
    return source + leg->bytes <= there || there + leg->bytes <= source;
}

static enum smfar_status copy_leg(const struct errand *errand, const struct leg *leg,
                                  const uint64_t *places)
{
    enum smfar_status status;
    const struct smfar_comm *comm = errand->comm;
    const struct window *window = comm->window;
    struct driver *driver = comm->driver;
    int multicast = suits_multicast(errand, leg, places);
    for (int i = 1; i <= comm->ranks && leg->bytes; i++) { /* not all write to the same */
        int r = (comm->rank + i) % comm->ranks;
        if (!errand->to[r]) continue;
        CUdeviceptr base = multicast ? window->multicast.base : window->peer[r];
        CUdeviceptr source = (CUdeviceptr)(uintptr_t)errand->to[r] + leg->source;
        CU(cuMemcpyAsync, base + target(errand, leg, places, r), source, leg->bytes,
           comm->courier->stream);
        if (multicast) break;
    }
    return SMFAR_OK;
fail:
    return status;
}

static int has_slots(const struct errand *errand, const uint64_t *places)
{
    for (int r = 0; r < errand->comm->ranks; r++)
        if (errand->to[r] && !places[r]) return 1;
    return 0;
}

/* On the communicator's context. */
static enum smfar_status carry(const struct errand *errand, const uint64_t *places)
{
    enum smfar_status status;
    const struct smfar_comm *comm = errand->comm;
    struct driver *driver = comm->driver;
    CUstream stream = comm->courier->stream;
    const struct page_words *words = &comm->page.host->words[comm->rank];
    CUdeviceptr carried =
        comm->page.device + (size_t)((const char *)&words->carried - (const char *)comm->page.host);
    int slots = has_slots(errand, places);
    for (int i = 0; i < errand->count; i++) {
        const struct leg *leg = &errand->legs[i];
        if (!leg->slots_only || slots) CU(cuStreamWaitEvent, stream, leg->ready, 0);
        TRY(copy_leg(errand, leg, places));
        if (leg->carried)
            CU(cuStreamWriteValue64, stream, carried, leg->carried, CU_STREAM_WRITE_VALUE_DEFAULT);
    }
    return SMFAR_OK;
fail:
    return status;
}

/* Returns 0 when a rank has not called yet. */
static int try_errand(struct errand *errand)
{
    uint64_t places[SMFAR_MAX_RANKS];
    struct smfar_comm *comm = errand->comm;
    if (!find_places(errand, places)) return 0;
    /* partner: courier_await_collected of every rank */
    atomic_store(&comm->page.host->words[comm->rank].collected, errand->sequence);
    enum smfar_status status = carry(errand, places);
    if (status != SMFAR_OK) failure_publish(comm, status, errand->sequence, smfar_last_error());
    return 1;
}

/* ---- the thread ---- */

static int is_over(struct courier *courier, struct smfar_comm *comm)
{
    pthread_mutex_lock(&courier->lock);
    int stopping = courier->stopping;
    pthread_mutex_unlock(&courier->lock);
    return stopping || atomic_load(&comm->page.host->abort);
}

static void deliver(struct courier *courier, struct errand *errand)
{
    struct smfar_comm *comm = errand->comm;
    for (int tries = 0; !is_over(courier, comm) && !try_errand(errand); tries++) {
        if (tries < YIELDS)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
}

/* The next errand in hand, or NULL when it is time to end. Under the lock. */
static struct errand *take(struct courier *courier)
{
    while (!courier->stopping && !courier->first)
        pthread_cond_wait(&courier->changed, &courier->lock);
    struct errand *errand = courier->stopping ? NULL : courier->first;
    if (!errand) return NULL;
    courier->first = errand->next;
    if (!courier->first) courier->last = &courier->first;
    courier->busy = 1;
    return errand;
}

static void *run(void *argument)
{
    struct smfar_comm *comm = argument;
    struct courier *courier = comm->courier;
    struct errand *errand;
    log_set_rank(comm->rank);
    int entered = comm_enter(comm) == SMFAR_OK;
    if (!entered) failure_publish(comm, SMFAR_ERR_DRIVER, 0, smfar_last_error());
    pthread_mutex_lock(&courier->lock);
    while ((errand = take(courier))) {
        pthread_mutex_unlock(&courier->lock);
        if (entered) deliver(courier, errand);
        pthread_mutex_lock(&courier->lock);
        courier->busy = 0;
        end(errand);
    }
    pthread_mutex_unlock(&courier->lock);
    if (entered) comm_leave(comm);
    return NULL;
}

/* Under the lock. */
static enum smfar_status hand_over(struct courier *courier, struct errand *errand)
{
    enum smfar_status status = SMFAR_OK;
    if (!courier->started)
        status = thread_start("the courier", run, errand->comm, &courier->thread);
    if (status != SMFAR_OK) {
        end(errand);
        return status;
    }
    courier->started = 1;
    *courier->last = errand;
    courier->last = &errand->next;
    pthread_cond_signal(&courier->changed);
    return SMFAR_OK;
}

enum smfar_status courier_send(struct errand *errand)
{
    struct courier *courier = errand->comm->courier;
    enum smfar_status status = SMFAR_OK;
    pthread_mutex_lock(&courier->lock);
    int mine = !courier->first && !courier->busy && try_errand(errand);
    if (mine)
        end(errand);
    else
        status = hand_over(courier, errand);
    pthread_mutex_unlock(&courier->lock);
    return status;
}

/* ---- what must be waited for ---- */

/* A rank whose host has not read the entry yet, or -1. */
static int find_behind(const struct smfar_comm *comm, uint64_t sequence)
{
    for (int r = 0; r < comm->ranks; r++)
        if (atomic_load(&comm->page.host->words[r].collected) < sequence) return r;
    return -1;
}

enum smfar_status courier_await_collected(struct smfar_comm *comm, uint64_t sequence)
{
    struct courier *courier = comm->courier;
    uint64_t lost = courier ? courier->errands[sequence % PAGE_RING] : 0;
    int behind = lost ? find_behind(comm, lost) : -1;
    if (behind < 0) return SMFAR_OK;
    int64_t deadline = fdpass_now() + atomic_load(&comm->timeout_ms);
    while ((behind = find_behind(comm, lost)) >= 0) {
        enum smfar_status status = failure_check(comm);
        if (status != SMFAR_OK) return status;
        if (fdpass_now() >= deadline) return failure_late(comm, comm->rank, behind, lost);
        nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
    return SMFAR_OK;
}

int courier_idle(struct smfar_comm *comm)
{
    struct courier *courier = comm->courier;
    if (!courier) return 1;
    pthread_mutex_lock(&courier->lock);
    int idle = !courier->first && !courier->busy &&
               comm->driver->cuStreamQuery(courier->stream) == CUDA_SUCCESS &&
               comm->driver->cuStreamQuery(courier->feed) == CUDA_SUCCESS;
    pthread_mutex_unlock(&courier->lock);
    return idle;
}

void courier_stop(struct smfar_comm *comm)
{
    struct courier *courier = comm->courier;
    if (!courier || !courier->started) return;
    pthread_mutex_lock(&courier->lock);
    courier->stopping = 1;
    pthread_cond_signal(&courier->changed);
    pthread_mutex_unlock(&courier->lock);
    pthread_join(courier->thread, NULL);
    courier->started = 0;
}

void courier_free(struct smfar_comm *comm)
{
    struct courier *courier = comm->courier;
    struct driver *driver = comm->driver;
    if (!courier) return;
    while (courier->first) {
        struct errand *errand = courier->first;
        courier->first = errand->next;
        end(errand);
    }
    for (int i = 0; i < courier->spare_count; i++)
        CU_WARN(cuEventDestroy, courier->spare[i]);
    free_streams(driver, courier);
    pthread_mutex_destroy(&courier->lock);
    pthread_cond_destroy(&courier->changed);
    free(courier->spare);
    free(courier);
    comm->courier = NULL;
}
