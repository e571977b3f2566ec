/* See mail.h. */
#include "mail.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../base/clock.h"
#include "../base/thread.h"
#include "capture.h"
#include "failure.h"
#include "lane.h"

/* How the thread spends its time while nothing moves: first giving way to whoever can run, then
 * sleeping, longer when nothing has come for a while. */
enum { YIELDS = 200, SHORT_NAPS = 400, SHORT_NAP_NS = 50000, LONG_NAP_NS = 500000 };

/* How long copies may take to end after a failure, milliseconds. */
enum { SETTLE_MS = 2000 };

struct mail {
    struct smfar_comm *comm;
    CUstream stream;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t posted;
    struct smfar_request *first,
        **end; /* in the order of the calls; new ones come under the lock */
    int stopping;
    struct lane out[SMFAR_MAX_RANKS], in[SMFAR_MAX_RANKS]; /* the thread's */
};

/* ---- the list ---- */

static void unlink_request(struct mail *mail, struct smfar_request *request)
{
    pthread_mutex_lock(&mail->lock);
    struct smfar_request **at = &mail->first;
    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    if (mail->end == &request->next) mail->end = at;
    pthread_mutex_unlock(&mail->lock);
}

static void finish(struct mail *mail, struct smfar_request *request, enum smfar_status status,
                   const char *text)
{
    struct driver *driver = mail->comm->driver;
    unlink_request(mail, request);
    if (request->ready) CU_WARN(cuEventDestroy, request->ready);
    request_end(request, status, text);
}

/* The request after this one; the list only grows at its end meanwhile. */
static struct smfar_request *following(struct mail *mail, struct smfar_request *request)
{
    pthread_mutex_lock(&mail->lock);
    struct smfar_request *next = request ? request->next : mail->first;
    pthread_mutex_unlock(&mail->lock);
    return next;
}

/* Has what comes before the message ended? */
static int is_ready(struct mail *mail, struct smfar_request *request, enum smfar_status *status)
{
    const struct smfar_comm *comm = mail->comm;
    struct driver *driver = comm->driver;
    if (!request->is_ready) {
        CUresult result = CU_RESULT(cuEventQuery, request->ready);
        request->is_ready = result == CUDA_SUCCESS;
        if (!request->is_ready && result != CUDA_ERROR_NOT_READY)
            *status = driver_failed_at(__FILE__, __LINE__, driver, "cuEventQuery", result);
    }
    if (request->is_ready && !request->deadline)
        request->deadline = clock_now_ms() + atomic_load(&comm->timeout_ms);
    return request->is_ready;
}

/* ---- the sender's side ---- */

/* Announces the message in a free post of the pair; 0 while there is none. */
static int announce(struct mail *mail, struct smfar_request *request)
{
    struct page_pair *pair = lane_pair(mail->comm, mail->comm->rank, request->order.peer);
    for (int i = 0; i < PAIR_POSTS; i++) {
        struct page_post *post = &pair->post[i];
        if (atomic_load(&post->number)) continue;
        post->tag = request->order.tag;
        post->bytes = request->order.bytes;
        request->number = ++mail->out[request->order.peer].announced;
        atomic_store_explicit(&post->number, request->number, memory_order_release);
        return 1;
    }
    return 0;
}

/* The receiver has chosen this message: frees its post, and says so. */
static void start_sending(struct mail *mail, struct smfar_request *request)
{
    struct page_pair *pair = lane_pair(mail->comm, mail->comm->rank, request->order.peer);
    for (int i = 0; i < PAIR_POSTS; i++)
        if (atomic_load(&pair->post[i].number) == request->number)
            atomic_store(&pair->post[i].number, 0);
    request->started = 1;
    mail->out[request->order.peer].active = request;
    atomic_store_explicit(&pair->started, request->number, memory_order_release);
}

