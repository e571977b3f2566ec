/* An exchange from the inside: for exchange.c, where ranks talk, and meet.c, where they find each
 * other, alone. */
#ifndef SMFAR_BOOTSTRAP_EXCHANGE_PARTS_H
#define SMFAR_BOOTSTRAP_EXCHANGE_PARTS_H

#include <stdatomic.h>

#include "exchange.h"
#include "host.h"

enum { MAGIC = 0x5f4d4653, LAYOUT = 2 }; /* raise LAYOUT when a message or the window changes */

/* What a rank says of itself in the store. */
struct hello {
    uint32_t magic, layout;
    uint64_t nonce;
    struct host_identity host;
    int32_t pid, uid;
    int32_t status; /* other than SMFAR_OK: the rank has failed and will not come; text says why */
    char text[256];
};

struct exchange {
    int rank, ranks;
    int64_t timeout_ms;
    uint32_t sequence;
    char name[sizeof(struct smfar_id)]; /* of the socket that rank 0 listens on */
    struct hello hello[SMFAR_MAX_RANKS];
    int socket[SMFAR_MAX_RANKS]; /* rank 0: one per rank; others: socket[0]; else -1 */
    _Atomic int broken;          /* enum smfar_status: ranks are no longer in step; text says why */
    char text[512];
};

/* When a wait that begins now must end. */
int64_t exchange_deadline(const struct exchange *exchange);

#endif
