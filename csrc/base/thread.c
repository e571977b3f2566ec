/* See thread.h. */
#include "thread.h"

#include <sched.h>
#include <signal.h>
#include <string.h>

#include "clock.h"

enum { NAP_NS = 50000, YIELDS = 100 };

enum smfar_status thread_start(const char *what, void *(*body)(void *argument), void *argument,
                               pthread_t *thread_out)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = pthread_create(thread_out, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code) return FAIL(SMFAR_ERR_SYSTEM, "starting %s: %s", what, strerror(code));
    return SMFAR_OK;
}

struct timespec thread_deadline(clockid_t clock, int64_t ms)
{
    struct timespec until;
    clock_gettime(clock, &until);
    int64_t ns = until.tv_nsec + ms % 1000 * 1000000;
    until.tv_sec += ms / 1000 + ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    return until;
}

/* pthread_mutex_timedlock goes by a clock that may be set, and sanitizers do not know the other. */
int thread_lock_within(pthread_mutex_t *mutex, int64_t ms)
{
    int64_t deadline = clock_now_ms() + ms;
    for (int tries = 0; pthread_mutex_trylock(mutex) != 0; tries++) {
        if (clock_now_ms() >= deadline) return 0;
        thread_rest(tries, YIELDS);
    }
    return 1;
}

void thread_rest(int tries, int yields)
{
    if (tries < yields)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, NAP_NS}, NULL);
}
