/* A schedule, in two parts: schedule_draw.c says what happens, schedule.c has it run and looks at
 * what came of it. */
#ifndef SMFAR_TESTS_SCHEDULE_H
#define SMFAR_TESTS_SCHEDULE_H

#include "case.h"
#include "norm.h"
#include "rig.h"

enum {
    MOST_LAUNCHES = 3,
    GUARD = 64,
    SLOT = RIG_AREA / (MOST_LAUNCHES + 1), /* slot 0 for all that is staged, then one a launch */
    FEW_RANKS = 4,                         /* with more, grids are small */
    MOST_COUNT = 3000,
    BOX = 48 << 10,                                 /* for the packets of that many longs */
    ONESHOTS = RIG_BOXES + 2 * RIG_MAX_RANKS * BOX, /* their two slots */
    MOST_TURNS = 400000                             /* several timeouts */
};
#define TIMEOUT_NS (50ull * 1000 * 1000)
#define SHORT_TIMEOUT_NS (4ull * 1000 * 1000)

/* TOO_LATE: any wait may miss its deadline, and what the streams do next spoils the chunk. */
enum kind { ALL_WELL, MISSING, DIFFERENT, ABORTED, TOO_LATE };

/* One launch of all ranks, and a rank's part in it. */
struct part {
    CUdeviceptr at;                        /* of the result's first byte */
    unsigned char *input, *before, *after; /* before and after with guards */
};
struct step {
    struct check_case c;
    size_t element;
    size_t bytes;  /* of a rank's result; of a pull, all outputs side by side */
    int apart;     /* every rank's result is its own */
    size_t stride; /* of a pull: from one output to the next */
    int parts;     /* of a rank's input */
    size_t part_bytes;
    unsigned char *expected, *junk;
    struct part part[RIG_MAX_RANKS];
    struct norm_step norm; /* of the rms_norm kernels */
};

struct schedule {
    struct rig *rig;
    enum kernel_id id;
    uint64_t seed, random;
    enum kind kind;
    int chosen, launches, late_record, early_done;
    /* The chosen rank's word comes to the first launch, but no packet. 2: grids are of any size,
     * and so packets of others may not come either, from blocks that begin after their rank has
     * failed. */
    int lost;
    int replayed; /* as by a graph, of whose ends no host is told */
    long turns_left;
    uint32_t hash,
        hash_step; /* of the first launch, and from each to the next: 0, all are one call */
    uint64_t timeout_ns;
    struct step step[MOST_LAUNCHES];
    uint64_t done[RIG_MAX_RANKS]; /* what the host has been told */
    /* barriers: what each rank writes before launch i, and sees of the others behind it */
    uint32_t mark[MOST_LAUNCHES], seen[MOST_LAUNCHES][RIG_MAX_RANKS][RIG_MAX_RANKS];
};

/* Draws what happens. */
void schedule_draw(struct schedule *s);

/* Of launch i on rank r, for blocks of so many threads. A pull's first output is dst, too, which
 * the kernel does not look at. */
void schedule_arguments(const struct schedule *s, int i, int r, int threads,
                        union arguments *args_out);

static inline unsigned schedule_random(struct schedule *s, unsigned limit)
{
    return random_below(&s->random, limit);
}

static inline int schedule_is_barrier(const struct schedule *s) { return case_is_dataless(s->id); }

/* 1 when some launches, or all, may be marked done. */
static inline int schedule_may_end_well(const struct schedule *s)
{
    return s->kind == ALL_WELL || s->kind == TOO_LATE;
}

/* Where rank r's result begins in what is expected of all. */
static inline size_t schedule_own(const struct step *step, int r)
{
    return step->apart ? step->bytes * (size_t)r : 0;
}

static inline int schedule_takes_part(const struct schedule *s, int r)
{
    return (s->kind != MISSING && s->kind != ABORTED) || r != s->chosen;
}

#endif
