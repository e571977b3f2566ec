/* Deferred freeing for what running operations read without a lock: tables of ranges and the
 * mapped copies behind a multicast address. Not reference counting: an operation enters once, and
 * nothing that was retired after that is freed until it leaves. */
#include <stdlib.h>

#include "soft_internal.h"

struct retired {
    struct retired *next;
    uint64_t epoch;
    void (*dispose)(void *argument);
    void *argument;
};

static struct {
    pthread_mutex_t lock;
    uint64_t epoch;
    struct reader *readers;
    struct retired *retired; /* newest first */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .epoch = 1};

void reader_enter(struct reader *reader)
{
    pthread_mutex_lock(&state.lock);
    reader->epoch = state.epoch;
    reader->next = state.readers;
    reader->link = &state.readers;
    if (reader->next) reader->next->link = &reader->next;
    state.readers = reader;
    pthread_mutex_unlock(&state.lock);
}

/* Unlinks what no reader can still see: all that was retired before the oldest reader entered. */
static struct retired *take_unread(void)
{
    uint64_t oldest = UINT64_MAX;
    for (struct reader *reader = state.readers; reader; reader = reader->next)
        if (reader->epoch < oldest) oldest = reader->epoch;
    struct retired **link = &state.retired;
    while (*link && (*link)->epoch >= oldest)
        link = &(*link)->next;
    struct retired *unread = *link;
    *link = NULL;
    return unread;
}

static void dispose_all(struct retired *unread)
{
    while (unread) {
        struct retired *next = unread->next;
        unread->dispose(unread->argument);
        free(unread);
        unread = next;
    }
}

void reader_leave(struct reader *reader)
{
    pthread_mutex_lock(&state.lock);
    *reader->link = reader->next;
    if (reader->next) reader->next->link = reader->link;
    struct retired *unread = state.retired ? take_unread() : NULL;
    pthread_mutex_unlock(&state.lock);
    dispose_all(unread);
}

void retire(void (*dispose)(void *argument), void *argument)
{
    struct retired *item = malloc(sizeof *item);
    if (!item) return; /* leaked rather than freed under a reader */
    item->dispose = dispose;
    item->argument = argument;
    pthread_mutex_lock(&state.lock);
    item->epoch = state.epoch++;
    item->next = state.retired;
    state.retired = item;
    struct retired *unread = take_unread();
    pthread_mutex_unlock(&state.lock);
    dispose_all(unread);
}
