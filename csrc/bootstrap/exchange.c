/* See exchange.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "exchange_parts.h"
#include "fdpass.h"

enum {
    TELL_MS = 1000, /* for telling one rank of a failure */
    GRACE_MS = 1000 /* others wait so much longer: rank 0 knows, and tells, who is missing */
};

/* Begins every message between a rank and rank 0. With a status, its text follows instead of the
 * payload. */
struct header {
    uint32_t magic, sequence;
    uint32_t status, bytes;
};

int exchange_rank(const struct exchange *exchange) { return exchange->rank; }
int exchange_ranks(const struct exchange *exchange) { return exchange->ranks; }
pid_t exchange_pid(const struct exchange *exchange, int rank) { return exchange->hello[rank].pid; }

int64_t exchange_deadline(const struct exchange *ex) { return clock_now_ms() + ex->timeout_ms; }

/* ---- relaying ---- */

enum smfar_status exchange_known_status(int64_t status)
{
    int known = status == SMFAR_OK || (status >= SMFAR_ERR_ARGUMENT && status <= SMFAR_ERR_ABORTED);
    return known ? (enum smfar_status)status : SMFAR_ERR_PEER;
}

/* Whom a broken or silent connection leads to. */
static enum smfar_status name_peer(const struct exchange *ex, int peer, enum smfar_status status)
{
    if (status == SMFAR_ERR_PEER) return FAIL(status, "rank %d has gone", peer);
    if (status == SMFAR_ERR_TIMEOUT)
        return FAIL(status, "rank %d did not answer within %lld ms", peer,
                    (long long)ex->timeout_ms);
    return status;
}

static enum smfar_status send_message(struct exchange *ex, int to, enum smfar_status status,
                                      const void *data, size_t bytes, const int *fds, int count,
                                      int64_t deadline)
{
    struct header header = {MAGIC, ex->sequence, (uint32_t)status, (uint32_t)bytes};
    enum smfar_status result =
        fdpass_send(ex->socket[to], &header, sizeof(header), fds, count, deadline);
    if (result == SMFAR_OK && bytes)
        result = fdpass_send(ex->socket[to], data, bytes, NULL, 0, deadline);
    return name_peer(ex, to, result);
}

/* A message that carries a failure: its text becomes this rank's error. */
static enum smfar_status receive_failure(struct exchange *ex, int from, const struct header *header,
                                         int64_t deadline)
{
    char text[512] = "";
    if (header->bytes >= sizeof(text)) return FAIL(SMFAR_ERR_PEER, "a broken message came");
    enum smfar_status status =
        fdpass_receive(ex->socket[from], text, header->bytes, NULL, 0, deadline);
    if (status != SMFAR_OK) return name_peer(ex, from, status);
    return FAIL(exchange_known_status(header->status), "%s", text);
}

static enum smfar_status receive_message(struct exchange *ex, int from, void *data, size_t bytes,
                                         int *fds, int count, int64_t deadline)
{
    struct header header = {0};
    if (from == 0) deadline += GRACE_MS;
    enum smfar_status status =
        fdpass_receive(ex->socket[from], &header, sizeof(header), fds, count, deadline);
    /* a failure comes without the descriptors that were due, and with a text to be taken */
    if (header.magic == MAGIC && header.status != SMFAR_OK)
        return receive_failure(ex, from, &header, deadline);
    if (status != SMFAR_OK) return name_peer(ex, from, status);
    if (header.magic != MAGIC || header.sequence != ex->sequence || header.bytes != bytes)
        return FAIL(SMFAR_ERR_MISMATCH,
                    "rank %d is at another step (%u, %u bytes) than rank %d (%u, %zu bytes)", from,
                    header.sequence, header.bytes, ex->rank, ex->sequence, bytes);
    if (bytes) status = fdpass_receive(ex->socket[from], data, bytes, NULL, 0, deadline);
    return name_peer(ex, from, status);
}

/* Tells everybody that this rank reaches and that can still hear. */
static void tell_failure(struct exchange *ex, enum smfar_status status, const char *text)
{
    int last = ex->rank == 0 ? ex->ranks - 1 : 0;
    for (int r = ex->rank == 0 ? 1 : 0; r <= last; r++)
        if (ex->socket[r] >= 0)
            send_message(ex, r, status, text, strlen(text), NULL, 0, clock_now_ms() + TELL_MS);
}

enum smfar_status exchange_break(struct exchange *ex, enum smfar_status status)
{
    if (!atomic_load(&ex->broken)) {
        snprintf(ex->text, sizeof(ex->text), "%s", smfar_last_error());
        tell_failure(ex, status, ex->text);
        atomic_store(&ex->broken, (int)status);
    }
    return FAIL(status, "%s", ex->text);
}

int exchange_broken(const struct exchange *ex) { return atomic_load(&ex->broken) != SMFAR_OK; }

/* Begins a collective function: refused once ranks are out of step. */
static enum smfar_status begin_step(struct exchange *ex, int64_t *deadline_out)
{
    if (exchange_broken(ex)) return FAIL((enum smfar_status)ex->broken, "%s", ex->text);
    ex->sequence++;
    *deadline_out = exchange_deadline(ex);
    return SMFAR_OK;
}

