/* Checks what a kernel does when not all is well: it waits for a late rank; a missing or different
 * one is in the record of a rank that found it; after that, or an abort, every rank's kernels leave
 * and say so, mark nothing done, and leave the group's memory alone. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../csrc/base/clock.h"
#include "../ref/ref.h"
#include "check.h"

enum { COUNT_HERE = 1000, BYTES_HERE = COUNT_HERE * 8, BLOCKS_HERE = 2, THREADS_HERE = 64 };
/* After an abort: a communicator that is destroyed waits for twice as long. */
enum { RELEASED_MS = 1000 };
enum { PULLED_HERE = BYTES_HERE / (RIG_MAX_RANKS + 1) - 1 };
#define MS 1000000ull

struct trial {
    struct rig *rig;
    enum kernel_id id;
    int chosen; /* the rank that is late, missing or different */
    uint32_t hash;
    uint64_t sequence;
    int blocks;
    const char *what;
};

static int wrong(const struct trial *t, int rank, const char *why, uint64_t value)
{
    printf("WRONG %s ranks=%d chosen=%d, %s: rank %d: %s (%llu)\n", kernel_rows[t->id].entry,
           t->rig->ranks, t->chosen, t->what, rank, why, (unsigned long long)value);
    return 1;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void fill(const struct rig *rig, int rank, unsigned char *data_out)
{
    memset(data_out, rank + 1, BYTES_HERE);
    must(rig_write(rig, rank, rig->rank[rank].window + RIG_HEAP, data_out, BYTES_HERE), "write");
    must(rig_write(rig, rank, rig->rank[rank].dst, data_out, BYTES_HERE), "write");
}

static void begin(struct trial *t, const char *what, uint32_t epoch)
{
    unsigned char data[BYTES_HERE];
    t->what = what;
    t->sequence++;
    must(rig_reset(t->rig, epoch), "reset");
    for (int r = 0; r < t->rig->ranks; r++)
        fill(t->rig, r, data);
}

/* Outputs beside the input, where they are not to change. */
static void place_pulled(const struct trial *t, int rank, struct kargs *args,
                         struct move_kargs *move_out)
{
    args->count = PULLED_HERE;
    memset(move_out->to, 0, sizeof move_out->to);
    for (int r = 0; r < t->rig->ranks; r++)
        move_out->to[r] =
            t->rig->rank[rank].window + RIG_HEAP + (size_t)(r + 1) * (PULLED_HERE + 1);
}

static void launch(const struct trial *t, int rank, uint32_t hash, uint64_t timeout_ns)
{
    union arguments whole = {.norm = {.hidden = COUNT_HERE / 8, /* 8 rows */
                                      .first = (uint32_t)rank,
                                      .rows = 1,
                                      .group = 32}};
    struct kargs args;
    rig_arguments(t->rig, rank, 0, &args);
    args.offset = RIG_HEAP;
    int plain = case_is_dataless(t->id) || t->id == KERNEL_stage_peer; /* one warp, no data */
    args.count = plain ? 0 : COUNT_HERE;
    if (case_has_own_slots(t->id)) { /* which it fills instead */
        args.src = args.window + RIG_HEAP;
        args.offset = case_is_push(t->id) ? RIG_BOXES : RIG_HEAP + RIG_AREA / 2;
        args.stride = (uint32_t)case_box_bytes(BYTES_HERE);
        args.dst = t->rig->rank[rank].dst;
    }
    if (case_is_scatter(t->id)) args.dst = t->rig->rank[rank].dst;
    args.timeout_ns = timeout_ns;
    args.sequence = t->sequence;
    args.hash = hash;
    args.done = 1;
    if (case_is_pull(t->id)) place_pulled(t, rank, &args, &whole.move);
    whole.common = args;
    must(rig_launch(t->rig, rank, t->id, plain ? 1 : t->blocks, plain ? 32 : THREADS_HERE,
                    &whole.common),
         "launch");
}

static void launch_others(const struct trial *t, uint64_t timeout_ns)
{
    for (int r = 0; r < t->rig->ranks; r++)
        if (r != t->chosen) launch(t, r, t->hash, timeout_ns);
}

static void synchronize(const struct trial *t)
{
    for (int r = 0; r < t->rig->ranks; r++)
        must(rig_synchronize(t->rig, r), "synchronize");
}

static int expect_no_errors(const struct trial *t)
{
    int faults = 0;
    for (int r = 0; r < t->rig->ranks; r++)
        if (rig_error(t->rig, r)->code != 0)
            faults += wrong(t, r, "an error record", rig_error(t->rig, r)->code);
    return faults;
}

static int expect_released(const struct trial *t, int rank)
{
    if (rig_released(t->rig, rank) != t->sequence)
        return wrong(t, rank, "left undone", rig_released(t->rig, rank));
    if (rig_done(t->rig, rank)) return wrong(t, rank, "marked done", rig_done(t->rig, rank));
    if (!*(volatile uint32_t *)(t->rig->page + PAGE_ABORT))
        return wrong(t, rank, "set no abort word", 0);
    return 0;
}

/* Whoever finds it first releases the others, which then have no record of their own. */
static int expect_error(const struct trial *t, int rank, uint32_t code, uint32_t mine, int *found)
{
    const volatile struct error_record *error = rig_error(t->rig, rank);
    int faults = expect_released(t, rank);
    if (error->code == 0) return faults;
    ++*found;
    if (error->code != code) return wrong(t, rank, "the record's code", error->code);
    if (error->sequence != t->sequence) return wrong(t, rank, "its sequence", error->sequence);
    if (error->mine != mine) return wrong(t, rank, "its hash", error->mine);
    return faults;
}

static int expect_filled(const struct trial *t, int rank, CUdeviceptr at, const char *why)
{
    unsigned char data[BYTES_HERE];
    must(rig_read(t->rig, rank, data, at, BYTES_HERE), "read");
    for (int i = 0; i < BYTES_HERE; i++)
        if (data[i] != rank + 1) return wrong(t, rank, why, (uint64_t)i);
    return 0;
}

/* The others' streams have not come to their end. */
static int expect_waiting(const struct trial *t)
{
    int faults = 0;
    for (int r = 0; r < t->rig->ranks; r++) {
        CUresult state = rig_query(t->rig, r);
        if (r != t->chosen && state != CUDA_ERROR_NOT_READY)
            faults += wrong(t, r, "did not wait, stream state", state);
    }
    return faults;
}

/* The data as they were filled, and where results go: nothing was reduced. */
static int expect_untouched(const struct trial *t)
{
    int faults = 0;
    for (int r = 0; r < t->rig->ranks; r++) {
        const struct rig_rank *rank = &t->rig->rank[r];
        faults += expect_filled(t, r, rank->window + RIG_HEAP, "data were changed");
        faults += expect_filled(t, r, rank->dst, "a result was written");
    }
    return faults;
}

/* ---- the trials ---- */

/* Three launches across the epoch's wrap from 2^32 - 1 to 0, the last rank late each time. */
static int try_late(struct trial *t)
{
    int faults = 0;
    begin(t, "late rank", UINT32_MAX - 2);
    for (int i = 0; i < 3; i++) {
        launch_others(t, 20000 * MS);
        sleep_ms(3);
        faults += expect_waiting(t);
        launch(t, t->chosen, t->hash, 20000 * MS);
        synchronize(t);
    }
    return faults + expect_no_errors(t);
}

/* After a failure a launch returns at once, and reports and changes nothing. */
static int try_after(struct trial *t, int rank)
{
    volatile uint32_t *code = (volatile uint32_t *)&rig_error(t->rig, rank)->code;
    *code = 0;
    *(volatile uint32_t *)(t->rig->page + PAGE_ABORT) = 0;
    launch(t, rank, t->hash, 20000 * MS);
    synchronize(t);
    if (*code != 0) return wrong(t, rank, "a launch after the failure reported", *code);
    return expect_released(t, rank) + expect_untouched(t);
}

static int try_missing(struct trial *t)
{
    int faults = 0, found = 0;
    begin(t, "missing rank", 0);
    launch_others(t, 30 * MS);
    synchronize(t);
    for (int r = 0; r < t->rig->ranks; r++) {
        if (r == t->chosen) continue;
        faults += expect_error(t, r, ERROR_TIMEOUT, t->hash, &found);
        if (rig_error(t->rig, r)->code && rig_error(t->rig, r)->peer != (uint32_t)t->chosen)
            faults += wrong(t, r, "names rank", rig_error(t->rig, r)->peer);
    }
    if (!found) faults += wrong(t, t->chosen, "nobody has missed it", 0);
    faults += expect_untouched(t);
    for (int r = 0; r < t->rig->ranks; r++) /* the one that comes too late is told as well */
        faults += try_after(t, r);
    return faults;
}

static int try_different(struct trial *t)
{
    int faults = 0, found = 0;
    begin(t, "different rank", 7);
    launch_others(t, 20000 * MS);
    launch(t, t->chosen, t->hash + 1, 20000 * MS);
    synchronize(t);
    for (int r = 0; r < t->rig->ranks; r++) {
        int odd = r == t->chosen;
        faults += expect_error(t, r, ERROR_MISMATCH, t->hash + (uint32_t)odd, &found);
        if (rig_error(t->rig, r)->code == 0) continue;
        if ((rig_error(t->rig, r)->peer == (uint32_t)t->chosen) == odd)
            faults += wrong(t, r, "names rank", rig_error(t->rig, r)->peer);
        if (rig_error(t->rig, r)->theirs != t->hash + !odd)
            faults += wrong(t, r, "the other's hash", rig_error(t->rig, r)->theirs);
    }
    if (!found) faults += wrong(t, t->chosen, "nobody has seen the difference", 0);
    return faults + expect_untouched(t);
}

static int try_abort(struct trial *t)
{
    int faults = 0;
    begin(t, "abort", 1);
    launch_others(t, 20000 * MS);
    sleep_ms(1);
    *(volatile uint32_t *)(t->rig->page + PAGE_ABORT) = 1;
    synchronize(t);
    for (int r = 0; r < t->rig->ranks; r++)
        if (r != t->chosen) faults += expect_released(t, r);
    return faults + expect_no_errors(t) + expect_untouched(t);
}

/* A kernel of the chosen rank has failed, which the others learn by their own signals alone. */
static int try_told(struct trial *t)
{
    struct kargs args;
    begin(t, "told of a failure while it waits", 1);
    launch_others(t, 20000 * MS);
    sleep_ms(3);
    int faults = expect_waiting(t);
    rig_arguments(t->rig, t->chosen, 0, &args);
    for (int r = 0; r < t->rig->ranks; r++)
        must(rig_write(t->rig, t->chosen, args.peer[r] + SIGNALS_FAILED, &(uint32_t){1}, 4),
             "write");
    synchronize(t);
    for (int r = 0; r < t->rig->ranks; r++)
        if (r != t->chosen) faults += expect_released(t, r);
    return faults + expect_no_errors(t) + expect_untouched(t);
}

/* What has no barrier does nothing once a kernel of any rank has failed. */
static int try_failed(struct trial *t)
{
    begin(t, "after a failure", 0);
    CUdeviceptr told = t->rig->rank[t->chosen].window + SIGNALS_FAILED;
    must(rig_write(t->rig, t->chosen, told, &(uint32_t){1}, 4), "write");
    launch(t, t->chosen, t->hash, 20000 * MS);
    synchronize(t);
    return expect_released(t, t->chosen) + expect_untouched(t) + try_after(t, 0);
}

/* It marks its collective done. */
static int try_finish(struct trial *t)
{
    begin(t, "finish", 0);
    launch(t, t->chosen, t->hash, 20000 * MS);
    synchronize(t);
    if (rig_done(t->rig, t->chosen) == t->sequence) return 0;
    return wrong(t, t->chosen, "marked done", rig_done(t->rig, t->chosen));
}

/* ---- packets: the chosen rank has arrived at phase `phase`, and pushes later or never ---- */

static void begin_packets(struct trial *t, const char *what, uint32_t phase)
{
    uint64_t word = (uint64_t)phase << 32 | t->hash;
    begin(t, what, phase - 1);
    size_t at = SIGNALS_ARRIVE + (phase & 1) * SIGNALS_LINE + (size_t)t->chosen * sizeof word;
    for (int r = 0; r < t->rig->ranks; r++)
        must(rig_write(t->rig, r, t->rig->rank[r].window + at, &word, sizeof word), "write");
}

static int try_late_packets(struct trial *t)
{
    static unsigned char right[BYTES_HERE], got[BYTES_HERE];
    size_t bytes = COUNT_HERE * ref_bytes(kernel_rows[t->id].dtype);
    int faults = 0;
    begin(t, "late packets", 0);
    for (int r = 0; r < t->rig->ranks; r++)
        launch(t, r, t->hash, 20000 * MS);
    synchronize(t);
    must(rig_read(t->rig, 0, right, t->rig->rank[0].dst, bytes), "read");
    begin_packets(t, "late packets", 0);
    for (int r = 0; r < t->rig->ranks; r++)
        must(rig_write(t->rig, r, t->rig->rank[r].dst, got, bytes), "write");
    launch_others(t, 20000 * MS);
    sleep_ms(3);
    for (int r = 0; r < t->rig->ranks; r++)
        if (r != t->chosen && rig_query(t->rig, r) != CUDA_ERROR_NOT_READY)
            faults += wrong(t, r, "did not wait for packets", 0);
    launch(t, t->chosen, t->hash, 20000 * MS);
    synchronize(t);
    for (int r = 0; r < t->rig->ranks; r++) {
        must(rig_read(t->rig, r, got, t->rig->rank[r].dst, bytes), "read");
        if (memcmp(got, right, bytes) != 0) faults += wrong(t, r, "the result", 0);
    }
    return faults + expect_no_errors(t);
}

/* Whole packets of another call, from the chosen rank, where those of this one are awaited. */
static void push_foreign(const struct trial *t, uint32_t phase)
{
    uint32_t box[BYTES_HERE / 2];
    size_t stride = case_box_bytes(BYTES_HERE), set = (phase - 1) & 1; /* by the epoch before */
    size_t number = set * (size_t)t->rig->ranks + (size_t)t->chosen;
    for (size_t i = 0; i < BYTES_HERE / 2; i++)
        box[i] = i % 2 ? t->hash + 1 : 0;
    for (int r = 0; r < t->rig->ranks; r++)
        must(rig_write(t->rig, r, t->rig->rank[r].window + RIG_BOXES + number * stride, box,
                       sizeof box),
             "write");
}

static int try_lost_packets(struct trial *t, int foreign)
{
    int faults = 0, found = 0;
    begin_packets(t, foreign ? "packets of another call" : "lost packets", 8);
    if (foreign) push_foreign(t, 8);
    t->blocks = 1; /* a second that begins after the first has failed would lose packets as well */
    launch_others(t, 30 * MS);
    synchronize(t);
    for (int r = 0; r < t->rig->ranks; r++) {
        if (r == t->chosen) continue;
        faults += expect_error(t, r, ERROR_TIMEOUT, t->hash, &found);
        if (rig_error(t->rig, r)->code && rig_error(t->rig, r)->peer != (uint32_t)t->chosen)
            faults += wrong(t, r, "names rank", rig_error(t->rig, r)->peer);
        if (rig_error(t->rig, r)->code && rig_error(t->rig, r)->epoch != 8)
            faults += wrong(t, r, "names phase", rig_error(t->rig, r)->epoch);
    }
    t->blocks = BLOCKS_HERE;
    if (!found) faults += wrong(t, t->chosen, "nobody has missed its packets", 0);
    for (int r = 0; r < t->rig->ranks; r++)
        faults += try_after(t, r);
    return faults;
}

static int try_abort_packets(struct trial *t)
{
    int faults = 0;
    begin_packets(t, "abort while packets are awaited", 1);
    launch_others(t, 20000 * MS);
    sleep_ms(1);
    *(volatile uint32_t *)(t->rig->page + PAGE_ABORT) = 1;
    int64_t begin_ms = clock_now_ms();
    synchronize(t);
    int64_t took_ms = clock_now_ms() - begin_ms;
    if (took_ms > RELEASED_MS)
        faults += wrong(t, t->chosen, "keeps the others, ms", (uint64_t)took_ms);
    for (int r = 0; r < t->rig->ranks; r++)
        if (r != t->chosen) faults += expect_released(t, r);
    return faults + expect_no_errors(t) + expect_untouched(t);
}

static int try_packets(struct trial *t)
{
    int lost = try_lost_packets(t, 0) + try_lost_packets(t, 1);
    return try_late_packets(t) + lost + try_abort_packets(t);
}

static int try_all(struct trial *t)
{
    if (t->id == KERNEL_finish_peer) return try_finish(t) + try_failed(t);
    if (case_meets_nobody(t->id)) return try_failed(t);
    int faults = try_late(t) + try_missing(t) + try_different(t) + try_abort(t) + try_told(t);
    return faults + (case_is_push(t->id) ? try_packets(t) : 0);
}

int check_failures(struct rig *rig, enum kernel_id id, uint64_t seed)
{
    struct trial t = {.rig = rig,
                      .id = id,
                      .chosen = (int)random_below(&seed, (unsigned)rig->ranks),
                      .hash = 1 + (uint32_t)(random_next(&seed) >> 33),
                      .sequence = random_next(&seed) >> 1,
                      .blocks = BLOCKS_HERE};
    int faults = try_all(&t);
    must(rig_reset(rig, 0), "reset");
    return faults;
}
