/* All-to-all: a part of every rank's data to every rank, with parts of one size or each of its own.
 */
#include "../comm/capture.h"
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

enum smfar_status all_to_all_v_enqueue(struct call *call, const void *const *send,
                                       const size_t *send_count, void *const *recv,
                                       const size_t *recv_count)
{
    struct move move = {.sender = EVERY_RANK, .uneven = 1};
    size_t element = dtype_bytes(call->dtype);
    enum smfar_status status =
        capture_refuse(call->comm, call->stream, "all_to_all with a size for each pair of ranks");
    if (status != SMFAR_OK) return status;
    for (int r = 0; r < call->comm->ranks; r++) {
        move.to[r] = send[r];
        move.from[r] = recv[r];
        move.to_bytes[r] = send_count[r] * element;
        move.from_bytes[r] = recv_count[r] * element;
    }
    return move_enqueue(call, &move);
}
