/* Random collectives over five ranks (threads): types, sizes, places in the window and outside,
 * unequal offsets, several in flight, late ranks. Every result is compared bit by bit, and so are
 * the bytes around it. Epochs and sequence numbers begin 100 short of 2^32 and run past.
 *
 *   test_stress [COLLECTIVES] [SEED] */
#include <time.h>
#include <unistd.h>

#include "../../csrc/bootstrap/fdpass.h"
#include "../../csrc/comm/comm.h"
#include "ranks.h"

enum {
    RANKS = 5,
    BATCH = 4, /* most collectives in flight */
    SPACE = 256 << 10,
    GUARD = 64,
    TIMEOUT_MS = 30000,
    SHORT_OF_WRAP = 100
};

static uint64_t seed;
static int collectives = 3000;
static pthread_barrier_t meeting;
static _Atomic int wrong;

static uint32_t random_of(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = (*state ^ (*state >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

/* ---- values: whole numbers so small that every type holds every sum exactly ---- */

static int value_of(int rank, int step, size_t i)
{
    return (int)((i * 7 + (size_t)rank * 5 + (size_t)step * 3) % 17) - 8;
}

static size_t bytes_of(enum smfar_dtype dtype)
{
    return dtype == SMFAR_I64 ? 8 : dtype == SMFAR_F32 || dtype == SMFAR_I32 ? 4 : 2;
}

/* bf16 is the upper half of an f32, and so is f16 but for its smaller exponent. */
static void put(void *at, size_t i, enum smfar_dtype dtype, int value)
{
    float real = (float)value;
    uint32_t bits;
    memcpy(&bits, &real, sizeof bits);
    uint32_t sign = bits >> 31, exponent = bits >> 23 & 255;
    uint16_t half =
        (uint16_t)(sign << 15 | (value ? exponent - 127 + 15 : 0) << 10 | (bits >> 13 & 1023));
    switch (dtype) {
    case SMFAR_F32:
        memcpy((char *)at + 4 * i, &bits, 4);
        break;
    case SMFAR_I32:
        ((int32_t *)at)[i] = value;
        break;
    case SMFAR_I64:
        ((int64_t *)at)[i] = value;
        break;
    case SMFAR_BF16:
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
        break;
    default:
        ((uint16_t *)at)[i] = half;
    }
}

/* ---- one collective: the same on every rank, but for where its tensors lie ---- */

enum kind { ALL_REDUCE, BROADCAST, ALL_GATHER, BARRIER };

struct step {
    int number;
    enum kind kind;
    enum smfar_dtype dtype;
    size_t count;
    int root;
};

struct place {
    char *space; /* poisoned but for the tensor */
    char *recv;
    void *parts[RANKS];
};

static struct step draw_step(uint64_t *state, int number)
{
    static const enum smfar_dtype dtypes[] = {SMFAR_F32, SMFAR_F16, SMFAR_BF16, SMFAR_I32,
                                              SMFAR_I64};
    uint32_t kind = random_of(state) % 10;
    struct step step = {.number = number,
                        .kind = kind < 6   ? ALL_REDUCE
                                : kind < 8 ? BROADCAST
                                : kind < 9 ? ALL_GATHER
                                           : BARRIER,
                        .dtype = dtypes[random_of(state) % 5],
                        .root = (int)(random_of(state) % RANKS)};
    size_t most = step.kind == ALL_GATHER ? 4000 : 20000;
    step.count = random_of(state) % (2u << random_of(state) % 15);
    if (step.count > most) step.count = most;
    return step;
}

static size_t outputs(const struct step *step) { return step->kind == ALL_GATHER ? RANKS : 1; }

static enum smfar_status enqueue(const struct step *step, struct place *place, int rank,
                                 uint64_t *mine, smfar_comm *comm)
{
    size_t element = bytes_of(step->dtype), bytes = step->count * element;
    size_t offset = GUARD + element * (random_of(mine) % 3 ? 0 : random_of(mine) % 16);
    memset(place->space, 0xa5, SPACE);
    place->recv = place->space + offset;
    for (size_t i = 0; i < step->count; i++)
        put(place->recv, i, step->dtype, value_of(rank, step->number, i));
    for (int r = 0; r < RANKS; r++)
        place->parts[r] = place->recv + (size_t)(1 + r) * bytes;
    if (random_of(mine) % 100 == 0) usleep(random_of(mine) % 3000);
    switch (step->kind) {
    case ALL_REDUCE:
        return smfar_all_reduce(place->recv, place->recv, step->count, step->dtype, SMFAR_SUM, comm,
                                NULL);
    case BROADCAST:
        return smfar_broadcast(place->recv, place->recv, step->count, step->dtype, step->root, comm,
                               NULL);
    case ALL_GATHER:
        return smfar_all_gather(place->recv, place->parts, step->count, step->dtype, comm, NULL);
    default:
        return smfar_barrier(comm, NULL);
    }
}

static int expected(const struct step *step, int rank, size_t part, size_t i)
{
    int sum = 0;
    if (step->kind == BROADCAST) return value_of(step->root, step->number, i);
    if (step->kind == ALL_GATHER) return value_of((int)part, step->number, i);
    if (step->kind == BARRIER) return value_of(rank, step->number, i);
    for (int r = 0; r < RANKS; r++)
        sum += value_of(r, step->number, i);
    return sum;
}

static void check(const struct step *step, const struct place *place, int rank)
{
    static _Thread_local char right[SPACE];
    size_t element = bytes_of(step->dtype), bytes = step->count * element;
    size_t at = (size_t)(place->recv - place->space);
    memset(right, 0xa5, SPACE);
    if (step->kind == ALL_GATHER)
        for (size_t i = 0; i < step->count; i++)
            put(right + at, i, step->dtype, value_of(rank, step->number, i));
    if (step->kind == ALL_GATHER) at += bytes;
    for (size_t part = 0; part < outputs(step); part++)
        for (size_t i = 0; i < step->count; i++)
            put(right + at + part * bytes, i, step->dtype, expected(step, rank, part, i));
    if (memcmp(right, place->space, SPACE) == 0) return;
    size_t first = 0;
    while (right[first] == place->space[first])
        first++;
    EXPECT(wrong++ > 10, "seed %llu step %d kind %d dtype %d count %zu root %d: rank %d, byte %zd",
           (unsigned long long)seed, step->number, (int)step->kind, (int)step->dtype, step->count,
           step->root, rank, (ssize_t)first - (ssize_t)at);
}

/* As if that many phases and collectives had gone before: the ranks stand still. */
static void begin_short_of_wrap(smfar_comm *comm)
{
    struct signals *signals = (struct signals *)(uintptr_t)comm->window->peer[comm->rank];
    uint32_t epoch = 0u - SHORT_OF_WRAP;
    pthread_barrier_wait(&meeting);
    signals->epoch[0] = epoch;
    for (int parity = 0; parity < 2; parity++)
        for (int r = 0; r < RANKS; r++)
            signals->arrive[parity][r] = (uint64_t)epoch << 32;
    atomic_store(&comm->sequence, (1ull << 32) - SHORT_OF_WRAP);
    atomic_store(&comm->page.host->words[comm->rank].done, (1ull << 32) - SHORT_OF_WRAP);
    pthread_barrier_wait(&meeting);
}

static void must(enum smfar_status status, const struct step *step, int rank)
{
    REQUIRE(status == SMFAR_OK, "seed %llu step %d rank %d: %s", (unsigned long long)seed,
            step->number, rank, smfar_last_error());
}

static void batch(smfar_comm *comm, int rank, const struct step *steps, int count, char **spaces,
                  uint64_t *mine)
{
    struct place place[BATCH];
    for (int i = 0; i < count; i++) {
        place[i].space = spaces[2 * i + random_of(mine) % 2]; /* in the window, or not */
        must(enqueue(&steps[i], &place[i], rank, mine, comm), &steps[i], rank);
    }
    must(smfar_comm_wait(comm, smfar_comm_sequence(comm), TIMEOUT_MS), &steps[count - 1], rank);
    for (int i = 0; i < count; i++)
        check(&steps[i], &place[i], rank);
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
    enum smfar_status status = smfar_comm_create(&config, me->store, me->rank, RANKS, &comm);
    REQUIRE(status == SMFAR_OK, "%s", smfar_last_error());
    for (int i = 0; i < BATCH; i++) {
        REQUIRE(smfar_window_alloc(comm, SPACE, (void **)&spaces[2 * i]) == SMFAR_OK, "%s",
                smfar_last_error());
        spaces[2 * i + 1] = malloc(SPACE);
    }
    begin_short_of_wrap(comm);
    for (int done = 0; done < collectives;) {
        struct step steps[BATCH];
        int count = 1 + (int)(random_of(&ours) % BATCH);
        for (int i = 0; i < count; i++)
            steps[i] = draw_step(&ours, done++);
        batch(comm, me->rank, steps, count, spaces, &mine);
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
    pthread_barrier_init(&meeting, NULL, RANKS);
    int64_t begin = fdpass_now();
    ranks_run(RANKS, stress, NULL);
    printf("seed %llu: %d collectives over %d ranks in %.1f s\n", (unsigned long long)seed,
           collectives, RANKS, (double)(fdpass_now() - begin) / 1000);
    return unit_end();
}