/* Collective: all[r] is rank r's block, all_fds[r] its descriptor (or NULL when none travel). After
 * a failure the other ranks' messages are still taken, so that the next exchange is in step. */
static enum smfar_status collect_at_first(struct exchange *ex, size_t bytes, char *all,
                                          int *all_fds, int64_t deadline)
{
    enum smfar_status first = SMFAR_OK;
    char text[512];
    for (int r = 1; r < ex->ranks; r++) {
        char *block = all ? all + bytes * (size_t)r : NULL;
        int *fd = all_fds ? all_fds + r : NULL;
        enum smfar_status status = receive_message(ex, r, block, bytes, fd, fd ? 1 : 0, deadline);
        if (status == SMFAR_OK || first != SMFAR_OK) continue;
        first = status;
        snprintf(text, sizeof(text), "%s", smfar_last_error());
    }
    return first == SMFAR_OK ? SMFAR_OK : FAIL(first, "%s", text);
}

static enum smfar_status gather(struct exchange *ex, const void *mine, size_t bytes, char *all,
                                int64_t deadline)
{
    size_t total = bytes * (size_t)ex->ranks;
    enum smfar_status status;
    memmove(all + bytes * (size_t)ex->rank, mine, bytes);
    if (ex->rank != 0) {
        status = send_message(ex, 0, SMFAR_OK, mine, bytes, NULL, 0, deadline);
        if (status != SMFAR_OK && status != SMFAR_ERR_PEER) return status;
        return receive_message(ex, 0, all, total, NULL, 0, deadline); /* why it left, maybe */
    }
    status = collect_at_first(ex, bytes, all, NULL, deadline);
    for (int r = 1; r < ex->ranks && status == SMFAR_OK; r++)
        status = send_message(ex, r, SMFAR_OK, all, total, NULL, 0, deadline);
    return status;
}

enum smfar_status exchange_all_gather(struct exchange *ex, const void *mine, size_t bytes,
                                      void *all_out)
{
    int64_t deadline;
    enum smfar_status status = begin_step(ex, &deadline);
    if (status != SMFAR_OK) return status;
    status = gather(ex, mine, bytes, all_out, deadline);
    return status == SMFAR_OK ? status : exchange_break(ex, status);
}

/* ---- descriptors ---- */

static enum smfar_status spread_descriptors(struct exchange *ex, int fd, int *fds, int64_t deadline)
{
    enum smfar_status status;
    if (ex->rank != 0) {
        status = send_message(ex, 0, SMFAR_OK, NULL, 0, &fd, 1, deadline);
        if (status == SMFAR_OK || status == SMFAR_ERR_PEER)
            status = receive_message(ex, 0, NULL, 0, fds, ex->ranks, deadline);
        if (status == SMFAR_OK) close(fds[ex->rank]), fds[ex->rank] = -1;
        return status;
    }
    status = collect_at_first(ex, 0, NULL, fds, deadline);
    fds[0] = fd;
    for (int r = 1; r < ex->ranks && status == SMFAR_OK; r++)
        status = send_message(ex, r, SMFAR_OK, NULL, 0, fds, ex->ranks, deadline);
    fds[0] = -1;
    return status;
}

/* For want of free descriptors a rank fails alone, but in step: the vote that follows tells. */
static enum smfar_status end_descriptors(struct exchange *ex, enum smfar_status status)
{
    char text[512];
    if (status != SMFAR_ERR_SYSTEM) return exchange_break(ex, status);
    snprintf(text, sizeof(text), "%s", smfar_last_error());
    if (ex->rank == 0) tell_failure(ex, status, text);
    return FAIL(status, "%s", text);
}

enum smfar_status exchange_descriptors(struct exchange *ex, int fd, int *fds_out)
{
    int64_t deadline;
    for (int r = 0; r < ex->ranks; r++)
        fds_out[r] = -1;
    enum smfar_status status = begin_step(ex, &deadline);
    if (status != SMFAR_OK) return status;
    status = spread_descriptors(ex, fd, fds_out, deadline);
    if (status == SMFAR_OK) return status;
    for (int r = 0; r < ex->ranks; r++)
        if (fds_out[r] >= 0) close(fds_out[r]), fds_out[r] = -1;
    return end_descriptors(ex, status);
}

enum smfar_status exchange_descriptor(struct exchange *ex, int fd, int *fd_out)
{
    int64_t deadline;
    *fd_out = -1;
    enum smfar_status status = begin_step(ex, &deadline);
    if (status != SMFAR_OK) return status;
    if (ex->rank != 0) status = receive_message(ex, 0, NULL, 0, fd_out, 1, deadline);
    for (int r = 1; ex->rank == 0 && r < ex->ranks && status == SMFAR_OK; r++)
        status = send_message(ex, r, SMFAR_OK, NULL, 0, &fd, 1, deadline);
    return status == SMFAR_OK ? status : end_descriptors(ex, status);
}

void exchange_destroy(struct exchange *ex)
{
    if (!ex) return;
    for (int r = 0; r < SMFAR_MAX_RANKS; r++)
        if (ex->socket[r] >= 0) close(ex->socket[r]);
    free(ex);
}

void exchange_interrupt(struct exchange *ex)
{
    for (int r = 0; r < ex->ranks; r++)
        if (ex->socket[r] >= 0) shutdown(ex->socket[r], SHUT_RDWR);
}
