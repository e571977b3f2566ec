/* See watch.h. */
#include "watch.h"

#include <stddef.h>

static const char taken[] = "taken";
static _Thread_local struct driver_watch *watched;

void driver_watch_init(struct driver_watch *watch)
{
    atomic_init(&watch->call, NULL);
    atomic_init(&watch->number, 0);
    pthread_mutex_init(&watch->lock, NULL);
    pthread_cond_init(&watch->changed, NULL);
    watch->released = 0;
}

void driver_watch_destroy(struct driver_watch *watch)
{
    pthread_cond_destroy(&watch->changed);
    pthread_mutex_destroy(&watch->lock);
}

void driver_watch_me(struct driver_watch *watch) { watched = watch; }

int driver_watch_take(struct driver_watch *watch, const char *call)
{
    return atomic_compare_exchange_strong(&watch->call, &call, taken);
}

void driver_watch_release(struct driver_watch *watch)
{
    pthread_mutex_lock(&watch->lock);
    watch->released = 1;
    pthread_cond_broadcast(&watch->changed);
    pthread_mutex_unlock(&watch->lock);
}

void driver_watch_begin(const char *call)
{
    if (!watched) return;
    atomic_fetch_add(&watched->number, 1);
    atomic_store(&watched->call, call);
}

void driver_watch_end(void)
{
    if (!watched || atomic_exchange(&watched->call, NULL) != taken) return;
    pthread_mutex_lock(&watched->lock);
    while (!watched->released)
        pthread_cond_wait(&watched->changed, &watched->lock);
    pthread_mutex_unlock(&watched->lock);
}
