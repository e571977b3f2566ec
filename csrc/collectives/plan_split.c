/* What of a plan is a split's alone: whether there can be one, and the steps and legs that it has.
 * An all-reduce's parts are whole lines, those of one with RMSNorm whole rows. */
#include <stdio.h>
#include <string.h>

#include "../comm/meeting.h"
#include "plan.h"

enum {
    LINE = 128,
    VECTOR = 16,
    LEGS = 4,
    STEPS = MEETINGS_MOST / (2 * LEGS), /* at most; a step has up to 2 * LEGS - 1 legs of rows */
    LEG_LEAST = 64                      /* as a part of the largest step, which takes some 200 us */
};

int algorithm_is_split(enum algorithm algorithm)
{
    return algorithm == ALGORITHM_SPLIT_MC || algorithm == ALGORITHM_SPLIT_PEER;
}

uint64_t plan_whole_lines(const struct plan_query *query, size_t bytes)
{
    return bytes / LINE * LINE / dtype_bytes((int)query->dtype);
}

/* Bytes that a rank's part of a step may have. The staging slot holds over peers that of every
 * other rank twice, inputs and results; through the switch that of every rank, and my results,
 * which may begin at any place in a vector. */
static size_t room(const struct plan_query *query, enum algorithm algorithm)
{
    size_t ranks = (size_t)query->ranks, bytes = query->agreed.chunk_bytes, others = ranks - 1;
    if (algorithm == ALGORITHM_SPLIT_MC) return (bytes - VECTOR) / (ranks + 1);
    return bytes / (others ? 2 * others : 1);
}

uint64_t plan_split_chunk(const struct plan_query *query, enum algorithm algorithm)
{
    size_t row = query->row * dtype_bytes((int)query->dtype);
    size_t part = room(query, algorithm) / LINE * LINE;
    uint64_t elements = row ? part / row * query->row : plan_whole_lines(query, part);
    return elements * (uint64_t)query->ranks;
}

uint64_t plan_split_shortest(const struct plan_query *query)
{
    uint64_t ranks = (uint64_t)query->ranks, bytes = query->count * dtype_bytes((int)query->dtype);
    return plan_whole_lines(query, bytes / STEPS / ranks + LINE) * ranks;
}

size_t plan_leg(const struct plan_query *query, const struct plan *plan)
{
    uint64_t elements = query->count < plan->chunk ? query->count : plan->chunk;
    size_t share = elements * dtype_bytes((int)query->dtype) / (size_t)query->ranks;
    size_t least = query->agreed.chunk_bytes / LEG_LEAST, leg = share / LEGS;
    if (leg < least) leg = least;
    return leg / LINE * LINE + LINE;
}

static enum kernel_id find_kernel(const struct plan_query *query, enum algorithm algorithm)
{
    char file[64];
    int norm = query->collective == COLLECTIVE_RMS_NORM;
    snprintf(file, sizeof(file), "%s_%s", norm ? "rms_norm" : "all_reduce",
             algorithm_rows[algorithm].name);
    return kernel_find(file, norm ? SMFAR_SUM : query->op, query->dtype);
}

/* Why the algorithm, a split, cannot serve the call, or NULL. */
static const char *find_fault(const struct plan_query *query, enum algorithm algorithm)
{
    int multicast = algorithm_rows[algorithm].multicast;
    int norm = query->collective == COLLECTIVE_RMS_NORM;
    uint64_t chunk = plan_split_chunk(query, algorithm);
    if (query->collective != COLLECTIVE_ALL_REDUCE && !norm) return "only all-reduces are split";
    if (query->captured) return "streams cannot meet in a CUDA graph";
    if (multicast && !query->agreed.multicast) return "multicast is off";
    if (multicast && !plan_may_switch(query)) return "a fixed order was, too";
    if (norm && query->ranks == 1) return "one rank has nobody to meet";
    if (query->spread) return "every rank is to get the sums, too";
    if (find_kernel(query, algorithm) == KERNELS) return "it has no kernel for this";
    if (multicast && dtype_is_float8(query->dtype) && !query->agreed.multicast_float8)
        return "this switch sums no 8-bit floats";
    if (chunk == 0) return "its parts do not fit the staging slot: SMFAR_CHUNK_BYTES is too small";
    if (query->count > STEPS * chunk)
        return "it takes too many steps: SMFAR_CHUNK_BYTES is too small";
    return NULL;
}

enum kernel_id plan_split_kernel(const struct plan_query *query, enum algorithm algorithm)
{
    return find_fault(query, algorithm) ? KERNELS : find_kernel(query, algorithm);
}

void plan_split_say_why_not(const struct plan_query *query, struct plan *plan)
{
    enum algorithm wish = query->hint.algorithm;
    size_t length = strlen(plan->reason);
    if (!algorithm_is_split(wish) || plan->algorithm == wish) return;
    snprintf(plan->reason + length, sizeof(plan->reason) - length, "; %s was asked for, but %s",
             algorithm_rows[wish].name, find_fault(query, wish));
}