/* Returns 1 when something has changed. `held` is set when later messages to this rank wait. */
static int advance_send(struct mail *mail, struct smfar_request *request, int *held,
                        enum smfar_status *status)
{
    int rank = mail->comm->rank, to = request->order.peer, changed = 0;
    struct page_pair *pair = lane_pair(mail->comm, rank, to);
    if (!request->number) {
        changed = !*held && is_ready(mail, request, status) && announce(mail, request);
        *held |= !request->number;
        return changed;
    }
    /* the receiver may have the last piece of the message before, and this sender not know it yet
     */
    if (!request->started && !mail->out[to].active &&
        atomic_load_explicit(&pair->chosen, memory_order_acquire) == request->number) {
        start_sending(mail, request);
        changed = 1;
    }
    if (mail->out[to].active != request) return changed;
    changed |= lane_move(mail->comm, mail->stream, &mail->out[to], rank, to, status);
    if (!mail->out[to].active) finish(mail, request, SMFAR_OK, "");
    return changed;
}

/* ---- the receiver's side ---- */

/* The oldest announced message of `from` with the request's tag, or NULL. */
static const struct page_post *find_post(const struct mail *mail,
                                         const struct smfar_request *request, int from)
{
    struct page_pair *pair = lane_pair(mail->comm, from, mail->comm->rank);
    const struct page_post *found = NULL;
    uint64_t lowest = UINT64_MAX;
    if (mail->in[from].active) return NULL;
    if (atomic_load_explicit(&pair->started, memory_order_acquire) != atomic_load(&pair->chosen))
        return NULL;
    for (int i = 0; i < PAIR_POSTS; i++) {
        uint64_t number = atomic_load_explicit(&pair->post[i].number, memory_order_acquire);
        if (!number || number >= lowest || pair->post[i].tag != request->order.tag) continue;
        lowest = number;
        found = &pair->post[i];
    }
    return found;
}

static enum smfar_status refuse_sizes(struct mail *mail, const struct smfar_request *request,
                                      int from, uint64_t bytes)
{
    char text[PAGE_TEXT];
    snprintf(text, sizeof(text), "rank %d sends %llu bytes with tag %d, and rank %d receives %zu",
             from, (unsigned long long)bytes, request->order.tag, mail->comm->rank,
             request->order.bytes);
    failure_publish(mail->comm, SMFAR_ERR_MISMATCH, 0, text);
    return SMFAR_ERR_MISMATCH;
}

/* Does an earlier receive ask for this message, too? It may have looked before it was there. */
static int is_for_another(struct mail *mail, const struct smfar_request *request, int from)
{
    struct smfar_request *other = following(mail, NULL);
    for (; other != request; other = following(mail, other))
        if (other->order.receives && !other->started && other->order.tag == request->order.tag &&
            (other->order.peer == from || other->order.peer == SMFAR_ANY_RANK))
            return 1;
    return 0;
}

/* Looks for a message that the request asks for; 1 when it has one. */
static int choose(struct mail *mail, struct smfar_request *request, enum smfar_status *status)
{
    struct smfar_comm *comm = mail->comm;
    for (int i = 1; i <= comm->ranks; i++) {
        int from = (comm->rank + i) % comm->ranks;
        if (request->order.peer != SMFAR_ANY_RANK && request->order.peer != from) continue;
        const struct page_post *post = find_post(mail, request, from);
        if (!post || is_for_another(mail, request, from)) continue;
        if (post->bytes != request->order.bytes) {
            *status = refuse_sizes(mail, request, from, post->bytes);
            return 0;
        }
        request->started = 1;
        request->peer = from;
        mail->in[from].active = request;
        atomic_store_explicit(&lane_pair(comm, from, comm->rank)->chosen,
                              atomic_load(&post->number), memory_order_release);
        return 1;
    }
    return 0;
}

/* The same for a receive. `held` is set when later receives wait for this one to be ready. */
static int advance_receive(struct mail *mail, struct smfar_request *request, int *held,
                           enum smfar_status *status)
{
    int changed = 0;
    if (!request->started) {
        *held |= !is_ready(mail, request, status);
        if (*held || !choose(mail, request, status)) return 0;
        changed = 1;
    }
    struct lane *lane = &mail->in[request->peer];
    changed |= lane_move(mail->comm, mail->stream, lane, request->peer, mail->comm->rank, status);
    if (!lane->active) finish(mail, request, SMFAR_OK, "");
    return changed;
}

/* ---- what goes wrong ---- */

