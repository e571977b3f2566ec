/* A message under way, as its owner and the thread that carries it see it. */
#ifndef SMFAR_COMM_REQUEST_H
#define SMFAR_COMM_REQUEST_H

#include "mail.h"

struct smfar_request {
    struct mail_order order;
    struct smfar_request *next; /* in the order of the calls; the carrier's */
    CUevent ready;              /* recorded on order.after, or NULL */
    int is_ready;
    int64_t deadline; /* set once it is ready */
    uint64_t number;  /* of a send that was announced, else 0 */
    int started;      /* its pieces are on the way */
    size_t moved;     /* bytes whose copies were enqueued */

    _Atomic int owners;
    int peer;           /* set before `status` */
    _Atomic int status; /* SMFAR_PENDING until it has ended */
    char text[PAGE_TEXT];
};

/* With `owners` of which each calls smfar_request_free. NULL without memory. */
struct smfar_request *request_create(const struct mail_order *order, int owners);

/* Tells the owner, calls `ended`, and gives up the carrier's part. */
void request_end(struct smfar_request *request, enum smfar_status status, const char *text);

#endif
