/* See failure.h. */
#include "failure.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "../base/log.h"
#include "ring.h"

static void describe_mismatch(struct smfar_comm *comm, uint64_t sequence, char *text, size_t size)
{
    int n = snprintf(text, size, "ranks called different collectives as number %llu: ",
                     (unsigned long long)sequence);
    ring_describe_all(comm, sequence, text + n, size - (size_t)n);
}

/* What my kernel's error record says. */
static enum smfar_status describe_record(struct smfar_comm *comm, const struct error_record *record,
                                         char *text, size_t size)
{
    char mine[160];
    if (record->code == ERROR_MISMATCH) {
        describe_mismatch(comm, record->sequence, text, size);
        return SMFAR_ERR_MISMATCH;
    }
    ring_describe(comm, comm->rank, record->sequence, mine, sizeof(mine));
    if (record->code == ERROR_TIMEOUT) {
        snprintf(text, size,
                 "rank %d did not come to collective number %llu, %s on rank %d, within %lld ms",
                 (int)record->peer, (unsigned long long)record->sequence, mine, comm->rank,
                 (long long)atomic_load(&comm->timeout_ms));
        return SMFAR_ERR_TIMEOUT;
    }
    snprintf(text, size, "the group was aborted during collective number %llu, %s",
             (unsigned long long)record->sequence, mine);
    return SMFAR_ERR_ABORTED;
}

void failure_publish(struct smfar_comm *comm, enum smfar_status status, uint64_t sequence,
                     const char *text)
{
    struct page_failure *failure = &comm->page.host->failure;
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&failure->state, &none, 1)) {
        failure->status = (int32_t)status;
        failure->rank = comm->rank;
        failure->sequence = sequence;
        snprintf(failure->text, sizeof(failure->text), "%s", text);
        atomic_store_explicit(&failure->state, 2, memory_order_release);
        log_warn("%s", text);
    }
    /* the other's words are there in a moment, unless it dies over them */
    for (int i = 0; i < 1000 && atomic_load(&failure->state) != 2; i++)
        sched_yield();
    /* partner: the kernels' ld.relaxed.sys of the abort word */
    atomic_store_explicit(&comm->page.host->abort, 1, memory_order_release);
}

enum smfar_status failure_mismatch(struct smfar_comm *comm, uint64_t sequence)
{
    char text[PAGE_TEXT];
    describe_mismatch(comm, sequence, text, sizeof(text));
    failure_publish(comm, SMFAR_ERR_MISMATCH, sequence, text);
    return FAIL(SMFAR_ERR_MISMATCH, "%s", text);
}

/* My own kernel's verdict, told to the others the first time it is seen. A kernel that was merely
 * released by the abort word has nothing to add to what the page says. */
static enum smfar_status check_record(struct smfar_comm *comm, uint64_t sequence)
{
    struct error_record *record = &comm->page.host->error[comm->rank];
    uint32_t code = __atomic_load_n(&record->code, __ATOMIC_ACQUIRE);
    char text[PAGE_TEXT];
    if (code == 0 || code == ERROR_ABORTED || record->sequence > sequence) return SMFAR_OK;
    enum smfar_status status = describe_record(comm, record, text, sizeof(text));
    failure_publish(comm, status, record->sequence, text);
    return FAIL(status, "%s", text);
}

enum smfar_status failure_check_sequence(struct smfar_comm *comm, uint64_t sequence)
{
    enum smfar_status status = check_record(comm, sequence);
    if (status != SMFAR_OK) return status;
    const struct page_failure *failure = &comm->page.host->failure;
    uint32_t state = atomic_load_explicit(&failure->state, memory_order_acquire);
    if (state == 2) {
        /* what began before may still end; a kernel that was released instead has left a record */
        const struct error_record *record = &comm->page.host->error[comm->rank];
        int released = __atomic_load_n(&record->code, __ATOMIC_ACQUIRE) != 0;
        if (sequence < failure->sequence && !released) return SMFAR_OK;
        if (failure->rank == comm->rank) return FAIL(failure->status, "%s", failure->text);
        return FAIL(failure->status, "%s (found by rank %d)", failure->text, failure->rank);
    }
    if (atomic_load(&comm->page.host->abort))
        return FAIL(SMFAR_ERR_ABORTED, "the group was aborted");
    return SMFAR_OK;
}

enum smfar_status failure_check(struct smfar_comm *comm)
{
    return failure_check_sequence(comm, UINT64_MAX);
}

enum smfar_status failure_check_left(struct smfar_comm *comm, uint64_t sequence)
{
    char text[PAGE_TEXT];
    for (int r = 0; r < comm->ranks; r++) {
        struct page_words *words = &comm->page.host->words[r];
        /* a rank leaves once its own work is done: `done` is final */
        if (!atomic_load(&words->left) || atomic_load(&words->done) >= sequence) continue;
        snprintf(
            text, sizeof(text),
            "rank %d has left the group: it destroyed its communicator after collective number "
            "%llu, and rank %d called number %llu",
            r, (unsigned long long)atomic_load(&words->done), comm->rank,
            (unsigned long long)sequence);
        failure_publish(comm, SMFAR_ERR_PEER, sequence, text);
        return failure_check(comm); /* it may have left because of another failure */
    }
    return SMFAR_OK;
}
