/* The plan of what only moves data: a kernel that pulls it, or copies between barriers. */
#include <stdio.h>

#include "plan.h"

enum {
    PULL_THREADS = 1024,   /* as many bytes in flight as one SM can keep */
    PULL_TILE = 4096,      /* bytes that a warp moves at a time */
    LEAST_FREE = 1 << 20,  /* below this meetings of streams cost more than a kernel */
    PULL_ANYHOW = 64 << 10 /* whatever its parts or the memory are like */
};

/* What a rank has goes to every rank alike. */
static int is_same_for_all(const struct plan_query *query)
{
    return query->collective == COLLECTIVE_BROADCAST || query->collective == COLLECTIVE_ALL_GATHER;
}

/* And one copy reaches all. */
static int copies_to_all(const struct plan_query *query)
{
    return is_same_for_all(query) && query->agreed.multicast && query->agreed.multicast_copy;
}

/* Asked for, for the call or for the group's large ones. */
static int without_sms(const struct plan_query *query)
{
    uint64_t bytes = query->count * dtype_bytes(query->dtype);
    int large = bytes >= LEAST_FREE || query->collective == COLLECTIVE_ALL_TO_ALL_V;
    if (query->hint.sm_budget == SMFAR_NO_SMS) return 1;
    return query->agreed.copy_engines && large && !query->captured &&
           query->hint.algorithm != ALGORITHM_PULL_PEER;
}

/* One kernel instead of barriers and copies, for parts of one size. In host memory large ones are
 * better copied, and a root's own links carry a broadcast once where one copy reaches all. */
static int may_pull_moves(const struct plan_query *query)
{
    uint64_t bytes = query->count * dtype_bytes(query->dtype);
    int small = bytes <= PULL_ANYHOW, broadcast = query->collective == COLLECTIVE_BROADCAST;
    if (without_sms(query) || query->collective == COLLECTIVE_ALL_TO_ALL_V) return 0;
    if (query->hint.algorithm == ALGORITHM_PULL_PEER || small) return 1;
    if (bytes % 16 || query->agreed.pageable) return 0;
    return !broadcast || !copies_to_all(query);
}

static void plan_pull(const struct plan_query *query, struct plan *plan)
{
    enum collective collective = query->collective;
    int apart = collective == COLLECTIVE_ALL_TO_ALL || collective == COLLECTIVE_SCATTER;
    int rooted = collective == COLLECTIVE_BROADCAST || collective == COLLECTIVE_SCATTER;
    plan->pull = 1;
    plan->algorithm = ALGORITHM_PULL_PEER;
    plan->name = algorithm_rows[plan->algorithm].name;
    plan->kernel = KERNEL_pull_peer;
    plan->chunk =
        plan_elements(query, query->agreed.chunk_bytes / (apart ? (size_t)query->ranks : 1));
    uint64_t elements = query->count < plan->chunk ? query->count : plan->chunk;
    uint64_t tiles = (elements * dtype_bytes(query->dtype) + PULL_TILE - 1) / PULL_TILE;
    if (!rooted) tiles *= (uint64_t)query->ranks;
    plan_spread(tiles * 32, PULL_THREADS, plan_budget(query, 0), plan);
    if (plan->threads < PLAN_LEAST_THREADS) plan->threads = PLAN_LEAST_THREADS;
    snprintf(plan->reason, sizeof(plan->reason), "%s",
             query->hint.algorithm == ALGORITHM_PULL_PEER
                 ? "it was asked for"
                 : "a kernel reads straight into the outputs");
}

/* Copies between barriers; what every rank gets is copied to all at once where that works. */
static void plan_copies(const struct plan_query *query, struct plan *plan)
{
    int multicast = copies_to_all(query);
    plan->name = multicast ? "copy_mc" : "copy_peer";
    plan->kernel = KERNELS;
    plan->streams = without_sms(query);
    plan->blocks = plan->streams ? 0 : 1; /* of the barriers */
    plan->threads = plan->streams ? 0 : 32;
    snprintf(plan->reason, sizeof(plan->reason), "%s",
             multicast ? "copies to the multicast address were tried and work"
             : is_same_for_all(query)
                 ? "one copy to each peer: no copies to a multicast address here"
                 : "every rank gets something else");
}

void plan_move(const struct plan_query *query, struct plan *plan)
{
    if (may_pull_moves(query))
        plan_pull(query, plan);
    else
        plan_copies(query, plan);
}
