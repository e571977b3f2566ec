/* How the ranks of a group find each other: in the store, or under an id, until every rank holds
 * its connection to rank 0. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "../base/log.h"
#include "exchange_parts.h"
#include "fdpass.h"

enum {
    GREETING_MS = 2000, /* for the first words on a connection */
    REFUSAL_MS = 2000   /* how long rank 0 waits for those whom it must refuse */
};

static int64_t sooner(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- the store ---- */

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

static enum smfar_status write_hello(const struct exchange *ex, const struct smfar_store *store)
{
    char key[32];
    snprintf(key, sizeof(key), "hello/%d", ex->rank);
    enum smfar_status status =
        store->set(store->context, key, &ex->hello[ex->rank], sizeof(ex->hello[0]));
    return status == SMFAR_OK ? status : FAIL(status, "the store did not take key %s", key);
}

static enum smfar_status say_hello(struct exchange *ex, const struct smfar_store *store)
{
    enum smfar_status status = describe_myself(ex);
    if (ex->rank == 0) name_socket(ex);
    if (status == SMFAR_OK) status = listen_if_first(ex);
    if (status == SMFAR_OK) status = write_hello(ex, store);
    if (status == SMFAR_OK) return SMFAR_OK;
    /* the others wait for this rank: they hear why it does not come, if the store works (again; it
     * may want the descriptor) */
    struct hello *mine = &ex->hello[ex->rank];
    mine->status = (int32_t)status;
    snprintf(mine->text, sizeof(mine->text), "%s", smfar_last_error());
    if (ex->socket[0] >= 0) close(ex->socket[0]);
    ex->socket[0] = -1;
    write_hello(ex, store);
    return FAIL(status, "%s", mine->text);
}

/* What came from others may be anything. */
static void terminate_texts(struct hello *hello)
{
    hello->host.name[sizeof(hello->host.name) - 1] = 0;
    hello->text[sizeof(hello->text) - 1] = 0;
}

static enum smfar_status hear(struct exchange *ex, const struct smfar_store *store, int rank,
                              int64_t deadline)
{
    char key[32];
    struct hello *hello = &ex->hello[rank];
    int64_t left = deadline - clock_now_ms();
    snprintf(key, sizeof(key), "hello/%d", rank);
    enum smfar_status status =
        store->get(store->context, key, hello, sizeof(*hello), left > 0 ? left : 0);
    if (status == SMFAR_ERR_TIMEOUT)
        return FAIL(status, "rank %d did not come within %lld ms", rank, (long long)ex->timeout_ms);
    if (status != SMFAR_OK) return FAIL(status, "the store failed while waiting for rank %d", rank);
    terminate_texts(hello);
    return SMFAR_OK;
}

static int has_failed(const struct hello *hello)
{
    return hello->magic == MAGIC && hello->layout == LAYOUT && hello->status != SMFAR_OK;
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

/* ---- the connections ---- */

/* What a rank says first on its connection. */
struct greeting {
    uint32_t magic;
    int32_t rank, ranks;
    char name[sizeof(((struct exchange *)0)->name)];
};

/* Nothing is read from another user, who could be slow to send it. */
static int knows_the_name(const struct exchange *ex, int fd, uid_t uid, int64_t deadline,
                          struct greeting *greeting)
{
    return uid == geteuid() &&
           fdpass_receive(fd, greeting, sizeof(*greeting), NULL, 0,
                          sooner(deadline, clock_now_ms() + GREETING_MS)) == SMFAR_OK &&
           greeting->magic == MAGIC && memcmp(greeting->name, ex->name, sizeof(ex->name)) == 0;
}

/* Takes a connection. One that does not know the name, or comes from another user, is dropped; one
 * that does is of this group, and wrong numbers are an error. */
static enum smfar_status admit(struct exchange *ex, int fd, pid_t pid, uid_t uid, int64_t deadline)
{
    struct greeting greeting = {0};
    if (!knows_the_name(ex, fd, uid, deadline, &greeting)) {
        log_warn("dropped a connection from process %d that is no rank of this group", (int)pid);
        close(fd);
        return SMFAR_OK;
    }
    int r = greeting.rank;
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

/* After a refusal those who are still coming are let in for a while, to be told. `refusal` is one
 * that stands from the beginning, in this thread's last error. */
static enum smfar_status accept_ranks(struct exchange *ex, enum smfar_status refusal)
{
    char text[512];
    int64_t deadline = exchange_deadline(ex);
    enum smfar_status status = SMFAR_OK;
    snprintf(text, sizeof(text), "%s", smfar_last_error());
    if (refusal != SMFAR_OK) deadline = sooner(deadline, clock_now_ms() + REFUSAL_MS);
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
        deadline = sooner(deadline, clock_now_ms() + REFUSAL_MS);
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
    int64_t deadline = exchange_deadline(ex);
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
    return ex->rank == 0 ? accept_ranks(ex, SMFAR_OK) : connect_to_first(ex, early);
}

/* The others know of this rank, and will connect: it has failed alone, and connects to say so. */
static enum smfar_status refuse_to_go_on(struct exchange *ex, enum smfar_status status)
{
    char text[512];
    snprintf(text, sizeof(text), "rank %d: %s", ex->rank, smfar_last_error());
    FAIL(status, "%s", text);
    if (ex->rank == 0) return accept_ranks(ex, status);
    name_socket(ex);
    int reached = ex->hello[0].magic == MAGIC && connect_to_first(ex, 0) == SMFAR_OK;
    FAIL(status, "%s", text);
    return reached ? exchange_break(ex, status) : status;
}

static enum smfar_status hear_others(struct exchange *ex, const struct smfar_store *store)
{
    int64_t deadline = exchange_deadline(ex);
    for (int r = 0; r < ex->ranks; r++) {
        if (r == ex->rank) continue;
        enum smfar_status status = hear(ex, store, r, deadline);
        if (status == SMFAR_OK && has_failed(&ex->hello[r]))
            return FAIL(exchange_known_status(ex->hello[r].status),
                        "rank %d failed before it could connect: %s", r, ex->hello[r].text);
        if (status == SMFAR_OK) continue;
        return status == SMFAR_ERR_TIMEOUT ? status : refuse_to_go_on(ex, status);
    }
    return SMFAR_OK;
}

/* ---- both ---- */

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
    for (int r = 0; r < ranks; r++)
        terminate_texts(&ex->hello[r]);
    TRY(check_hellos(ex));
    *exchange_out = ex;
    return SMFAR_OK;
fail:
    exchange_destroy(ex);
    return status;
}