static void describe(const struct mail *mail, const struct smfar_request *request, char *text,
                     size_t size)
{
    int n = snprintf(text, size, "rank %d %s a message of %zu bytes with tag %d", mail->comm->rank,
                     request->order.receives ? "receives" : "sends", request->order.bytes,
                     request->order.tag);
    if (request->peer == SMFAR_ANY_RANK)
        snprintf(text + n, size - (size_t)n, " from any rank");
    else
        snprintf(text + n, size - (size_t)n, " %s rank %d", request->order.receives ? "from" : "to",
                 request->peer);
}

static int has_left(const struct mail *mail, int rank)
{
    return atomic_load(&mail->comm->page.host->words[rank].left) != LEFT_NOT;
}

/* Has the other rank done all that the message needs? Only my own copies are missing then. */
static int is_complete(const struct mail *mail, const struct smfar_request *request)
{
    size_t half = mail->comm->agreed.mailbox_bytes / 2;
    size_t bytes = request->order.bytes - request->moved;
    if (!request->started || !request->order.receives) return request->started && bytes == 0;
    const struct page_pair *pair = lane_pair(mail->comm, request->peer, mail->comm->rank);
    return atomic_load(&pair->full) - mail->in[request->peer].pieces >= (bytes + half - 1) / half;
}

/* Has whoever this request waits for left? */
static int is_forsaken(const struct mail *mail, const struct smfar_request *request)
{
    int rank = mail->comm->rank, ranks = mail->comm->ranks;
    if (request->peer != SMFAR_ANY_RANK)
        return has_left(mail, request->peer) && !is_complete(mail, request);
    for (int r = 0; r < ranks; r++)
        if (r != rank && !has_left(mail, r)) return 0;
    return ranks > 1;
}

/* Fails the group over a request that cannot end; `gone` was seen before its last chance. */
static void give_up(struct mail *mail, const struct smfar_request *request, int gone)
{
    char text[PAGE_TEXT], what[200];
    int late = request->deadline && clock_now_ms() > request->deadline;
    if (!gone && !late) return;
    describe(mail, request, what, sizeof(what));
    if (gone)
        snprintf(text, sizeof(text), "%s, which has left the group", what);
    else
        snprintf(text, sizeof(text), "%s, which has not done its part within %lld ms", what,
                 (long long)atomic_load(&mail->comm->timeout_ms));
    failure_publish(mail->comm, gone ? SMFAR_ERR_PEER : SMFAR_ERR_TIMEOUT, 0, text);
}

/* Copies of this thread wait for nothing, so they end soon. If they do not, memory must stay. */
static void settle(struct mail *mail)
{
    CUresult result = CUDA_ERROR_NOT_READY;
    for (int waited = 0; waited < SETTLE_MS && result == CUDA_ERROR_NOT_READY; waited++) {
        result = mail->comm->driver->cuStreamQuery(mail->stream);
        if (result == CUDA_ERROR_NOT_READY) usleep(1000);
    }
    if (result == CUDA_ERROR_NOT_READY) mail->comm->unsettled = 1;
}

/* As a kernel that fails does: later kernels of this rank do nothing, and mark nothing done. */
static void tell_kernels(struct mail *mail)
{
    struct driver *driver = mail->comm->driver;
    const struct smfar_comm *comm = mail->comm;
    CU_WARN(cuMemsetD8Async, comm->window->peer[comm->rank] + SIGNALS_FAILED, 1, 4, mail->stream);
}

static void fail_all(struct mail *mail, enum smfar_status status, const char *text)
{
    tell_kernels(mail);
    settle(mail);
    for (int r = 0; r < SMFAR_MAX_RANKS; r++)
        mail->out[r].active = mail->in[r].active = NULL;
    for (struct smfar_request *request; (request = following(mail, NULL));)
        finish(mail, request, status, text);
}

/* ---- the thread ---- */

/* One look at every request. Returns 1 when something has changed. */
static int pass(struct mail *mail, enum smfar_status *status)
{
    int held[SMFAR_MAX_RANKS] = {0}, held_receives = 0, changed = 0;
    struct smfar_request *next = following(mail, NULL);
    for (struct smfar_request *request = next; request && *status == SMFAR_OK; request = next) {
        int gone = is_forsaken(mail, request), moved;
        next = following(mail, request);
        if (request->order.receives)
            moved = advance_receive(mail, request, &held_receives, status);
        else
            moved = advance_send(mail, request, &held[request->order.peer], status);
        changed |= moved;
        if (!moved) give_up(mail, request, gone);
    }
    return changed;
}

