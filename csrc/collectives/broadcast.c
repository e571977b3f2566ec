/* Broadcast: the root's data to every rank. */
#include "move.h"

enum smfar_status broadcast_enqueue(struct call *call, const void *send, void *recv)
{
    int root = call->root;
    struct move move = {.sender = root, .everyone = root == call->comm->rank ? send : NULL};
    move.from[root] = recv;
    return move_enqueue(call, &move);
}
