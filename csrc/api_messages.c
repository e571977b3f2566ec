/* The public functions for messages: arguments are checked here and nowhere else. */
#include "api.h"
#include "comm/mail.h"

static enum smfar_status post(struct smfar_comm *comm, struct mail_order *order,
                              const struct smfar_ending *ending, smfar_request **request_out)
{
    const char *what = order->receives ? "recv" : "send";
    int any = order->receives && order->peer == SMFAR_ANY_RANK;
    if (!comm) return FAIL(SMFAR_ERR_ARGUMENT, "the communicator is NULL");
    if (!any && (order->peer < 0 || order->peer >= comm->ranks))
        return FAIL(SMFAR_ERR_ARGUMENT, "%s: rank %d is not one of the %d ranks", what, order->peer,
                    comm->ranks);
    if (order->bytes && !order->buffer)
        return FAIL(SMFAR_ERR_ARGUMENT, "%s: the buffer is NULL", what);
    if (ending) order->ending = *ending;
    enum smfar_status status = api_enter_by(comm, &comm->side_lock);
    if (status != SMFAR_OK) return status;
    if (order->after) status = capture_refuse(comm, order->after, what);
    if (status == SMFAR_OK) status = mail_post(comm, order, request_out);
    api_leave_by(comm, &comm->side_lock);
    return status;
}

enum smfar_status smfar_send(const void *send, size_t bytes, int peer, int tag, smfar_comm *comm,
                             smfar_stream stream, const struct smfar_ending *ending,
                             smfar_request **request_out)
{
    struct mail_order order = {.buffer = (void *)(uintptr_t)send,
                               .bytes = bytes,
                               .peer = peer,
                               .tag = tag,
                               .after = stream};
    return post(comm, &order, ending, request_out);
}

enum smfar_status smfar_recv(void *recv, size_t bytes, int peer, int tag, smfar_comm *comm,
                             smfar_stream stream, const struct smfar_ending *ending,
                             smfar_request **request_out)
{
    struct mail_order order = {
        .buffer = recv, .bytes = bytes, .peer = peer, .receives = 1, .tag = tag, .after = stream};
    return post(comm, &order, ending, request_out);
}
