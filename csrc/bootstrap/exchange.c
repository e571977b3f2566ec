/* See exchange.h. */
#include "exchange.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../base/log.h"
#include "fdpass.h"
#include "host.h"

enum { MAGIC = 0x5f4d4653, LAYOUT = 1 }; /* raise LAYOUT when a message or the window changes */
enum {
    TELL_MS = 1000,    /* for telling one rank of a failure */
    REFUSAL_MS = 2000, /* how long rank 0 waits for those whom it must refuse */
    GRACE_MS = 1000    /* others wait so much longer: rank 0 knows, and tells, who is missing */
};

/* What a rank says of itself in the store. */
struct hello {
    uint32_t magic, layout;
    uint64_t nonce;
    struct host_identity host;
    int32_t pid, uid;
};

/* Begins every message between a rank and rank 0. With a status, its text follows instead of the
 * payload. */
struct header {
    uint32_t magic, sequence;
    uint32_t status, bytes;
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

int exchange_rank(const struct exchange *exchange) { return exchange->rank; }
int exchange_ranks(const struct exchange *exchange) { return exchange->ranks; }
pid_t exchange_pid(const struct exchange *exchange, int rank) { return exchange->hello[rank].pid; }

static int64_t new_deadline(const struct exchange *ex) { return fdpass_now() + ex->timeout_ms; }

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
    struct header header;
    if (from == 0) deadline += GRACE_MS;
    enum smfar_status status =
        fdpass_receive(ex->socket[from], &header, sizeof(header), fds, count, deadline);
    if (status != SMFAR_OK) return name_peer(ex, from, status);
    if (header.magic == MAGIC && header.status != SMFAR_OK)
        return receive_failure(ex, from, &header, deadline);
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
            send_message(ex, r, status, text, strlen(text), NULL, 0, fdpass_now() + TELL_MS);
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
    *deadline_out = new_deadline(ex);
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

/* ---- finding each other ---- */

static enum smfar_status describe_myself(struct exchange *ex)
{
    struct hello *mine = &ex->hello[ex->rank];
    mine->magic = MAGIC;
    mine->layout = LAYOUT;
    mine->pid = (int32_t)getpid();
    mine->uid = (int32_t)geteuid();
    if (getrandom(&mine->nonce, sizeof(mine->nonce), 0) != sizeof(mine->nonce))
        return FAIL_ERRNO("getrandom");
    host_identify(&mine->host);
    return SMFAR_OK;
}

/* Where rank 0 listens, for ranks that know its hello. */
static void name_socket(struct exchange *ex)
{
    snprintf(ex->name, sizeof(ex->name), "smfar-%016llx", (unsigned long long)ex->hello[0].nonce);
}

static enum smfar_status listen_if_first(struct exchange *ex)
{
    return ex->rank == 0 ? fdpass_listen(ex->name, SMFAR_MAX_RANKS, &ex->socket[0]) : SMFAR_OK;
}

static enum smfar_status say_hello(struct exchange *ex, const struct smfar_store *store)
{
    if (ex->rank == 0) name_socket(ex);
    enum smfar_status status = listen_if_first(ex);
    if (status != SMFAR_OK) return status;
    char key[32];
    snprintf(key, sizeof(key), "hello/%d", ex->rank);
    return store->set(store->context, key, &ex->hello[ex->rank], sizeof(ex->hello[0]));
}

/* What came from others may be anything. */
static void terminate_names(struct exchange *ex)
{
    for (int r = 0; r < ex->ranks; r++)
        ex->hello[r].host.name[sizeof(ex->hello[r].host.name) - 1] = 0;
}

static enum smfar_status hear_others(struct exchange *ex, const struct smfar_store *store)
{
    int64_t deadline = new_deadline(ex);
    for (int r = 0; r < ex->ranks; r++) {
        char key[32];
        if (r == ex->rank) continue;
        snprintf(key, sizeof(key), "hello/%d", r);
        int64_t left = deadline - fdpass_now();
        enum smfar_status status = store->get(store->context, key, &ex->hello[r],
                                              sizeof(ex->hello[r]), left > 0 ? left : 0);
        if (status == SMFAR_ERR_TIMEOUT)
            return FAIL(status, "rank %d did not come within %lld ms", r,
                        (long long)ex->timeout_ms);
        if (status != SMFAR_OK)
            return FAIL(status, "the store failed while waiting for rank %d", r);
    }
    terminate_names(ex);
    return SMFAR_OK;
}

/* Every rank sees the same table, so every rank comes to the same verdict. */
static enum smfar_status check_hellos(const struct exchange *ex)
{
    const struct hello *first = &ex->hello[0];
    for (int r = 0; r < ex->ranks; r++) {
        const struct hello *other = &ex->hello[r];
        if (other->magic != MAGIC || other->layout != LAYOUT)
            return FAIL(SMFAR_ERR_UNSUPPORTED, "rank %d runs another version of smfar", r);
        if (!host_same(&other->host, &first->host))
            return FAIL(SMFAR_ERR_UNSUPPORTED,
                        "ranks 0 and %d are on different hosts (%s and %s, or in containers that "
                        "do not share a network namespace); smfar serves the GPUs of one host: "
                        "use one group per host, or another backend between hosts",
                        r, first->host.name, other->host.name);
        if (other->uid != first->uid)
            return FAIL(SMFAR_ERR_UNSUPPORTED, "ranks 0 and %d belong to different users", r);
    }
    return SMFAR_OK;
}

/* What a rank says first on its connection. */
struct greeting {
    uint32_t magic;
    int32_t rank, ranks;
    char name[sizeof(((struct exchange *)0)->name)];
};

/* Takes a connection. One that does not know the name, or comes from another user, is dropped; one
 * that does is of this group, and wrong numbers are an error. */
static enum smfar_status admit(struct exchange *ex, int fd, pid_t pid, uid_t uid, int64_t deadline)
{
    struct greeting greeting = {0};
    int64_t soon = fdpass_now() + 2000;
    enum smfar_status status =
        fdpass_receive(fd, &greeting, sizeof(greeting), NULL, 0, soon < deadline ? soon : deadline);
    int r = greeting.rank;
    if (status != SMFAR_OK || greeting.magic != MAGIC || uid != geteuid() ||
        memcmp(greeting.name, ex->name, sizeof(ex->name)) != 0) {
        log_warn("dropped a connection from process %d that is no rank of this group", (int)pid);
        close(fd);
        return SMFAR_OK;
    }
    if (r > 0 && r < ex->ranks && greeting.ranks == ex->ranks && ex->socket[r] < 0) {
        ex->socket[r] = fd;
        return SMFAR_OK;
    }
    close(fd);
    return FAIL(SMFAR_ERR_MISMATCH, "process %d came as rank %d of %d to a group of %d%s", (int)pid,
                r, greeting.ranks, ex->ranks,
                greeting.ranks == ex->ranks ? ": that rank is there already" : "");
}

/* The lowest rank that has not come, or 0. */
static int first_missing(const struct exchange *ex)
{
    for (int r = 1; r < ex->ranks; r++)
        if (ex->socket[r] < 0) return r;
    return 0;
}

/* After a refusal those who are still coming are let in for a while, to be told. */
static enum smfar_status accept_ranks(struct exchange *ex)
{
    char text[512] = "";
    int64_t deadline = new_deadline(ex);
    enum smfar_status status = SMFAR_OK, refusal = SMFAR_OK;
    while (first_missing(ex) && status == SMFAR_OK) {
        int fd = -1;
        pid_t pid;
        uid_t uid;
        status = fdpass_accept(ex->socket[0], deadline, &fd, &pid, &uid);
        enum smfar_status one = status;
        if (status == SMFAR_OK) one = admit(ex, fd, pid, uid, deadline);
        if (one == SMFAR_OK || refusal != SMFAR_OK) continue;
        snprintf(text, sizeof(text), "%s", smfar_last_error());
        refusal = one;
        if (deadline > fdpass_now() + REFUSAL_MS) deadline = fdpass_now() + REFUSAL_MS;
    }
    close(ex->socket[0]);
    ex->socket[0] = -1;
    if (refusal == SMFAR_OK) return SMFAR_OK;
    if (refusal == SMFAR_ERR_TIMEOUT)
        snprintf(text, sizeof(text), "rank %d did not come within %lld ms", first_missing(ex),
                 (long long)ex->timeout_ms);
    return exchange_break(ex, FAIL(refusal, "%s", text));
}

static enum smfar_status connect_to_first(struct exchange *ex, int early)
{
    int64_t deadline = new_deadline(ex);
    enum smfar_status status = fdpass_connect(ex->name, early, deadline, &ex->socket[0]);
    if (status == SMFAR_ERR_TIMEOUT)
        return FAIL(status,
                    "rank 0 did not come within %lld ms (is it on this host, in this network "
                    "namespace?)",
                    (long long)ex->timeout_ms);
    if (status != SMFAR_OK) return status;
    struct greeting greeting = {MAGIC, ex->rank, ex->ranks, ""};
    memcpy(greeting.name, ex->name, sizeof(ex->name));
    return fdpass_send(ex->socket[0], &greeting, sizeof(greeting), NULL, 0, deadline);
}

static enum smfar_status connect_ranks(struct exchange *ex, int early)
{
    return ex->rank == 0 ? accept_ranks(ex) : connect_to_first(ex, early);
}

static struct exchange *make_exchange(int rank, int ranks, int64_t timeout_ms)
{
    struct exchange *ex = calloc(1, sizeof(*ex));
    if (!ex) return NULL;
    ex->rank = rank;
    ex->ranks = ranks;
    ex->timeout_ms = timeout_ms;
    memset(ex->socket, -1, sizeof(ex->socket));
    return ex;
}

enum smfar_status exchange_create(const struct smfar_store *store, int rank, int ranks,
                                  int64_t timeout_ms, struct exchange **exchange_out)
{
    enum smfar_status status;
    struct exchange *ex = make_exchange(rank, ranks, timeout_ms);
    if (!ex) return FAIL(SMFAR_ERR_MEMORY, "no memory for the exchange");
    TRY(describe_myself(ex));
    TRY(say_hello(ex, store));
    TRY(hear_others(ex, store));
    TRY(check_hellos(ex));
    name_socket(ex);
    TRY(connect_ranks(ex, 0));
    TRY(exchange_agree(ex, SMFAR_OK, "connecting the ranks"));
    *exchange_out = ex;
    return SMFAR_OK;
fail:
    exchange_destroy(ex);
    return status;
}

enum smfar_status exchange_meet(const struct smfar_id *id, int rank, int ranks, int64_t timeout_ms,
                                struct exchange **exchange_out)
{
    enum smfar_status status;
    struct exchange *ex = make_exchange(rank, ranks, timeout_ms);
    if (!ex) return FAIL(SMFAR_ERR_MEMORY, "no memory for the exchange");
    snprintf(ex->name, sizeof(ex->name), "%s", id->text);
    TRY(describe_myself(ex));
    TRY(listen_if_first(ex));
    TRY(connect_ranks(ex, 1));
    struct hello mine = ex->hello[rank];
    TRY(exchange_all_gather(ex, &mine, sizeof(mine), ex->hello));
    terminate_names(ex);
    TRY(check_hellos(ex));
    *exchange_out = ex;
    return SMFAR_OK;
fail:
    exchange_destroy(ex);
    return status;
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
