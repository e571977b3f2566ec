/* The words for collectives, algorithms, types and ops in messages and reports. */
#ifndef SMFAR_COMM_NAMES_H
#define SMFAR_COMM_NAMES_H

#include "../smfar.h"

enum collective {
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_BARRIER,
    COLLECTIVE_REDUCE,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_ALL_TO_ALL_V,
    COLLECTIVE_GATHER,
    COLLECTIVE_SCATTER,
    COLLECTIVE_RMS_NORM,
    COLLECTIVES
};

/* The ways of reducing. ANY: whichever suits. */
enum algorithm {
    ALGORITHM_ANY,
    ALGORITHM_TWOSHOT_MC,
    ALGORITHM_SPLIT_MC,
    ALGORITHM_PUSH_MC,
    ALGORITHM_ONESHOT_MC,
    ALGORITHM_PUSH_PEER,
    ALGORITHM_ONESHOT_PEER,
    ALGORITHM_TWOSHOT_PEER,
    ALGORITHM_SPLIT_PEER,
    ALGORITHM_PULL_MC,
    ALGORITHM_PULL_PEER,
    ALGORITHMS
};

struct algorithm_row {
    const char *name;
    int multicast;   /* it needs the switch */
    int whole;       /* a tensor goes in one launch, so there is a most that it takes */
    int threads;     /* of a block, at most, for their registers */
    unsigned serves; /* a bit for each collective */
};
extern const struct algorithm_row algorithm_rows[ALGORITHMS];

/* ALGORITHMS where there is none of this name. */
enum algorithm algorithm_named(const char *name);

/* What RMS_NORM has in place of a root: how the sums lie, and the weight's type (-1: no weight). */
static inline int norm_root(enum smfar_sums layout, int weight_dtype)
{
    return (int)layout | (weight_dtype + 1) << 2;
}
static inline enum smfar_sums norm_layout(int root) { return (enum smfar_sums)(root & 3); }
static inline int norm_weight(int root) { return (root >> 2) - 1; }

const char *name_collective(int collective);
const char *name_dtype(int dtype);
const char *name_op(int op);
size_t dtype_bytes(int dtype);
int dtype_is_float8(int dtype);

#endif
