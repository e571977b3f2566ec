/* The ways of one all-reduce in rank order give the same bits, wherever tensors lie, and each is
 * taken up to the size that its slots or boxes have room for. Types and values are checkptx's
 * matter. */
#include "../../csrc/comm/comm.h"
#include "../../csrc/comm/names.h"
#include "ranks.h"

enum { RANKS = 3, ROOM = 256 << 10, SHIFT = 16, TIMEOUT_MS = 60000 };

static const struct {
    enum smfar_op op;
    enum smfar_dtype dtype;
} served[] = {{SMFAR_SUM, SMFAR_F32}, {SMFAR_SUM, SMFAR_F16},  {SMFAR_SUM, SMFAR_BF16},
              {SMFAR_SUM, SMFAR_I32}, {SMFAR_SUM, SMFAR_I64},  {SMFAR_AVG, SMFAR_F32},
              {SMFAR_AVG, SMFAR_F16}, {SMFAR_AVG, SMFAR_BF16}, {SMFAR_AVG, SMFAR_I32},
              {SMFAR_AVG, SMFAR_I64}};

/* One rank's, in the window or not. */
struct space {
    char *send, *recv, *wanted;
};

/* Floats of any sign and size below 2, whose sums round; integers of any bits. */
static void fill(char *data, size_t bytes, enum smfar_dtype dtype, uint32_t state)
{
    int half = dtype == SMFAR_F16 || dtype == SMFAR_BF16;
    uint32_t mask = half ? 0xbfffbfff : dtype == SMFAR_F32 ? 0xbfffffff : 0xffffffff;
    for (size_t i = 0; i < bytes; i += 4) {
        state = state * 1664525 + 1013904223;
        uint32_t word = (state ^ state >> 15) & mask;
        memcpy(data + i, &word, bytes - i < 4 ? bytes - i : 4);
    }
}

static uint64_t calls_by(smfar_comm *comm, const char *algorithm)
{
    struct smfar_path path;
    for (int i = 0; smfar_comm_path(comm, i, &path) == SMFAR_OK; i++)
        if (strcmp(path.algorithm, algorithm) == 0) return path.calls;
    return 0;
}

/* Wishes for `algorithm`, and expects that `taken` is. */
static void reduce(smfar_comm *comm, const char *algorithm, const char *taken, const void *send,
                   void *recv, size_t count, int i)
{
    struct smfar_hint hint = {.algorithm = algorithm};
    uint64_t before = calls_by(comm, taken);
    must(smfar_hint_set(&hint));
    must(smfar_all_reduce(send, recv, count, served[i].dtype, served[i].op, comm, NULL));
    must(smfar_comm_wait(comm, smfar_comm_sequence(comm), TIMEOUT_MS));
    EXPECT(calls_by(comm, taken) == before + 1, "%s of %zu %s by another way than %s",
           name_op((int)served[i].op), count, name_dtype((int)served[i].dtype), taken);
}

static void check_one(struct ranks_thread *me, smfar_comm *comm, const struct space *space,
                      const char *way, size_t count, int i)
{
    size_t element = dtype_bytes((int)served[i].dtype), bytes = count * element;
    /* of the vectors' boundary on some ranks only */
    char *send = space->send + (me->rank == 1 ? element : 0);
    char *recv = space->recv + (me->rank == 2 ? element : 0);
    uint32_t seed = (uint32_t)(count * 31 + (size_t)me->rank);
    fill(send, bytes, served[i].dtype, seed);
    reduce(comm, "twoshot_peer", "twoshot_peer", send, space->wanted, count, i);
    memset(space->recv, 0xee, ROOM);
    reduce(comm, way, way, send, recv, count, i);
    EXPECT(memcmp(recv, space->wanted, bytes) == 0, "%s of %zu %s by %s on rank %d",
           name_op((int)served[i].op), count, name_dtype((int)served[i].dtype), way, me->rank);
    EXPECT(recv[bytes] == (char)0xee, "%s wrote past the end", way);
    reduce(comm, way, way, send, send, count, i);
    EXPECT(memcmp(send, space->wanted, bytes) == 0, "%s of %zu %s by %s in place on rank %d",
           name_op((int)served[i].op), count, name_dtype((int)served[i].dtype), way, me->rank);
}

static void check_way(struct ranks_thread *me, smfar_comm *comm, const struct space *space,
                      const char *way, size_t most_bytes)
{
    for (int i = 0; i < (int)(sizeof served / sizeof *served); i++) {
        if (strcmp(way, "oneshot_mc") == 0 && served[i].dtype > SMFAR_I64) continue;
        size_t most = most_bytes / dtype_bytes((int)served[i].dtype);
        const size_t counts[] = {0, 1, 7, 515, most / 3 + 1, most};
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            check_one(me, comm, &space[c % 2], way, counts[c], i);
    }
}

static void ways(struct ranks_thread *me)
{
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 8 << 20,
                                  .no_multicast = me->extra == NULL};
    smfar_comm *comm = NULL;
    struct space space[2];
    char *window, *plain = malloc(3 * (ROOM + SHIFT));
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm));
    must(smfar_window_alloc(comm, 3 * (ROOM + SHIFT), (void **)&window));
    space[0] = (struct space){window, window + ROOM + SHIFT, window + 2 * (ROOM + SHIFT)};
    space[1] = (struct space){plain, plain + ROOM + SHIFT, plain + 2 * (ROOM + SHIFT)};
    size_t push = comm->agreed.push_bytes, oneshot = comm->agreed.oneshot_bytes;
    REQUIRE(push && push <= ROOM && oneshot > push, "boxes of %zu bytes, slots of %zu", push,
            oneshot);
    check_way(me, comm, space, "push_peer", push);
    if (!config.no_multicast) check_way(me, comm, space, "push_mc", push);
    if (!config.no_multicast) check_way(me, comm, space, "oneshot_mc", push);
    check_way(me, comm, space, "oneshot_peer", push);
    /* without a wish; and what exceeds a box, with one */
    reduce(comm, NULL, config.no_multicast ? "push_peer" : "push_mc", plain, plain, 1000, 0);
    reduce(comm, NULL, config.no_multicast ? "push_peer" : "twoshot_mc", plain, plain, push / 4, 0);
    reduce(comm, "push_peer", config.no_multicast ? "oneshot_peer" : "twoshot_mc", plain, plain,
           push / 4 + 1, 0);
    smfar_window_free(comm, window);
    smfar_comm_destroy(comm);
    free(plain);
}

int main(void)
{
    static int multicast;
    setenv("SMFAR_SOFT_GPUS", "16", 1); /* ranks that share one have no multicast */
    ranks_run(RANKS, ways, NULL);
    ranks_run(RANKS, ways, &multicast);
    /* more than the four that a push awaits at once; the last of them fewer than that, or four */
    ranks_run(5, ways, &multicast);
    ranks_run(11, ways, NULL);
    ranks_run(SMFAR_MAX_RANKS, ways, &multicast);
    return unit_end();
}
