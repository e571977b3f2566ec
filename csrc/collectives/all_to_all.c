/* All-to-all: a part of every rank's data to every rank. With parts of one size all ranks know how
 * many steps there are; otherwise the pairs exchange messages, and the stream waits for them. */
#include <stdlib.h>
#include <string.h>

#include "../comm/capture.h"
#include "../comm/mail.h"
#include "move.h"

enum smfar_status all_to_all_enqueue(struct call *call, const void *const *send, void *const *recv)
{
    struct move move = {.sender = EVERY_RANK};
    for (int r = 0; r < call->comm->ranks; r++) {
        move.to[r] = send[r];
        move.from[r] = recv[r];
    }
    return move_enqueue(call, &move);
}

/* The messages of one call: whichever ends last lets the stream go on. After a failure the stream
 * goes on, too, but mail.c has told the kernels, and the last one does not mark the call done. */
struct messages {
    struct smfar_comm *comm;
    uint64_t sequence;
    _Atomic int left;
};

static void end_one(void *context)
{
    struct messages *messages = context;
    struct smfar_comm *comm = messages->comm;
    if (atomic_fetch_sub(&messages->left, 1) != 1) return;
    /* partner: await_peer.ptx */
    atomic_store(&comm->page.host->words[comm->rank].served, messages->sequence);
    free(messages);
}

static enum smfar_status post(const struct call *call, struct messages *messages,
                              const void *buffer, size_t bytes, int peer, int receives)
{
    struct mail_order order = {.buffer = (void *)(uintptr_t)buffer,
                               .bytes = bytes,
                               .peer = peer,
                               .receives = receives,
                               .key = mail_collective_key(call->sequence),
                               .gate = call->sequence,
                               .ending = {end_one, messages}};
    atomic_fetch_add(&messages->left, 1);
    enum smfar_status status = mail_post(call->comm, &order, NULL);
    if (status != SMFAR_OK) atomic_fetch_sub(&messages->left, 1);
    return status;
}

/* Also for pairs that have nothing to exchange, so that their counts are compared. */
static enum smfar_status post_all(const struct call *call, struct messages *messages,
                                  const void *const *send, const size_t *send_count,
                                  void *const *recv, const size_t *recv_count)
{
    enum smfar_status status;
    int rank = call->comm->rank, ranks = call->comm->ranks;
    size_t element = dtype_bytes(call->dtype);
    for (int i = 1; i < ranks; i++) {
        int to = (rank + i) % ranks, from = (rank + ranks - i) % ranks;
        TRY(post(call, messages, send[to], send_count[to] * element, to, 0));
        TRY(post(call, messages, recv[from], recv_count[from] * element, from, 1));
    }
    return SMFAR_OK;
fail:
    return status;
}

/* The stream lets the messages begin, and waits for them. */
static enum smfar_status await_messages(struct call *call)
{
    enum smfar_status status;
    struct kargs args;
    struct smfar_comm *comm = call->comm;
    struct driver *driver = comm->driver;
    const struct page_words *words = &comm->page.host->words[comm->rank];
    CUdeviceptr at = comm->page.device + (size_t)((const char *)words - (char *)comm->page.host);
    CU(cuStreamWriteValue64, call->stream, at + offsetof(struct page_words, gate), call->sequence,
       CU_STREAM_WRITE_VALUE_DEFAULT);
    memset(&args, 0, sizeof(args));
    return channel_launch(call, KERNEL_await_peer, 1, 32, 1, &args);
fail:
    return status;
}

static enum smfar_status exchange(struct call *call, const void *const *send,
                                  const size_t *send_count, void *const *recv,
                                  const size_t *recv_count)
{
    enum smfar_status status;
    int rank = call->comm->rank;
    struct messages *messages = calloc(1, sizeof(*messages));
    if (!messages) return FAIL(SMFAR_ERR_MEMORY, "no memory for the messages of an all_to_all");
    messages->comm = call->comm;
    messages->sequence = call->sequence;
    atomic_store(&messages->left, 1); /* this function, until all are posted */
    TRY(channel_barrier(call, 0));    /* ranks that call something else are found here */
    TRY(copy_outside(call, recv[rank], send[rank], recv_count[rank] * dtype_bytes(call->dtype)));
    TRY(post_all(call, messages, send, send_count, recv, recv_count));
    status = await_messages(call);
fail:
    end_one(messages);
    return status;
}

enum smfar_status all_to_all_v_enqueue(struct call *call, const void *const *send,
                                       const size_t *send_count, void *const *recv,
                                       const size_t *recv_count)
{
    const struct planned *planned;
    uint64_t bytes = 0;
    enum smfar_status status =
        capture_refuse(call->comm, call->stream, "all_to_all with a size for each pair of ranks");
    if (status == SMFAR_OK) status = collective_begin(call, &planned);
    if (status != SMFAR_OK) return status;
    for (int r = 0; r < call->comm->ranks; r++)
        bytes += recv_count[r] * dtype_bytes(call->dtype);
    collective_count(planned, bytes, bytes);
    return channel_end(call, exchange(call, send, send_count, recv, recv_count));
}
