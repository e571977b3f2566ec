/* See failure.h. */
#include "failure.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../base/log.h"
#include "capture.h"
#include "meeting.h"
#include "ring.h"

static void describe_mismatch(struct smfar_comm *comm, uint64_t sequence, char *text, size_t size)
{
    int n = snprintf(text, size, "ranks called different collectives as number %llu: ",
                     (unsigned long long)sequence);
    ring_describe_all(comm, sequence, text + n, size - (size_t)n);
}

static void describe_late(struct smfar_comm *comm, int finder, int late, uint64_t sequence,
                          char *text, size_t size)
{
    char call[160];
    ring_describe(comm, finder, sequence, call, sizeof(call));
    snprintf(text, size,
             "rank %d did not come to collective number %llu, %s on rank %d, within %lld ms", late,
             (unsigned long long)sequence, call, finder, (long long)atomic_load(&comm->timeout_ms));
}

/* What it says of a collective that a graph has replayed. Calls are told by their hashes: ranks
 * capture alike. */
static enum smfar_status describe_replay(struct smfar_comm *comm, int rank,
                                         const struct error_record *record, char *text, size_t size)
{
    char mine[160], theirs[160];
    capture_describe(comm, record->mine, mine, sizeof(mine));
    capture_describe(comm, record->theirs, theirs, sizeof(theirs));
    if (record->code == ERROR_MISMATCH) {
        snprintf(text, size, "graphs replayed different collectives: rank %d %s; rank %d %s", rank,
                 mine, (int)record->peer, theirs);
        return SMFAR_ERR_MISMATCH;
    }
    if (record->code == ERROR_OVERLAP) {
        snprintf(
            text, size,
            "two graphs with collectives of this group ran at the same time on rank %d, one of "
            "them with %s: launch them on one stream, order their streams by events, or use "
            "another group for one of them",
            rank, mine);
        return SMFAR_ERR_UNSUPPORTED;
    }
    snprintf(text, size,
             "rank %d did not come to %s, which a graph replayed on rank %d, within the deadline "
             "of the capture",
             (int)record->peer, mine, rank);
    return SMFAR_ERR_TIMEOUT;
}

/* What the error record of rank `rank`'s kernel says. */
static enum smfar_status describe_record(struct smfar_comm *comm, int rank,
                                         const struct error_record *record, char *text, size_t size)
{
    if (record->sequence == CAPTURE_SEQUENCE)
        return describe_replay(comm, rank, record, text, size);
    if (record->code == ERROR_MISMATCH) {
        describe_mismatch(comm, record->sequence, text, size);
        return SMFAR_ERR_MISMATCH;
    }
    describe_late(comm, rank, (int)record->peer, record->sequence, text, size);
    return SMFAR_ERR_TIMEOUT;
}

/* Another rank's words are there in a moment, unless it dies over them, or a busy machine lets
 * others run meanwhile. Whoever has waited in vain has done so for all. */
static void await_words(struct page_failure *failure)
{
    uint32_t writing = 1;
    for (int i = 0; i < 5000 && atomic_load(&failure->state) == 1; i++)
        nanosleep(&(struct timespec){0, 100000}, NULL);
    atomic_compare_exchange_strong(&failure->state, &writing, 3);
}

/* `finder`: the rank that noticed. */
static void publish(struct smfar_comm *comm, int finder, enum smfar_status status,
                    uint64_t sequence, const char *text)
{
    struct page_failure *failure = &comm->page.host->failure;
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&failure->state, &none, 1)) {
        failure->status = (int32_t)status;
        failure->rank = finder;
        failure->sequence = sequence;
        snprintf(failure->text, sizeof(failure->text), "%s", text);
        atomic_store_explicit(&failure->state, 2, memory_order_release);
        log_warn("%s", text);
    }
    await_words(failure);
    /* partner: the kernels' ld.relaxed.sys of the abort word */
    atomic_store_explicit(&comm->page.host->abort, 1, memory_order_release);
    meeting_release(comm);
}

void failure_publish(struct smfar_comm *comm, enum smfar_status status, uint64_t sequence,
                     const char *text)
{
    publish(comm, comm->rank, status, sequence, text);
}

enum smfar_status failure_late(struct smfar_comm *comm, int finder, int late, uint64_t sequence)
{
    char text[PAGE_TEXT];
    describe_late(comm, finder, late, sequence, text, sizeof(text));
    failure_publish(comm, SMFAR_ERR_TIMEOUT, sequence, text);
    return FAIL(SMFAR_ERR_TIMEOUT, "%s", text);
}

enum smfar_status failure_mismatch(struct smfar_comm *comm, uint64_t sequence)
{
    char text[PAGE_TEXT];
    describe_mismatch(comm, sequence, text, sizeof(text));
    failure_publish(comm, SMFAR_ERR_MISMATCH, sequence, text);
    return FAIL(SMFAR_ERR_MISMATCH, "%s", text);
}

/* A kernel that fails sets the abort word itself. Whichever host sees that first tells what the
 * kernels' records say; those of kernels that were merely released say nothing. */
static void publish_records(struct smfar_comm *comm)
{
    char text[PAGE_TEXT];
    for (int r = 0; r < comm->ranks; r++) {
        struct error_record *record = &comm->page.host->error[r];
        if (__atomic_load_n(&record->code, __ATOMIC_ACQUIRE) == 0) continue;
        enum smfar_status status = describe_record(comm, r, record, text, sizeof(text));
        /* which of the called ones the replay came before, nobody knows */
        uint64_t sequence = record->sequence == CAPTURE_SEQUENCE ? 0 : record->sequence;
        publish(comm, r, status, sequence, text);
        return;
    }
}

/* Nothing has happened yet to this collective of my own: it began before the one that failed, and
 * may still end well. */
static int may_end(const struct smfar_comm *comm, uint64_t sequence)
{
    const struct host_page *page = comm->page.host;
    uint64_t released = atomic_load(&page->words[comm->rank].released);
    if (released) return released != CAPTURE_SEQUENCE && sequence < released;
    return atomic_load(&page->failure.state) == 2 && sequence < page->failure.sequence;
}

enum smfar_status failure_check_sequence(struct smfar_comm *comm, uint64_t sequence)
{
    struct page_failure *failure = &comm->page.host->failure;
    /* partner: tell.ptxh, or publish() of any rank */
    if (!atomic_load_explicit(&comm->page.host->abort, memory_order_acquire)) return SMFAR_OK;
    if (atomic_load(&failure->state) == 0) publish_records(comm);
    await_words(failure);
    if (may_end(comm, sequence)) return SMFAR_OK;
    if (atomic_load(&failure->state) != 2) return FAIL(SMFAR_ERR_ABORTED, "the group was aborted");
    if (failure->rank == comm->rank) return FAIL(failure->status, "%s", failure->text);
    return FAIL(failure->status, "%s (found by rank %d)", failure->text, failure->rank);
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
        /* a rank leaves once its own work is done: its words are final */
        if (!atomic_load(&words->left) || page_ended(words) >= sequence) continue;
        snprintf(
            text, sizeof(text),
            "rank %d has left the group: it destroyed its communicator, or came to the end of its "
            "program, after collective number %llu, and rank %d called number %llu",
            r, (unsigned long long)page_ended(words), comm->rank, (unsigned long long)sequence);
        failure_publish(comm, SMFAR_ERR_PEER, sequence, text);
        return failure_check(comm); /* it may have left because of another failure */
    }
    return SMFAR_OK;
}
