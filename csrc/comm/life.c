/* See life.h. */
#include "life.h"

#include <errno.h>
#include <unistd.h>

#include "../base/clock.h"

static struct page_life *life_of(const struct smfar_comm *comm, int rank)
{
    return &comm->page.host->life[rank];
}

void life_hold(struct smfar_comm *comm)
{
    struct page_life *life = life_of(comm, comm->rank);
    pthread_mutex_lock(&life->held);
    atomic_store(&life->state, LIFE_HELD);
}

void life_release(struct smfar_comm *comm)
{
    struct page_life *life = life_of(comm, comm->rank);
    atomic_store(&life->state, LIFE_NONE);
    pthread_mutex_unlock(&life->held);
}

int life_has_ended(struct smfar_comm *comm, int rank)
{
    struct page_life *life = life_of(comm, rank);
    uint32_t state = atomic_load(&life->state);
    if (state != LIFE_HELD) return state == LIFE_ENDED;
    int code = pthread_mutex_trylock(&life->held);
    if (code == EOWNERDEAD) { /* told to one watchdog alone, which marks it for the others */
        atomic_store(&life->state, LIFE_ENDED);
        pthread_mutex_consistent(&life->held);
    }
    if (code == EOWNERDEAD || code == 0) pthread_mutex_unlock(&life->held);
    return code == EOWNERDEAD;
}

/* A rank that has failed ends its kernels without marking them done, and says so when it leaves. A
 * stream that has passed a collective has passed its copies too, whatever let it go: see
 * courier_deliver. */
static int is_quiet(const struct smfar_comm *comm, int rank)
{
    const struct page_words *words = &comm->page.host->words[rank];
    uint32_t left = atomic_load(&words->left);
    if (atomic_load(&life_of(comm, rank)->state) == LIFE_ENDED || left == LEFT_QUIET) return 1;
    if (atomic_load(&words->graphs)) return 0; /* which may be replayed at any time */
    return left == LEFT_NOT && page_ended(words) >= atomic_load(&words->begun);
}

int life_wait_quiet(struct smfar_comm *comm, int64_t timeout_ms)
{
    int64_t deadline = clock_now_ms() + timeout_ms;
    for (int r = 0; r < comm->ranks; r++)
        while (!is_quiet(comm, r)) {
            if (clock_now_ms() >= deadline) return 0;
            usleep(1000);
        }
    return 1;
}
