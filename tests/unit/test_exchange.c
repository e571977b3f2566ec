/* Units of bootstrap/exchange, ranks being threads: every rank sees everybody's data, one verdict
 * for all, descriptors that are the same file, and an error instead of a wait without end. */
#define _GNU_SOURCE
#include "../../csrc/bootstrap/exchange.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ranks.h"

enum { TIMEOUT_MS = 60000 };

static struct exchange *begin(struct ranks_thread *me)
{
    struct exchange *exchange = NULL;
    enum smfar_status status =
        exchange_create(me->store, me->rank, me->ranks, TIMEOUT_MS, &exchange);
    REQUIRE(status == SMFAR_OK, "rank %d: %s", me->rank, smfar_last_error());
    EXPECT_EQ(exchange_rank(exchange), me->rank);
    EXPECT_EQ(exchange_ranks(exchange), me->ranks);
    EXPECT_EQ(exchange_pid(exchange, 0), getpid());
    return exchange;
}

static void gather(struct ranks_thread *me)
{
    struct exchange *exchange = begin(me);
    for (int round = 0; round < 20; round++) {
        int mine[3] = {me->rank, round, me->rank * round}, all[SMFAR_MAX_RANKS][3];
        memset(all, -1, sizeof all);
        EXPECT_EQ(exchange_all_gather(exchange, mine, sizeof mine, all), SMFAR_OK);
        for (int r = 0; r < me->ranks; r++)
            EXPECT(all[r][0] == r && all[r][1] == round && all[r][2] == r * round,
                   "rank %d round %d got %d %d %d of rank %d", me->rank, round, all[r][0],
                   all[r][1], all[r][2], r);
    }
    exchange_destroy(exchange);
}

static void agree(struct ranks_thread *me)
{
    struct exchange *exchange = begin(me);
    EXPECT_EQ(exchange_agree(exchange, SMFAR_OK, "nothing"), SMFAR_OK);
    enum smfar_status mine = SMFAR_OK;
    if (me->rank == 1) mine = FAIL(SMFAR_ERR_DRIVER, "the cable is out");
    EXPECT_EQ(exchange_agree(exchange, mine, "plug in"), SMFAR_ERR_DRIVER);
    EXPECT_HAS(smfar_last_error(), "the cable is out");
    EXPECT_HAS(smfar_last_error(), "rank 1");
    EXPECT_HAS(smfar_last_error(), "plug in");
    EXPECT_EQ(exchange_agree(exchange, SMFAR_OK, "after a failure"), SMFAR_OK);
    exchange_destroy(exchange);
}

static int new_file(int rank)
{
    int fd = memfd_create("unit", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && write(fd, &rank, sizeof rank) == sizeof rank, "no memfd");
    return fd;
}

static int read_file(int fd)
{
    int rank = -1;
    EXPECT_EQ(pread(fd, &rank, sizeof rank, 0), sizeof rank);
    return rank;
}

static void descriptors(struct ranks_thread *me)
{
    struct exchange *exchange = begin(me);
    int fds[SMFAR_MAX_RANKS], mine = new_file(me->rank), first = -1;
    EXPECT_EQ(exchange_descriptors(exchange, mine, fds), SMFAR_OK);
    for (int r = 0; r < me->ranks; r++) {
        if (r == me->rank) {
            EXPECT_EQ(fds[r], -1);
            continue;
        }
        EXPECT_EQ(read_file(fds[r]), r);
        close(fds[r]);
    }
    EXPECT_EQ(exchange_descriptor(exchange, mine, &first), SMFAR_OK);
    EXPECT(me->rank == 0 ? first == -1 : read_file(first) == 0, "rank %d", me->rank);
    if (first >= 0) close(first);
    close(mine);
    exchange_destroy(exchange);
}

/* The last rank never comes. */
static void missing(struct ranks_thread *me)
{
    struct exchange *exchange = NULL;
    if (me->rank == me->ranks - 1) return;
    enum smfar_status status = exchange_create(me->store, me->rank, me->ranks, 200, &exchange);
    EXPECT_EQ(status, SMFAR_ERR_TIMEOUT);
    EXPECT(exchange == NULL, "an exchange in spite of the failure");
}

/* The last rank leaves: the others learn it when they next exchange, long before the deadline. */
static void lost(struct ranks_thread *me)
{
    struct exchange *exchange = begin(me);
    int all[SMFAR_MAX_RANKS];
    if (me->rank != me->ranks - 1)
        EXPECT_EQ(exchange_all_gather(exchange, &me->rank, sizeof me->rank, all), SMFAR_ERR_PEER);
    exchange_destroy(exchange);
}

/* The ranks' store, but for one call of one rank. */
struct bad_store {
    const struct smfar_store *good;
    const char *call;
    int rank, key, failed; /* `get` fails for this key alone, `set` the first time */
};

