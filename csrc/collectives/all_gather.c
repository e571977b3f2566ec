/* All-gather: every rank's data to every rank. */
#include "move.h"

enum smfar_status all_gather_enqueue(struct call *call, const void *send, void *const *recv)
{
    struct move move = {.sender = EVERY_RANK, .everyone = send};
    for (int r = 0; r < call->comm->ranks; r++)
        move.from[r] = recv[r];
    return move_enqueue(call, &move);
}
