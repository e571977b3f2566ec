/* See plan.h. */
#include "plan.h"

#include <stdio.h>
#include <string.h>

/* Bytes of its rank's share that one thread reduces at a time: eight vectors of 16 through the
 * switch; over peers a thread has 16 vectors in flight, of all ranks together. */
enum {
    MC_BYTES = 128,
    PEER_BYTES = 256,
    MC_THREADS = 1024,
    PEER_THREADS = 512,
    LEAST_THREADS = 128,
    ONESHOT_READS = 512 << 10 /* what each rank may read for the sake of one barrier less */
};

/* Measured for switch kernels elsewhere: two blocks carry a link's share at eight ranks, four at
 * fewer, where each rank reduces more. Over peers eight fill the link. */
static int default_budget(int multicast, int ranks)
{
    if (!multicast) return 8;
    return ranks >= 8 ? 2 : 4;
}

static int least(int a, int b) { return a < b ? a : b; }

/* As many threads as have work, then as many blocks as that fills, up to the budget. */
static void shape(const struct plan_query *query, int multicast, int oneshot, struct plan *plan)
{
    uint64_t chunk = query->count < plan->chunk ? query->count : plan->chunk;
    uint64_t bytes = chunk * dtype_bytes(query->dtype);
    int divided = !oneshot && query->collective != COLLECTIVE_REDUCE_SCATTER;
    if (divided) bytes /= (uint64_t)query->ranks;
    uint64_t each = multicast ? MC_BYTES : PEER_BYTES / (uint64_t)query->ranks;
    if (oneshot) each = 32;
    if (each < 16) each = 16;
    uint64_t threads = (bytes + each - 1) / each;
    int most = multicast ? MC_THREADS : PEER_THREADS;
    int budget = default_budget(multicast, query->ranks);
    if (query->agreed.sm_budget) budget = query->agreed.sm_budget;
    budget = least(budget, query->agreed.resident_blocks);
    uint64_t blocks = (threads + (uint64_t)most - 1) / (uint64_t)most;
    plan->blocks = blocks<1 ? 1 : blocks>(uint64_t) budget ? budget : (int)blocks;
    plan->threads = threads >= (uint64_t)most ? most : ((int)threads + 31) / 32 * 32;
    if (plan->threads < LEAST_THREADS) plan->threads = LEAST_THREADS;
}

/* What is wrong with an op that no kernel serves, and what would do. */
static const char *why_not(const struct plan_query *query)
{
    int bitwise = query->op >= SMFAR_BAND && query->op <= SMFAR_BXOR;
    switch (query->dtype) {
    case SMFAR_F8_E4M3:
    case SMFAR_F8_E5M2:
        return "8-bit floats are only moved; convert to bf16 first";
    case SMFAR_C64:
    case SMFAR_C128:
        return "complex numbers have sum, avg and premul_sum";
    case SMFAR_BOOL:
        return "bools have sum, product, min, max, band, bor and bxor; convert to f32 first";
    default:
        return bitwise ? "bitwise ops take integers and bools"
                       : "premul_sum takes f16, bf16, f32, f64 and complex numbers";
    }
}

/* One phase of the barrier instead of two, but each rank reads all of every rank's. */
static int fits_oneshot(const struct plan_query *query)
{
    uint64_t bytes = query->count * dtype_bytes(query->dtype);
    return query->collective == COLLECTIVE_ALL_REDUCE && bytes <= query->agreed.oneshot_bytes &&
           bytes <= ONESHOT_READS / (uint64_t)query->ranks;
}