static enum smfar_status bad_set(void *context, const char *key, const void *value, size_t bytes)
{
    struct bad_store *store = context;
    int fails = strcmp(store->call, "set") == 0 && !store->failed++;
    if (fails) return SMFAR_ERR_SYSTEM;
    return store->good->set(store->good->context, key, value, bytes);
}

static enum smfar_status bad_get(void *context, const char *key, void *value, size_t bytes,
                                 int64_t timeout_ms)
{
    const struct bad_store *store = context;
    int fails = strcmp(store->call, "get") == 0 && atoi(strchr(key, '/') + 1) == store->key;
    if (fails) return SMFAR_ERR_SYSTEM;
    return store->good->get(store->good->context, key, value, bytes, timeout_ms);
}

/* One rank fails alone before it has connected: all hear which and why, long before the deadline.
 */
static void fails_alone(struct ranks_thread *me)
{
    struct bad_store context = *(struct bad_store *)me->extra;
    struct smfar_store store = {&context, bad_set, bad_get};
    struct exchange *exchange = NULL;
    char rank[16];
    struct timespec begin, end;
    context.good = me->store;
    snprintf(rank, sizeof rank, "rank %d", context.rank);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    EXPECT_EQ(exchange_create(me->rank == context.rank ? &store : me->store, me->rank, me->ranks,
                              TIMEOUT_MS, &exchange),
              SMFAR_ERR_SYSTEM);
    clock_gettime(CLOCK_MONOTONIC, &end);
    EXPECT(end.tv_sec - begin.tv_sec < TIMEOUT_MS / 2000, "rank %d waited for the deadline",
           me->rank);
    EXPECT_HAS(smfar_last_error(), "the store");
    if (me->rank != context.rank) EXPECT_HAS(smfar_last_error(), rank);
    EXPECT(exchange == NULL, "an exchange in spite of the failure");
}

/* The same while descriptors travel: rank 0's word of it comes without any. */
static void lost_with_descriptors(struct ranks_thread *me)
{
    struct exchange *exchange = begin(me);
    int fds[SMFAR_MAX_RANKS], last = me->ranks - 1, mine = new_file(me->rank);
    char name[32];
    snprintf(name, sizeof name, "rank %d has gone", last);
    if (me->rank != last) {
        EXPECT_EQ(exchange_descriptors(exchange, mine, fds), SMFAR_ERR_PEER);
        EXPECT_HAS(smfar_last_error(), name);
        EXPECT_EQ(exchange_agree(exchange, SMFAR_OK, "afterwards"), SMFAR_ERR_PEER);
        EXPECT_HAS(smfar_last_error(), name);
    }
    close(mine);
    exchange_destroy(exchange);
}

static void *interrupt_soon(void *exchange)
{
    usleep(50000);
    exchange_interrupt(exchange);
    return NULL;
}

/* Rank 0 waits for a rank that is busy elsewhere, until another thread ends that. */
static void interrupted(struct ranks_thread *me)
{
    static _Atomic int heard;
    struct exchange *exchange = begin(me);
    int all[SMFAR_MAX_RANKS];
    pthread_t thread;
    if (me->rank == 0)
        REQUIRE(pthread_create(&thread, NULL, interrupt_soon, exchange) == 0, "no thread");
    else
        for (int i = 0; i < TIMEOUT_MS && !heard; i++)
            usleep(1000);
    EXPECT_EQ(exchange_all_gather(exchange, &me->rank, sizeof me->rank, all), SMFAR_ERR_PEER);
    heard = 1;
    if (me->rank == 0) pthread_join(thread, NULL);
    exchange_destroy(exchange);
}

static int open_descriptors(void)
{
    int open = 0;
    for (int fd = 0; fd < 256; fd++) {
        struct stat stat;
        open += fstat(fd, &stat) == 0;
    }
    return open;
}

int main(void)
{
    static const int sizes[] = {1, 2, 3, 8, SMFAR_MAX_RANKS};
    int before = open_descriptors();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ranks_run(sizes[i], gather, NULL);
        ranks_run(sizes[i], descriptors, NULL);
        if (sizes[i] == 1) continue;
        ranks_run(sizes[i], agree, NULL);
        ranks_run(sizes[i], lost, NULL);
        ranks_run(sizes[i], lost_with_descriptors, NULL);
    }
    ranks_run(2, interrupted, NULL);
    ranks_run(3, missing, NULL);
    for (int rank = 0; rank < 3; rank++) {
        struct bad_store set = {.call = "set", .rank = rank};
        struct bad_store get = {.call = "get", .rank = rank, .key = rank == 2 ? 1 : 2};
        ranks_run(3, fails_alone, &set);
        ranks_run(3, fails_alone, &get);
    }
    EXPECT_EQ(open_descriptors(), before);
    exchange_destroy(NULL);
    return unit_end();
}
