/* Which algorithm, with how many blocks and threads, and why. A pure function: everything that the
 * choice of an algorithm depends on is the same on every rank. */
#ifndef SMFAR_COLLECTIVES_PLAN_H
#define SMFAR_COLLECTIVES_PLAN_H

#include "../comm/comm.h"
#include "../comm/names.h"
#include "../comm/plan_table.h"

/* Those that take the whole in one launch, and read and write tensors where they lie. */
int algorithm_is_push(enum algorithm algorithm);
int algorithm_is_oneshot(enum algorithm algorithm);

/* Those of split.h. */
int algorithm_is_split(enum algorithm algorithm);

/* What the calling thread wishes: see smfar_hint_set. */
struct hint {
    enum algorithm algorithm;
    int sm_budget; /* 0: no wish */
    int fixed_order;
};

struct plan_query {
    enum collective collective;
    enum smfar_dtype dtype;
    enum smfar_op op;
    uint64_t count;
    uint32_t row; /* elements of a row, of RMS_NORM: a step takes whole ones */
    int halves;   /* the staging slot takes two tensors */
    int spread;   /* every rank gets the sums, too, of RMS_NORM */
    int ranks;
    int captured; /* in a graph: what streams write and wait for would be the same at each replay */
    struct agreed agreed;
    struct hint hint;
    const char *multicast_reason, *float8_reason;
    const struct plan_table *table; /* NULL: there is none */
};

struct plan {
    const char *name;         /* "twoshot_mc" */
    enum algorithm algorithm; /* ANY where nothing is reduced */
    enum kernel_id kernel;    /* KERNELS where no kernel moves data */
    int streams;              /* the streams meet; no kernel waits for another rank */
    int pull; /* the kernel reads what this rank wants of every rank, into its own output */
    int blocks, threads;
    int group;                  /* threads to a row, of RMS_NORM */
    uint64_t chunk;             /* elements in one step */
    const struct plan_row *row; /* of the plan table, where it has decided */
    int longer;                 /* steps are longer than it says, or there would be too many */
    size_t leg;                 /* bytes that a split reduces, and then copies, at a time */
    char reason[256];
};

/* Plans of one communicator's recent calls, so that a repeated call does not plan again. */
struct plan_cache;

/* The calling thread's. */
extern _Thread_local struct hint plan_hint;

/* The most blocks that the call may have. */
int plan_budget(const struct plan_query *query, int multicast);

/* May the switch sum? Multicast is on, and nobody has asked for a fixed order. */
int plan_may_switch(const struct plan_query *query);

/* No launch that moves data has fewer. */
enum { PLAN_LEAST_THREADS = 128 };

/* So many threads, in as many blocks as they fill, up to the budget. */
void plan_spread(uint64_t threads, int most, int budget, struct plan *plan);

/* Elements in so many bytes, rounded down to whole vectors; at least one. */
uint64_t plan_elements(const struct plan_query *query, size_t bytes);

/* The same, rounded down to whole lines. */
uint64_t plan_whole_lines(const struct plan_query *query, size_t bytes);

/* plan_split.c. The kernel by which a split can serve the call, or KERNELS. */
enum kernel_id plan_split_kernel(const struct plan_query *query, enum algorithm algorithm);

/* Elements in its largest step, and in the shortest for which its streams have meetings. */
uint64_t plan_split_chunk(const struct plan_query *query, enum algorithm algorithm);
uint64_t plan_split_shortest(const struct plan_query *query);

/* Bytes of a leg of a split, of whose steps `plan` has the elements: a share in some legs, but none
 * shorter than is worth a launch and a copy of its own. */
size_t plan_leg(const struct plan_query *query, const struct plan *plan);

/* Adds to the reason why a split that was asked for is not taken. */
void plan_split_say_why_not(const struct plan_query *query, struct plan *plan);

/* plan_move.c: of what only moves data. */
void plan_move(const struct plan_query *query, struct plan *plan);

/* plan_norm.c: of RMS_NORM. */
enum smfar_status plan_norm(const struct plan_query *query, struct plan *plan);

/* SMFAR_ERR_UNSUPPORTED, naming op and type, when there is no way yet. */
enum smfar_status plan_make(const struct plan_query *query, struct plan *plan_out);

#endif
