/* See work.h. */
#include "work.h"

#include <sched.h>
#include <time.h>

#include "../base/clock.h"
#include "courier.h"
#include "failure.h"

/* How a waiting thread spends its time: first giving way to whoever can run, since a collective of
 * a few kilobytes ends within microseconds, then sleeping. */
enum { YIELDS = 200, NAP_NS = 50000 };

static void raise_to(_Atomic uint64_t *word, uint64_t value)
{
    uint64_t before = atomic_load(word);
    while (before < value && !atomic_compare_exchange_weak(word, &before, value)) {
    }
}

/* A kernel that tells of the end has looked whether a rank has failed. A stream cannot look, and
 * after a failure it goes on whether or not the others have come: what it tells counts only if
 * there was no failure yet when it had told it. What has been seen so stays so, whatever follows.
 */
int work_has_ended(const struct smfar_comm *comm, uint64_t sequence)
{
    struct page_words *words = &comm->page.host->words[comm->rank];
    uint64_t done = atomic_load(&words->done), ended = page_ended(words);
    /* partner: publish() of any rank, or tell.ptxh, before any stream is let go */
    if (!atomic_load(&comm->page.host->abort)) raise_to(&words->certain, ended);
    uint64_t certain = atomic_load(&words->certain);
    return certain >= sequence || (done >= sequence && atomic_load(&words->streamed) <= certain);
}

int work_released(struct smfar_comm *comm, uint64_t sequence)
{
    if (work_has_ended(comm, sequence)) return 1;
    if (failure_check(comm) == SMFAR_OK) return 0;
    CUresult result = CUDA_ERROR_NOT_READY;
    pthread_mutex_lock(&comm->lock);
    if (comm_enter(comm) == SMFAR_OK) {
        result = comm->driver->cuStreamQuery(comm->last_stream);
        if (!courier_idle(comm)) result = CUDA_ERROR_NOT_READY;
        comm_leave(comm);
    }
    pthread_mutex_unlock(&comm->lock);
    return result == CUDA_SUCCESS;
}

/* After a failure nothing that a stream tells is believed any more: what has not been seen to be
 * done by then never will be. */
static int is_past_hope(const struct smfar_comm *comm)
{
    const struct page_words *words = &comm->page.host->words[comm->rank];
    return atomic_load(&comm->page.host->abort) &&
           atomic_load(&words->streamed) > atomic_load(&words->certain);
}

enum smfar_status work_query(struct smfar_comm *comm, uint64_t sequence)
{
    if (work_has_ended(comm, sequence)) return SMFAR_OK; /* whatever has befallen the group since */
    enum smfar_status status = failure_check_sequence(comm, sequence);
    if (status == SMFAR_OK && is_past_hope(comm)) status = failure_check(comm);
    return status == SMFAR_OK ? SMFAR_PENDING : status;
}

enum smfar_status work_wait(struct smfar_comm *comm, uint64_t sequence, int64_t timeout_ms)
{
    int64_t deadline = clock_now_ms() + timeout_ms;
    for (int tries = 0;; tries++) {
        enum smfar_status status = work_query(comm, sequence);
        if (status != SMFAR_PENDING) return status;
        if (tries < YIELDS) {
            sched_yield();
            continue;
        }
        if (clock_now_ms() >= deadline)
            return FAIL(SMFAR_ERR_TIMEOUT, "collective number %llu has not ended after %lld ms",
                        (unsigned long long)sequence, (long long)timeout_ms);
        nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
}
