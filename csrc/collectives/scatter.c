/* Scatter: to every rank a part of the root's data. */
#include "move.h"

enum smfar_status scatter_enqueue(struct call *call, const void *const *send, void *recv)
{
    struct move move = {.sender = call->root};
    for (int r = 0; r < call->comm->ranks && call->root == call->comm->rank; r++)
        move.to[r] = send[r];
    move.from[call->root] = recv;
    return move_enqueue(call, &move);
}
