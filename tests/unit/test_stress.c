/* Random collectives over five ranks (threads): types, sizes, places in the window and outside,
 * unequal offsets, several in flight, late ranks. Epochs and sequence numbers begin 100 short of
 * 2^32 and run past. With SMFAR_SOFT_CHECKED=1 the same in checked mode, where test_turns.c can
 * repeat a run exactly and this cannot.
 *
 *   test_stress [COLLECTIVES] [SEED] */
#include <time.h>
#include <unistd.h>

#include "../../csrc/base/clock.h"
#include "calls.h"
#include "ranks.h"
#include "wrap.h"

enum {
    BATCH = 4, /* most collectives in flight */
    MOST_COUNT = 20000,
    TIMEOUT_MS = 60000,
    SHORT_OF_WRAP = 100,
    MOST_REPORTS = 10
};

static uint64_t seed;
static int collectives = 3000;
static pthread_barrier_t meeting;
static _Atomic int wrong;

static void must_call(enum smfar_status status, const struct calls_one *one, int rank)
{
    char text[96];
    REQUIRE(status == SMFAR_OK, "seed %llu %s: rank %d: %s", (unsigned long long)seed,
            calls_text(one, text), rank, smfar_last_error());
}

static void check(const struct calls_one *one, const struct calls_place *place, int rank)
{
    char text[96];
    long first;
    if (calls_right(one, place, rank, &first)) return;
    EXPECT(wrong++ > MOST_REPORTS, "seed %llu %s: rank %d, byte %ld", (unsigned long long)seed,
           calls_text(one, text), rank, first);
}

static void batch(smfar_comm *comm, int rank, const struct calls_one *ones, int count,
                  char **spaces, uint64_t *mine)
{
    struct calls_place place[BATCH];
    for (int i = 0; i < count; i++) {
        char *space = spaces[2 * i + calls_random(mine) % 2]; /* in the window, or not */
        calls_fill(&ones[i], rank, space, mine, &place[i]);
        if (calls_random(mine) % 100 == 0) usleep(calls_random(mine) % 3000);
        must_call(calls_enqueue(&ones[i], rank, &place[i], comm), &ones[i], rank);
    }
    must_call(smfar_comm_wait(comm, smfar_comm_sequence(comm), TIMEOUT_MS), &ones[count - 1], rank);
    for (int i = 0; i < count; i++)
        check(&ones[i], &place[i], rank);
}

static void stress(struct ranks_thread *me)
{
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 4 << 20,
                                  .chunk_bytes = 32 << 10};
    smfar_comm *comm = NULL;
    char *spaces[2 * BATCH];
    uint64_t ours = seed, mine = seed * 31 + (uint64_t)me->rank;
    enum smfar_status status = smfar_comm_create(&config, me->store, me->rank, CALLS_RANKS, &comm);
    REQUIRE(status == SMFAR_OK, "%s", smfar_last_error());
    for (int i = 0; i < BATCH; i++) {
        REQUIRE(smfar_window_alloc(comm, CALLS_SPACE, (void **)&spaces[2 * i]) == SMFAR_OK, "%s",
                smfar_last_error());
        spaces[2 * i + 1] = malloc(CALLS_SPACE);
    }
    pthread_barrier_wait(&meeting);
    wrap_set_epoch(comm, 0u - SHORT_OF_WRAP);
    wrap_set_sequence(comm, (1ull << 32) - SHORT_OF_WRAP);
    pthread_barrier_wait(&meeting);
    for (int done = 0; done < collectives;) {
        struct calls_one ones[BATCH];
        int count = 1 + (int)(calls_random(&ours) % BATCH);
        for (int i = 0; i < count; i++)
            ones[i] = calls_draw(&ours, done++, MOST_COUNT);
        batch(comm, me->rank, ones, count, spaces, &mine);
    }
    EXPECT(smfar_comm_sequence(comm) > 1ull << 32, "the numbers have not run past 2^32");
    for (int i = 0; i < BATCH; i++)
        free(spaces[2 * i + 1]);
    smfar_comm_destroy(comm);
}

int main(int argc, char **argv)
{
    seed = (uint64_t)time(NULL);
    if (argc > 1) collectives = atoi(argv[1]);
    if (argc > 2) seed = strtoull(argv[2], NULL, 0);
    printf("seed %llu\n", (unsigned long long)seed);
    pthread_barrier_init(&meeting, NULL, CALLS_RANKS);
    int64_t begin = clock_now_ms();
    ranks_run(CALLS_RANKS, stress, NULL);
    printf("seed %llu: %d collectives over %d ranks in %.1f s\n", (unsigned long long)seed,
           collectives, CALLS_RANKS, (double)(clock_now_ms() - begin) / 1000);
    return unit_end();
}
