/* Checks what a kernel does when not all is well: it waits for a late rank; it reports a missing
 * one, a different one and an abort in every rank's record; and after any of these it leaves the
 * group's memory alone. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../ref/ref.h"
#include "check.h"

enum { COUNT_HERE = 1000, BYTES_HERE = COUNT_HERE * 8, BLOCKS_HERE = 2, THREADS_HERE = 64 };
#define MS 1000000ull

struct trial {
    struct rig *rig;
    enum kernel_id id;
    int chosen; /* the rank that is late, missing or different */
    uint32_t hash;
    uint64_t sequence;
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

static void launch(const struct trial *t, int rank, uint32_t hash, uint64_t timeout_ns)
{
    struct kargs args;
    rig_arguments(t->rig, rank, 0, &args);
    args.offset = RIG_HEAP;
    int barrier = kernel_rows[t->id].dtype == SMFAR_DTYPES; /* one warp */
    args.count = barrier ? 0 : COUNT_HERE;
    args.timeout_ns = timeout_ns;
    args.sequence = t->sequence;
    args.hash = hash;
    must(rig_launch(t->rig, rank, t->id, barrier ? 1 : BLOCKS_HERE, barrier ? 32 : THREADS_HERE,
                    &args),
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

static int expect_error(const struct trial *t, int rank, uint32_t code, uint32_t mine)
{
    const volatile struct error_record *error = rig_error(t->rig, rank);
    if (error->code != code) return wrong(t, rank, "the record's code", error->code);
    if (error->sequence != t->sequence) return wrong(t, rank, "its sequence", error->sequence);
    if (error->mine != mine) return wrong(t, rank, "its hash", error->mine);
    return 0;
}

/* The data as they were filled: nothing was reduced. */
static int expect_untouched(const struct trial *t)
{
    unsigned char data[BYTES_HERE];
    for (int r = 0; r < t->rig->ranks; r++) {
        must(rig_read(t->rig, r, data, t->rig->rank[r].window + RIG_HEAP, BYTES_HERE), "read");
        for (int i = 0; i < BYTES_HERE; i++)
            if (data[i] != r + 1) return wrong(t, r, "data were changed", (uint64_t)i);
    }
    return 0;
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
        for (int r = 0; r < t->rig->ranks; r++) {
            CUresult state = rig_query(t->rig, r);
            if (r != t->chosen && state != CUDA_ERROR_NOT_READY)
                faults += wrong(t, r, "did not wait, stream state", state);
        }
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
    launch(t, rank, t->hash, 20000 * MS);
    synchronize(t);
    if (*code != 0) return wrong(t, rank, "a launch after the failure reported", *code);
    return expect_untouched(t);
}

static int try_missing(struct trial *t)
{
    int faults = 0;
    begin(t, "missing rank", 0);
    launch_others(t, 30 * MS);
    synchronize(t);
    for (int r = 0; r < t->rig->ranks; r++) {
        if (r == t->chosen) continue;
        faults += expect_error(t, r, ERROR_TIMEOUT, t->hash);
        if (rig_error(t->rig, r)->peer != (uint32_t)t->chosen)
            faults += wrong(t, r, "names rank", rig_error(t->rig, r)->peer);
    }
    return faults + expect_untouched(t) + try_after(t, (t->chosen + 1) % t->rig->ranks);
}

static int try_different(struct trial *t)
{
    int faults = 0;
    begin(t, "different rank", 7);
    launch_others(t, 20000 * MS);
    launch(t, t->chosen, t->hash + 1, 20000 * MS);
    synchronize(t);
    for (int r = 0; r < t->rig->ranks; r++) {
        int odd = r == t->chosen;
        faults += expect_error(t, r, ERROR_MISMATCH, t->hash + (uint32_t)odd);
        if ((rig_error(t->rig, r)->peer == (uint32_t)t->chosen) == odd)
            faults += wrong(t, r, "names rank", rig_error(t->rig, r)->peer);
        if (rig_error(t->rig, r)->theirs != t->hash + !odd)
            faults += wrong(t, r, "the other's hash", rig_error(t->rig, r)->theirs);
    }
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
        if (r != t->chosen) faults += expect_error(t, r, ERROR_ABORTED, t->hash);
    return faults + expect_untouched(t);
}

int check_failures(struct rig *rig, enum kernel_id id, uint64_t seed)
{
    struct trial t = {.rig = rig,
                      .id = id,
                      .chosen = (int)random_below(&seed, (unsigned)rig->ranks),
                      .hash = (uint32_t)random_next(&seed),
                      .sequence = random_next(&seed)};
    int faults = try_late(&t) + try_missing(&t) + try_different(&t) + try_abort(&t);
    must(rig_reset(rig, 0), "reset");
    return faults;
}
