/* See request.h. */
#include "request.h"

#include <stdio.h>
#include <stdlib.h>

#include "../base/clock.h"
#include "../base/thread.h"

enum { YIELDS = 200 };

struct smfar_request *request_create(const struct mail_order *order, int owners)
{
    struct smfar_request *request = calloc(1, sizeof(*request));
    if (!request) return NULL;
    request->order = *order;
    request->peer = order->peer;
    request->is_ready = !order->after;
    atomic_store(&request->status, SMFAR_PENDING);
    atomic_store(&request->owners, owners);
    return request;
}

void request_end(struct smfar_request *request, enum smfar_status status, const char *text)
{
    struct smfar_ending ending = request->order.ending;
    snprintf(request->text, sizeof(request->text), "%s", text);
    atomic_store_explicit(&request->status, (int)status, memory_order_release);
    if (ending.ended) ending.ended(ending.context);
    smfar_request_free(request);
}

enum smfar_status smfar_request_query(const smfar_request *request)
{
    if (!request) return FAIL(SMFAR_ERR_ARGUMENT, "the request is NULL");
    int status = atomic_load_explicit(&request->status, memory_order_acquire);
    if (status == SMFAR_OK || status == SMFAR_PENDING) return (enum smfar_status)status;
    return FAIL((enum smfar_status)status, "%s", request->text);
}

enum smfar_status smfar_request_wait(const smfar_request *request, int64_t timeout_ms)
{
    int64_t deadline = timeout_ms < 0 ? INT64_MAX : clock_now_ms() + timeout_ms;
    for (int tries = 0;; tries++) {
        enum smfar_status status = smfar_request_query(request);
        if (status != SMFAR_PENDING) return status;
        if (clock_now_ms() >= deadline)
            return FAIL(SMFAR_ERR_TIMEOUT, "a message of %zu bytes has not %s after %lld ms",
                        request->order.bytes, request->order.receives ? "come" : "been taken",
                        (long long)timeout_ms);
        thread_rest(tries, YIELDS);
    }
}

int smfar_request_peer(const smfar_request *request) { return request->peer; }

void smfar_request_free(smfar_request *request)
{
    if (request && atomic_fetch_sub(&request->owners, 1) == 1) free(request);
}
