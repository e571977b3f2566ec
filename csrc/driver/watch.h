/* Lets one thread see that another's driver call does not return, and take over from it. The CU
 * macros of driver.h report to it; a thread that nobody watches pays one test per call. */
#ifndef SMFAR_DRIVER_WATCH_H
#define SMFAR_DRIVER_WATCH_H

#include <pthread.h>
#include <stdatomic.h>

struct driver_watch {
    _Atomic(const char *) call;   /* in progress; NULL: none */
    _Atomic unsigned long number; /* of calls begun */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int released;
};

void driver_watch_init(struct driver_watch *watch);
void driver_watch_destroy(struct driver_watch *watch);

/* The calling thread's calls are reported to `watch` from now on; NULL: to nobody. */
void driver_watch_me(struct driver_watch *watch);

/* By the watcher: 1 when the call named `call` is still in progress; the watched thread, should it
 * ever return from it, then waits for driver_watch_release. */
int driver_watch_take(struct driver_watch *watch, const char *call);
void driver_watch_release(struct driver_watch *watch);

/* Around whatever may block. */
void driver_watch_begin(const char *call);
void driver_watch_end(void);

#endif
