/* See lane.h. */
#include "lane.h"

struct page_pair *lane_pair(const struct smfar_comm *comm, int from, int to)
{
    return &comm->page.host->pairs[to * comm->ranks + from];
}

static enum smfar_status write_word(const struct smfar_comm *comm, CUstream stream,
                                    _Atomic uint64_t *word, uint64_t value)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    const struct page *page = &comm->page;
    CUdeviceptr at = page->device + (size_t)((char *)word - (char *)page->host);
    CU(cuStreamWriteValue64, stream, at, value, CU_STREAM_WRITE_VALUE_DEFAULT);
    return SMFAR_OK;
fail:
    return status;
}

/* One piece between the buffer and the half of the mailbox whose turn it is. */
static enum smfar_status move_piece(const struct smfar_comm *comm, CUstream stream,
                                    struct lane *lane, int from, int to)
{
    enum smfar_status status;
    struct driver *driver = comm->driver;
    struct smfar_request *request = lane->active;
    size_t half = comm->agreed.mailbox_bytes / 2, bytes = request->order.bytes - request->moved;
    CUdeviceptr box = comm->window->peer[to] + comm->window->slot + comm->agreed.chunk_bytes +
                      (size_t)from * 2 * half + lane->pieces % 2 * half;
    CUdeviceptr buffer = (CUdeviceptr)(uintptr_t)request->order.buffer + request->moved;
    struct page_pair *pair = lane_pair(comm, from, to);
    if (bytes > half) bytes = half;
    if (request->order.receives)
        CU(cuMemcpyAsync, buffer, box, bytes, stream);
    else
        CU(cuMemcpyAsync, box, buffer, bytes, stream);
    request->moved += bytes;
    lane->pieces++;
    return write_word(comm, stream, request->order.receives ? &pair->taken : &pair->full,
                      lane->pieces);
fail:
    return status;
}

int lane_move(const struct smfar_comm *comm, CUstream stream, struct lane *lane, int from, int to,
              enum smfar_status *status)
{
    struct page_pair *pair = lane_pair(comm, from, to);
    struct smfar_request *request = lane->active;
    uint64_t before = lane->pieces;
    while (*status == SMFAR_OK && request->moved < request->order.bytes) {
        uint64_t there = atomic_load_explicit(request->order.receives ? &pair->full : &pair->taken,
                                              memory_order_acquire);
        if (request->order.receives ? there == lane->pieces : lane->pieces - there >= 2) break;
        *status = move_piece(comm, stream, lane, from, to);
    }
    uint64_t mine = atomic_load_explicit(request->order.receives ? &pair->taken : &pair->full,
                                         memory_order_acquire);
    if (request->moved == request->order.bytes && mine >= lane->pieces) lane->active = NULL;
    return lane->pieces != before || !lane->active;
}
