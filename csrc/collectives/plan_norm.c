/* The plan of an all-reduce with RMSNorm: how rows are dealt to blocks and groups of threads. */
#include <stdio.h>

#include "plan.h"

enum { THREADS = 512, WARP = 32, MOST_GROUPS = 15 };

/* Vectors of 16 bytes of a row that a warp takes at a time: see the norm_*.ptxh of ptx/. */
static uint64_t warp_vectors(int multicast, int ranks)
{
    if (multicast) return 256;
    return ranks == 8 ? 64 : 128;
}

/* As many threads as a row has work for: 32 times a power of two. */
static int group_of(const struct plan_query *query, int multicast)
{
    uint64_t bytes = query->row * dtype_bytes((int)query->dtype);
    uint64_t each = 16 * warp_vectors(multicast, query->ranks);
    int group = WARP;
    while (group < THREADS && (uint64_t)group / WARP * each < bytes)
        group *= 2;
    return group;
}

/* One row a block while there are blocks, then one a group. */
static void shape(const struct plan_query *query, int multicast, struct plan *plan)
{
    uint64_t count = query->count < plan->chunk ? query->count : plan->chunk;
    uint64_t ranks = (uint64_t)query->ranks, budget = (uint64_t)plan_budget(query, multicast);
    uint64_t rows = (count / query->row + ranks - 1) / ranks; /* a rank's own */
    uint64_t leg = plan->leg / (query->row * dtype_bytes((int)query->dtype));
    if (leg && leg < rows) rows = leg;
    if (rows == 0) rows = 1;
    plan->group = group_of(query, multicast);
    plan->blocks = (int)(rows < budget ? rows : budget);
    uint64_t groups = (rows + (uint64_t)plan->blocks - 1) / (uint64_t)plan->blocks;
    uint64_t most = (uint64_t)(THREADS / plan->group);
    if (most > MOST_GROUPS && plan->group > WARP) most = MOST_GROUPS;
    plan->threads = plan->group * (int)(groups < most ? groups : most);
}

static enum smfar_status cut_rows(const struct plan_query *query, struct plan *plan)
{
    if (query->halves) plan->chunk /= 2;
    plan->chunk = plan->chunk / query->row * query->row;
    if (plan->chunk) return SMFAR_OK;
    return FAIL(SMFAR_ERR_UNSUPPORTED,
                "all_reduce_rms_norm: a row of %u elements of %s does not fit the staging slot of "
                "%zu bytes%s; set SMFAR_CHUNK_BYTES to more, on every rank",
                query->row, name_dtype((int)query->dtype), query->agreed.chunk_bytes,
                query->halves ? ", which takes its sums, too" : "");
}

static enum smfar_status refuse(const struct plan_query *query)
{
    if (query->hint.sm_budget == SMFAR_NO_SMS)
        return FAIL(SMFAR_ERR_UNSUPPORTED, "all_reduce_rms_norm without an SM: copy engines cannot "
                                           "add; allow one block or more");
    return FAIL(SMFAR_ERR_UNSUPPORTED,
                "all_reduce_rms_norm of %s is not available: it takes f32, f16 and bf16",
                name_dtype((int)query->dtype));
}

/* In whole rows, of which a leg has as many as plan_leg says, or one. */
static void plan_split(const struct plan_query *query, enum algorithm algorithm, struct plan *plan)
{
    size_t row = query->row * dtype_bytes((int)query->dtype);
    plan->algorithm = algorithm;
    plan->name = algorithm_rows[algorithm].name;
    plan->kernel = plan_split_kernel(query, algorithm);
    plan->streams = 1;
    plan->chunk = plan_split_chunk(query, algorithm);
    size_t rows = plan_leg(query, plan) / row;
    plan->leg = (rows ? rows : 1) * row;
    shape(query, algorithm_rows[algorithm].multicast, plan);
    snprintf(plan->reason, sizeof(plan->reason), "it was asked for");
}

enum smfar_status plan_norm(const struct plan_query *query, struct plan *plan)
{
    enum algorithm wish = query->hint.algorithm;
    int peers = wish != ALGORITHM_ANY && !algorithm_rows[wish].multicast;
    int multicast = plan_may_switch(query) && !peers;
    plan->name = multicast ? "fused_mc" : "fused_peer";
    plan->kernel =
        kernel_find(multicast ? "rms_norm_mc" : "rms_norm_peer", SMFAR_SUM, query->dtype);
    if (plan->kernel == KERNELS || query->hint.sm_budget == SMFAR_NO_SMS) return refuse(query);
    if (algorithm_is_split(wish) && plan_split_kernel(query, wish) != KERNELS) {
        plan_split(query, wish, plan);
        return SMFAR_OK;
    }
    enum smfar_status status = cut_rows(query, plan);
    if (status != SMFAR_OK) return status;
    shape(query, multicast, plan);
    if (multicast)
        snprintf(plan->reason, sizeof(plan->reason), "multicast is on");
    else if (query->agreed.multicast)
        snprintf(plan->reason, sizeof(plan->reason), "%s",
                 peers ? "peers were asked for" : "a fixed order was asked for");
    else
        snprintf(plan->reason, sizeof(plan->reason), "multicast is %.120s",
                 query->multicast_reason);
    plan_split_say_why_not(query, plan);
    return SMFAR_OK;
}
