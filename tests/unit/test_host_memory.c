/* Host memory that runs out on one rank alone, inside calls on the window's memory that all ranks
 * make together: for n = 1, 2, … the nth allocation of the core on that rank's thread fails. Every
 * rank gets an error then, and the group goes on. Ranks are threads on the software switch. */
#include "../../csrc/comm/comm.h"
#include "../../csrc/memory/registered.h"
#include "ranks.h"
#include "switch.h"

enum { RANKS = 3, COUNT = 1000, WITHOUT = 1 /* the rank */, WINDOW = 4 << 20, TIMEOUT_MS = 60000 };

/* The linker has the core's calls come here: see the Makefile. */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

static _Thread_local int until_none; /* so many more calls; 0: there is no end */

static int is_none(void) { return until_none && --until_none == 0; }

void *__wrap_malloc(size_t bytes) { return is_none() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes)
{
    return is_none() ? NULL : __real_calloc(count, bytes);
}
void *__wrap_realloc(void *old, size_t bytes)
{
    return is_none() ? NULL : __real_realloc(old, bytes);
}

static pthread_barrier_t meeting;
static int has_failed; /* of this try */

struct seat {
    smfar_comm *comm, *owner; /* the group, and another whose window is other memory to it */
    int rank;
    void *foreign;
    uint64_t id;
};

/* ---- what is tried ---- */

static size_t room_left(const struct seat *seat)
{
    size_t last;
    heap_room(&seat->comm->window->heap, &last);
    return last;
}

static enum smfar_status alloc_one(struct seat *seat)
{
    void *ptr;
    return smfar_window_alloc(seat->comm, 512, &ptr);
}

/* The window is full, but of what every rank has freed. */
static void fill_and_free(struct seat *seat)
{
    void *ptr;
    must(smfar_window_alloc(seat->comm, room_left(seat), &ptr));
    smfar_window_free(seat->comm, ptr);
}

static enum smfar_status alloc_freed(struct seat *seat)
{
    void *ptr;
    enum smfar_status status = smfar_window_alloc(seat->comm, WINDOW / 16, &ptr);
    if (status == SMFAR_OK) smfar_window_free(seat->comm, ptr);
    return status;
}

static enum smfar_status reserve(struct seat *seat)
{
    return smfar_window_reserve(seat->comm, room_left(seat) + 1);
}

static enum smfar_status add(struct seat *seat)
{
    return smfar_window_register(seat->comm, seat->foreign, 4096, &seat->id);
}

/* ---- the nth allocation ---- */

static void expect_well(struct seat *seat)
{
    static int32_t memory[RANKS][COUNT];
    int32_t *data = memory[seat->rank];
    int wrong = 0;
    for (int i = 0; i < COUNT; i++)
        data[i] = i + seat->rank;
    must(smfar_all_reduce(data, data, COUNT, SMFAR_I32, SMFAR_SUM, seat->comm, NULL));
    must(smfar_comm_wait(seat->comm, smfar_comm_sequence(seat->comm), -1));
    for (int i = 0; i < COUNT; i++)
        wrong += data[i] != RANKS * i + RANKS * (RANKS - 1) / 2;
    EXPECT_EQ(wrong, 0);
}

static void try_all(struct seat *seat, const char *what, void (*before)(struct seat *),
                    enum smfar_status (*call)(struct seat *))
{
    int tried = 0, more = 1;
    while (more) {
        tried++;
        if (before) before(seat);
        pthread_barrier_wait(&meeting);
        if (seat->rank == WITHOUT) until_none = tried;
        enum smfar_status status = call(seat);
        if (seat->rank == WITHOUT) has_failed = until_none == 0;
        until_none = 0;
        pthread_barrier_wait(&meeting);
        more = has_failed;
        EXPECT(status == (more ? SMFAR_ERR_MEMORY : SMFAR_OK), "%s, allocation %d, rank %d: %s",
               what, tried, seat->rank, smfar_last_error());
        if (more) EXPECT_HAS(smfar_last_error(), "rank 1");
        if (more && tried == 1) EXPECT_HAS(smfar_last_error(), "end what fills the memory of its");
        if (seat->id) must(smfar_window_deregister(seat->comm, seat->id));
        seat->id = 0;
        expect_well(seat);
    }
    EXPECT(tried > 1, "%s allocates nothing", what);
}

static void run_short(struct ranks_thread *me)
{
    struct seat seat = {.rank = me->rank};
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = me->rank,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = WINDOW};
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &seat.owner));
    must(smfar_window_alloc(seat.owner, 8192, &seat.foreign));
    struct smfar_store *second = me->extra;
    must(smfar_comm_create(&config, second, me->rank, me->ranks, &seat.comm));
    try_all(&seat, "register", NULL, add); /* first, while no table has room */
    try_all(&seat, "alloc", NULL, alloc_one);
    while (seat.comm->window->heap.count < seat.comm->window->heap.capacity)
        must(alloc_one(&seat));
    try_all(&seat, "alloc where the table is full", NULL, alloc_one);
    try_all(&seat, "alloc where ranges are freed", fill_and_free, alloc_freed);
    try_all(&seat, "reserve", NULL, reserve);
    smfar_comm_destroy(seat.comm);
    smfar_comm_destroy(seat.owner);
}

int main(void)
{
    static struct ranks_store memory;
    struct smfar_store second = ranks_store_begin(&memory);
    struct driver *driver; /* which keeps the switch */
    must(driver_open(SMFAR_DRIVER_SOFT, &driver));
    pthread_barrier_init(&meeting, NULL, RANKS);
    ranks_run(RANKS, run_short, &second);
    driver_close(driver);
    switch_expect_no_leaks();
    return unit_end();
}