/* Waits for the first request; 0 when the thread is to end. */
static int wait_posted(struct mail *mail)
{
    pthread_mutex_lock(&mail->lock);
    while (!mail->first && !mail->stopping)
        pthread_cond_wait(&mail->posted, &mail->lock);
    int go_on = !mail->stopping;
    pthread_mutex_unlock(&mail->lock);
    return go_on;
}

static void rest(int idle)
{
    if (idle < YIELDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, idle < YIELDS + SHORT_NAPS ? SHORT_NAP_NS : LONG_NAP_NS},
                  NULL);
}

static void *carry(void *argument)
{
    struct mail *mail = argument;
    struct smfar_comm *comm = mail->comm;
    enum smfar_status status = comm_enter(comm);
    capture_ignore(comm);
    for (int idle = 0; wait_posted(mail); idle++) {
        enum smfar_status failure = failure_check(comm);
        if (failure == SMFAR_OK && status != SMFAR_OK) { /* a driver call of this thread */
            char text[PAGE_TEXT];
            snprintf(text, sizeof(text), "rank %d could not move a message: %s", comm->rank,
                     smfar_last_error());
            failure_publish(comm, status, 0, text);
        } else if (failure != SMFAR_OK) {
            fail_all(mail, failure, smfar_last_error());
        } else if (pass(mail, &status)) {
            idle = 0;
        } else {
            rest(idle);
        }
    }
    fail_all(mail, SMFAR_ERR_ABORTED, "the communicator was destroyed before the message had come");
    comm_leave(comm);
    return NULL;
}

static enum smfar_status start(struct smfar_comm *comm)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    struct mail *mail = calloc(1, sizeof(*mail));
    if (!mail) return FAIL(SMFAR_ERR_MEMORY, "no memory for messages");
    mail->comm = comm;
    mail->end = &mail->first;
    CU(cuStreamCreateWithPriority, &mail->stream, CU_STREAM_NON_BLOCKING, 0);
    pthread_mutex_init(&mail->lock, NULL);
    pthread_cond_init(&mail->posted, NULL);
    TRY(thread_start("the thread that carries messages", carry, mail, &mail->thread));
    comm->mail = mail;
    return SMFAR_OK;
fail:
    if (mail->stream) CU_WARN(cuStreamDestroy, mail->stream);
    free(mail);
    return status;
}

enum smfar_status mail_post(struct smfar_comm *comm, const struct mail_order *order,
                            smfar_request **request_out)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    struct smfar_request *request = NULL;
    if (!comm->mail) TRY(start(comm));
    request = request_create(order, request_out ? 2 : 1);
    if (!request) return FAIL(SMFAR_ERR_MEMORY, "no memory for a message");
    if (order->after) {
        CU(cuEventCreate, &request->ready, CU_EVENT_DISABLE_TIMING);
        CU(cuEventRecord, request->ready, order->after);
    }
    if (request_out) *request_out = request;
    struct mail *mail = comm->mail;
    pthread_mutex_lock(&mail->lock);
    *mail->end = request;
    mail->end = &request->next;
    pthread_cond_signal(&mail->posted);
    pthread_mutex_unlock(&mail->lock);
    return SMFAR_OK;
fail:
    if (request && request->ready) CU_WARN(cuEventDestroy, request->ready);
    free(request);
    return status;
}

void mail_stop(struct smfar_comm *comm)
{
    struct mail *mail = comm->mail;
    struct driver *driver = comm->driver;
    if (!mail) return;
    pthread_mutex_lock(&mail->lock);
    mail->stopping = 1;
    pthread_cond_signal(&mail->posted);
    pthread_mutex_unlock(&mail->lock);
    pthread_join(mail->thread, NULL);
    if (!comm->unsettled && comm_enter(comm) == SMFAR_OK) {
        CU_WARN(cuStreamDestroy, mail->stream);
        comm_leave(comm);
    }
    pthread_cond_destroy(&mail->posted);
    pthread_mutex_destroy(&mail->lock);
    free(mail);
    comm->mail = NULL;
}