static enum smfar_status plan_reduction(const struct plan_query *query, struct plan *plan)
{
    enum kernel_id mc = kernel_find("all_reduce_twoshot_mc", query->op, query->dtype);
    enum kernel_id peer = kernel_find("all_reduce_twoshot_peer", query->op, query->dtype);
    if (peer == KERNELS)
        return FAIL(SMFAR_ERR_UNSUPPORTED, "%s(%s) of %s is not available: %s",
                    name_collective(query->collective), name_op(query->op),
                    name_dtype(query->dtype), why_not(query));
    enum kernel_id oneshot = kernel_find("all_reduce_oneshot_peer", query->op, query->dtype);
    int multicast = query->agreed.multicast && mc != KERNELS;
    plan->oneshot = !multicast && oneshot != KERNELS && fits_oneshot(query);
    plan->algorithm = multicast ? "twoshot_mc" : plan->oneshot ? "oneshot_peer" : "twoshot_peer";
    plan->kernel = multicast ? mc : plan->oneshot ? oneshot : peer;
    shape(query, multicast, plan->oneshot, plan);
    if (multicast)
        snprintf(plan->reason, sizeof(plan->reason), "multicast is on and the switch has %s of %s",
                 name_op(query->op), name_dtype(query->dtype));
    else if (query->agreed.multicast)
        snprintf(plan->reason, sizeof(plan->reason), "the switch has no safe %s of %s",
                 name_op(query->op), name_dtype(query->dtype));
    else
        snprintf(plan->reason, sizeof(plan->reason), "multicast is %.120s",
                 query->multicast_reason);
    return SMFAR_OK;
}

/* Copies between barriers; what every rank gets is copied to all at once where that works. */
static void plan_copies(const struct plan_query *query, struct plan *plan)
{
    int same =
        query->collective == COLLECTIVE_BROADCAST || query->collective == COLLECTIVE_ALL_GATHER;
    int multicast = same && query->agreed.multicast && query->agreed.multicast_copy;
    plan->algorithm = multicast ? "copy_mc" : "copy_peer";
    plan->kernel = KERNELS;
    plan->blocks = 1; /* of the barriers */
    plan->threads = 32;
    snprintf(plan->reason, sizeof(plan->reason), "%s",
             multicast ? "copies to the multicast address were tried and work"
             : same    ? "one copy to each peer: no copies to a multicast address here"
                       : "every rank gets something else");
}

/* How many pieces a pair of ranks needs is known to those two alone. */
static void plan_messages(struct plan *plan)
{
    plan->algorithm = "messages";
    plan->kernel = KERNELS;
    plan->blocks = 1; /* of the barrier */
    plan->threads = 32;
    snprintf(plan->reason, sizeof(plan->reason), "every pair of ranks has a size of its own");
}

static void plan_barrier(const struct plan_query *query, struct plan *plan)
{
    plan->algorithm = query->agreed.multicast ? "kernel_mc" : "kernel_peer";
    plan->kernel = query->agreed.multicast ? KERNEL_barrier_mc : KERNEL_barrier_peer;
    plan->blocks = 1;
    plan->threads = 32;
    snprintf(plan->reason, sizeof(plan->reason), "one block of one warp");
}

/* Is the staging slot divided among the ranks? */
static int is_divided(enum collective collective)
{
    return collective == COLLECTIVE_ALL_GATHER || collective == COLLECTIVE_REDUCE_SCATTER ||
           collective == COLLECTIVE_ALL_TO_ALL || collective == COLLECTIVE_GATHER;
}

static int is_reduction(enum collective collective)
{
    return collective == COLLECTIVE_ALL_REDUCE || collective == COLLECTIVE_REDUCE ||
           collective == COLLECTIVE_REDUCE_SCATTER;
}

/* Elements of one step: what fits the staging slot. */
static uint64_t chunk_elements(const struct plan_query *query)
{
    uint64_t bytes = query->agreed.chunk_bytes;
    if (is_divided(query->collective)) bytes /= (uint64_t)query->ranks;
    size_t element = dtype_bytes((int)query->dtype);
    uint64_t elements = element ? bytes / 16 * 16 / element : 0;
    return elements ? elements : 1;
}

enum smfar_status plan_make(const struct plan_query *query, struct plan *plan_out)
{
    struct plan plan;
    enum smfar_status status = SMFAR_OK;
    memset(&plan, 0, sizeof(plan));
    plan.chunk = chunk_elements(query);
    if (is_reduction(query->collective))
        status = plan_reduction(query, &plan);
    else if (query->collective == COLLECTIVE_BARRIER)
        plan_barrier(query, &plan);
    else if (query->collective == COLLECTIVE_ALL_TO_ALL_V)
        plan_messages(&plan);
    else
        plan_copies(query, &plan);
    if (status == SMFAR_OK) *plan_out = plan;
    return status;
}
