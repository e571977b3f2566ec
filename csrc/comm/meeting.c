/* See meeting.h. */
#include "meeting.h"

#include <string.h>

#include "../base/clock.h"
#include "failure.h"

enum { MOST_OPS = SMFAR_MAX_RANKS + 4 };

/* Ahead of every number, and not so far that a cyclic comparison would call it behind. */
static const uint64_t RELEASED = 1ull << 62;

struct batch {
    struct smfar_comm *comm;
    unsigned count;
    CUstreamBatchMemOpParams ops[MOST_OPS];
};

static void add(struct batch *batch, CUstreamBatchMemOpType operation, const void *word,
                uint64_t value, unsigned flags)
{
    const struct page *page = &batch->comm->page;
    CUstreamBatchMemOpParams *op = &batch->ops[batch->count++];
    memset(op, 0, sizeof(*op));
    op->value.operation = operation;
    op->value.address = page->device + (size_t)((const char *)word - (const char *)page->host);
    op->value.value64 = value;
    op->value.flags = flags;
}

static void add_write(struct batch *batch, const void *word, uint64_t value)
{
    add(batch, CU_STREAM_MEM_OP_WRITE_VALUE_64, word, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

static void add_wait(struct batch *batch, const void *word, uint64_t value)
{
    add(batch, CU_STREAM_MEM_OP_WAIT_VALUE_64, word, value, CU_STREAM_WAIT_VALUE_GEQ);
}

static enum smfar_status enqueue(struct batch *batch, CUstream stream)
{
    enum smfar_status status;
    struct driver *driver = batch->comm->driver;
    if (batch->count) CU(cuStreamBatchMemOp, stream, batch->count, batch->ops, 0);
    return SMFAR_OK;
fail:
    return status;
}

enum smfar_status meeting_enqueue(struct call *call, const struct meeting *meeting)
{
    struct smfar_comm *comm = call->comm;
    struct page_words *words = comm->page.host->words, *mine = &words[comm->rank];
    struct batch batch = {.comm = comm};
    if (call->meetings == MEETINGS_MOST)
        return FAIL(SMFAR_ERR_UNSUPPORTED,
                    "more than %d steps in one collective: use a larger window_bytes or "
                    "chunk_bytes",
                    MEETINGS_MOST);
    uint64_t number = meeting_number(call->sequence, ++call->meetings);
    if (meeting->place) add_write(&batch, &mine->place, meeting->place);
    add_write(&batch, &mine->arrived, number);
    for (int i = 1; i < comm->ranks; i++)
        add_wait(&batch, &words[(comm->rank + i) % comm->ranks].arrived, number);
    if (meeting->last) add_write(&batch, &mine->passed, call->sequence);
    call->finished |= meeting->last;
    return enqueue(&batch, call->stream);
}

enum smfar_status meeting_carried(const struct call *call, CUstream stream, uint64_t number)
{
    struct batch batch = {.comm = call->comm};
    add_write(&batch, &call->comm->page.host->words[call->comm->rank].carried, number);
    return enqueue(&batch, stream);
}

static enum smfar_status await_carried(struct call *call, struct batch *batch, uint64_t number,
                                       int last)
{
    struct smfar_comm *comm = call->comm;
    struct page_words *words = comm->page.host->words;
    for (int i = 0; i < comm->ranks; i++)
        add_wait(batch, &words[(comm->rank + i) % comm->ranks].carried, number);
    if (last) add_write(batch, &words[comm->rank].passed, call->sequence);
    call->finished |= last;
    return enqueue(batch, call->stream);
}

enum smfar_status meeting_await_carried(struct call *call, uint64_t number, int last)
{
    struct batch batch = {.comm = call->comm};
    return await_carried(call, &batch, number, last);
}

enum smfar_status meeting_carry(struct call *call, uint64_t number, int last)
{
    struct batch batch = {.comm = call->comm};
    add_write(&batch, &call->comm->page.host->words[call->comm->rank].carried, number);
    return await_carried(call, &batch, number, last);
}

enum smfar_status meeting_sent(const struct call *call, CUstream stream, uint64_t number)
{
    struct batch batch = {.comm = call->comm};
    add_write(&batch, &call->comm->page.host->words[call->comm->rank].sent, number);
    return enqueue(&batch, stream);
}

enum smfar_status meeting_await_sent(const struct call *call, uint64_t number)
{
    const struct smfar_comm *comm = call->comm;
    struct batch batch = {.comm = call->comm};
    for (int i = 1; i < comm->ranks; i++)
        add_wait(&batch, &comm->page.host->words[(comm->rank + i) % comm->ranks].sent, number);
    return enqueue(&batch, call->stream);
}

enum smfar_status meeting_pass(struct call *call)
{
    struct smfar_comm *comm = call->comm;
    struct batch batch = {.comm = comm};
    add_write(&batch, &comm->page.host->words[comm->rank].passed, call->sequence);
    return enqueue(&batch, call->stream);
}

void meeting_release(struct smfar_comm *comm)
{
    for (int r = 0; r < comm->ranks; r++) {
        atomic_store(&comm->page.host->words[r].arrived, RELEASED);
        atomic_store(&comm->page.host->words[r].carried, RELEASED);
        atomic_store(&comm->page.host->words[r].sent, RELEASED);
    }
}

/* Are rank a's copies behind rank b's? Those of results, else those of inputs. */
static int is_behind(const struct smfar_comm *comm, int a, int b)
{
    const struct page_words *words = comm->page.host->words;
    uint64_t mine = atomic_load(&words[a].carried), theirs = atomic_load(&words[b].carried);
    if (mine != theirs) return mine < theirs;
    return atomic_load(&words[a].sent) < atomic_load(&words[b].sent);
}

/* A rank whose stream has not come to the meeting; else, of the copies that follow, the one whose
 * are the furthest behind. */
static int find_late(const struct smfar_comm *comm, uint64_t number)
{
    const struct page_words *words = comm->page.host->words;
    int late = 0;
    for (int r = 0; r < comm->ranks; r++)
        if (atomic_load(&words[r].arrived) < number) return r;
    for (int r = 1; r < comm->ranks; r++)
        if (is_behind(comm, r, late)) late = r;
    return late;
}

void meeting_check(struct smfar_comm *comm, struct meeting_watch *watch)
{
    const struct page_words *words = &comm->page.host->words[comm->rank];
    uint64_t arrived = atomic_load(&words->arrived), carried = atomic_load(&words->carried);
    int64_t now = clock_now_ms();
    if (arrived != watch->arrived || carried != watch->carried)
        *watch = (struct meeting_watch){arrived, carried, now};
    if (arrived >= RELEASED || page_ended(words) >= arrived >> 16) return;
    if (now - watch->since <= atomic_load(&comm->timeout_ms)) return;
    failure_late(comm, comm->rank, find_late(comm, arrived), arrived >> 16);
}
