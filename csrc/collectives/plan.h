/* Which algorithm, with how many blocks and threads, and why. A pure function: everything that the
 * choice of an algorithm depends on is the same on every rank. */
#ifndef SMFAR_COLLECTIVES_PLAN_H
#define SMFAR_COLLECTIVES_PLAN_H

#include "../comm/comm.h"
#include "../comm/names.h"

struct plan_query {
    enum collective collective;
    enum smfar_dtype dtype;
    enum smfar_op op;
    uint64_t count;
    int ranks;
    struct agreed agreed;
    const char *multicast_reason;
};

struct plan {
    const char *algorithm; /* "twoshot_mc" */
    enum kernel_id kernel; /* KERNELS where no kernel moves data */
    int oneshot; /* the kernel reads the tensor where it is, and uses the one-shot slots */
    int blocks, threads;
    uint64_t chunk; /* elements in one step */
    char reason[160];
};

/* Plans of one communicator's recent calls, so that a repeated call does not plan again. */
struct plan_cache;

/* SMFAR_ERR_UNSUPPORTED, naming op and type, when there is no way yet. */
enum smfar_status plan_make(const struct plan_query *query, struct plan *plan_out);

#endif
