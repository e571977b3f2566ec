/* See supervise.h. */
#include "supervise.h"

#include <stdio.h>
#include <stdlib.h>

#include "../base/clock.h"
#include "../base/log.h"
#include "../base/thread.h"

enum { LOOK_MS = 20 };

struct supervised {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct driver_watch watch;
    struct smfar_comm *comm;
    struct smfar_config config; /* a copy: the caller's may be gone */
    supervise_step step;
    int finished, abandoned;
    enum smfar_status status;
    char text[1024]; /* the error of the thread that ran the step */
};

static void release(struct supervised *it)
{
    driver_watch_destroy(&it->watch);
    pthread_cond_destroy(&it->changed);
    pthread_mutex_destroy(&it->lock);
    free(it);
}

static void *run(void *argument)
{
    struct supervised *it = argument;
    log_set_rank(it->comm->rank);
    driver_watch_me(&it->watch);
    it->status = it->step(it->comm, &it->config);
    snprintf(it->text, sizeof(it->text), "%s", smfar_last_error());
    if (it->status != SMFAR_OK) smfar_comm_destroy(it->comm);
    driver_watch_me(NULL);
    pthread_mutex_lock(&it->lock);
    int abandoned = it->abandoned;
    it->finished = 1;
    pthread_cond_signal(&it->changed);
    pthread_mutex_unlock(&it->lock);
    if (abandoned) release(it);
    return NULL;
}

/* Waits a moment. Returns 1 when the thread has ended. */
static int wait_finished(struct supervised *it)
{
    struct timespec until = thread_deadline(CLOCK_REALTIME, LOOK_MS);
    pthread_mutex_lock(&it->lock);
    if (!it->finished) pthread_cond_timedwait(&it->changed, &it->lock, &until);
    int finished = it->finished;
    pthread_mutex_unlock(&it->lock);
    return finished;
}

/* Until the thread has ended (NULL), or one driver call of it has taken too long (its name). */
static const char *watch_calls(struct supervised *it, int64_t limit_ms)
{
    unsigned long seen = 0;
    int64_t since = 0;
    while (!wait_finished(it)) {
        unsigned long number = atomic_load(&it->watch.number);
        const char *call = atomic_load(&it->watch.call);
        if (!call || number != seen) {
            seen = number;
            since = clock_now_ms();
        } else if (clock_now_ms() - since >= limit_ms && driver_watch_take(&it->watch, call))
            return call;
    }
    return NULL;
}

/* The thread is inside `call`, and stays away from the communicator until it is released. */
static enum smfar_status abandon(struct supervised *it, pthread_t thread, const char *call,
                                 int64_t limit_ms)
{
    enum smfar_status status = FAIL(SMFAR_ERR_TIMEOUT, "rank %d: %s has not returned after %lld ms",
                                    it->comm->rank, call, (long long)limit_ms);
    exchange_break(it->comm->exchange, status);
    log_warn("%s; it is left to its thread", smfar_last_error());
    pthread_detach(thread);
    pthread_mutex_lock(&it->lock);
    it->abandoned = 1;
    pthread_mutex_unlock(&it->lock);
    driver_watch_release(&it->watch); /* from here on *it is the thread's */
    return status;
}

enum smfar_status supervise_run(struct smfar_comm *comm, const struct smfar_config *config,
                                supervise_step step)
{
    pthread_t thread;
    int64_t limit_ms = atomic_load(&comm->timeout_ms) / 2;
    struct supervised *it = calloc(1, sizeof(*it));
    enum smfar_status status =
        it ? SMFAR_OK : FAIL(SMFAR_ERR_MEMORY, "no memory for setting up a communicator");
    if (it) {
        pthread_mutex_init(&it->lock, NULL);
        pthread_cond_init(&it->changed, NULL);
        driver_watch_init(&it->watch);
        it->comm = comm;
        it->config = *config;
        it->step = step;
        status = thread_start("the set-up thread", run, it, &thread);
    }
    if (status != SMFAR_OK) {
        exchange_break(comm->exchange, status);
        if (it) release(it);
        smfar_comm_destroy(comm);
        return status;
    }
    const char *call = watch_calls(it, limit_ms);
    if (call) return abandon(it, thread, call, limit_ms);
    pthread_join(thread, NULL);
    status = it->status;
    if (status != SMFAR_OK) FAIL(status, "%s", it->text);
    release(it);
    return status;
}
