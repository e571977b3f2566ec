/* Gather: every rank's data to the root. */
#include "move.h"

enum smfar_status gather_enqueue(struct call *call, const void *send, void *const *recv)
{
    struct move move = {.sender = EVERY_RANK};
    move.to[call->root] = send;
    for (int r = 0; r < call->comm->ranks && call->root == call->comm->rank; r++)
        move.from[r] = recv[r];
    return move_enqueue(call, &move);
}
