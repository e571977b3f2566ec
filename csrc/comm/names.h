/* The words for collectives, types and ops in messages and reports. */
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

#endif
