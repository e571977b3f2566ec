/* Ranks as threads of one process, with a key-value store between them. */
#ifndef SMFAR_TESTS_RANKS_H
#define SMFAR_TESTS_RANKS_H

#include <pthread.h>
#include <time.h>

#include "../../csrc/smfar.h"
#include "unit.h"

enum { RANKS_KEYS = 512, RANKS_VALUE = 4096 };

/* Set once per key; `get` waits. Zero-initialised but for the two locks: ranks_store_begin. */
struct ranks_store {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int keys;
    struct {
        char key[64];
        size_t bytes;
        unsigned char value[RANKS_VALUE];
    } entry[RANKS_KEYS];
};

static inline enum smfar_status ranks_store_set(void *context, const char *key, const void *value,
                                                size_t bytes)
{
    struct ranks_store *store = context;
    pthread_mutex_lock(&store->lock);
    REQUIRE(store->keys < RANKS_KEYS && bytes <= RANKS_VALUE, "key %s does not fit", key);
    int at = store->keys++;
    snprintf(store->entry[at].key, sizeof store->entry[at].key, "%s", key);
    memcpy(store->entry[at].value, value, bytes);
    store->entry[at].bytes = bytes;
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
    return SMFAR_OK;
}

static inline int ranks_store_find(const struct ranks_store *store, const char *key)
{
    for (int i = 0; i < store->keys; i++)
        if (strcmp(store->entry[i].key, key) == 0) return i;
    return -1;
}

static inline enum smfar_status ranks_store_get(void *context, const char *key, void *value,
                                                size_t bytes, int64_t timeout_ms)
{
    struct ranks_store *store = context;
    struct timespec until;
    int late = 0, at;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000 + 1;
    pthread_mutex_lock(&store->lock);
    while ((at = ranks_store_find(store, key)) < 0 && !late)
        late = pthread_cond_timedwait(&store->changed, &store->lock, &until) != 0;
    int fits = at >= 0 && store->entry[at].bytes == bytes;
    if (fits) memcpy(value, store->entry[at].value, bytes);
    pthread_mutex_unlock(&store->lock);
    return fits ? SMFAR_OK : at < 0 ? SMFAR_ERR_TIMEOUT : SMFAR_ERR_SYSTEM;
}

static inline struct smfar_store ranks_store_begin(struct ranks_store *store)
{
    store->keys = 0;
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->changed, NULL);
    return (struct smfar_store){store, ranks_store_set, ranks_store_get};
}

static inline void must(enum smfar_status status)
{
    REQUIRE(status == SMFAR_OK, "%s: %s", smfar_status_name(status), smfar_last_error());
}

/* What every rank's thread gets; `extra` is the test's. */
struct ranks_thread {
    const struct smfar_store *store;
    int rank, ranks;
    void *extra;
    void (*body)(struct ranks_thread *me);
};

static inline void *ranks_start(void *me)
{
    ((struct ranks_thread *)me)->body(me);
    return NULL;
}

/* Runs `body` once per rank, all at once, over a fresh store, and waits for all. */
static inline void ranks_run(int ranks, void (*body)(struct ranks_thread *me), void *extra)
{
    static struct ranks_store memory;
    struct smfar_store store = ranks_store_begin(&memory);
    struct ranks_thread thread[SMFAR_MAX_RANKS];
    pthread_t id[SMFAR_MAX_RANKS];
    for (int r = 0; r < ranks; r++) {
        thread[r] = (struct ranks_thread){&store, r, ranks, extra, body};
        REQUIRE(pthread_create(&id[r], NULL, ranks_start, &thread[r]) == 0, "no thread");
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(id[r], NULL);
}

#endif
