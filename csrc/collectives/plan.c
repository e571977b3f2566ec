/* See plan.h. */
#include "plan.h"

#include <stdio.h>
#include <string.h>

/* Bytes of its rank's share that one thread reduces at a time: eight vectors of 16 through the
 * switch; over peers a thread has 16 vectors in flight, of all ranks together. */
enum {
    MC_BYTES = 128,
    PEER_BYTES = 256,
    PUSH_THREADS = 256,     /* moving data: more would have another block, where one may be had */
    PEER_THREADS = 128,     /* the same */
    SMALL_READS = 128 << 10 /* by default, of all ranks' data through the switch; see suits */
};

_Thread_local struct hint plan_hint;

static int is_pull(enum algorithm algorithm)
{
    return algorithm == ALGORITHM_PULL_MC || algorithm == ALGORITHM_PULL_PEER;
}

int algorithm_is_push(enum algorithm algorithm)
{
    return algorithm == ALGORITHM_PUSH_MC || algorithm == ALGORITHM_PUSH_PEER;
}

int algorithm_is_oneshot(enum algorithm algorithm)
{
    return algorithm == ALGORITHM_ONESHOT_MC || algorithm == ALGORITHM_ONESHOT_PEER;
}

/* Measured for switch kernels elsewhere: two blocks carry a link's share at eight ranks, four at
 * fewer, where each rank reduces more. Over peers eight fill the link. */
static int default_budget(int multicast, int ranks)
{
    if (!multicast) return 8;
    return ranks >= 8 ? 2 : 4;
}

static int least(int a, int b) { return a < b ? a : b; }

/* The budget that was asked for, or else `usual`. */
static int most_blocks(const struct plan_query *query, int usual)
{
    int group = query->agreed.sm_budget, call = query->hint.sm_budget;
    int budget = call ? call : group ? group : usual;
    if (group) budget = least(budget, group);
    return least(budget, query->agreed.resident_blocks);
}

int plan_budget(const struct plan_query *query, int multicast)
{
    return most_blocks(query, default_budget(multicast, query->ranks));
}

/* What one launch reduces or, in a one-shot, reads. */
static uint64_t bytes_per_launch(const struct plan_query *query, const struct plan *plan)
{
    uint64_t chunk = query->count < plan->chunk ? query->count : plan->chunk;
    uint64_t bytes = chunk * dtype_bytes(query->dtype);
    if (algorithm_is_oneshot(plan->algorithm) || algorithm_is_push(plan->algorithm) || plan->pull)
        return bytes;
    bytes /= (uint64_t)query->ranks;
    return plan->leg && plan->leg < bytes ? plan->leg : bytes;
}

uint64_t plan_elements(const struct plan_query *query, size_t bytes)
{
    size_t element = dtype_bytes((int)query->dtype);
    uint64_t elements = element ? bytes / 16 * 16 / element : 0;
    return elements ? elements : 1;
}

void plan_spread(uint64_t threads, int most, int budget, struct plan *plan)
{
    uint64_t blocks = (threads + (uint64_t)most - 1) / (uint64_t)most;
    plan->blocks = blocks<1 ? 1 : blocks>(uint64_t) budget ? budget : (int)blocks;
    plan->threads = threads >= (uint64_t)most ? most : ((int)threads + 31) / 32 * 32;
}

/* As many blocks as it takes with `enough` threads in each, within the budget; where that cuts them
 * down, up to `most` threads in each, none of which goes round more often than need be. Blocks have
 * equally many threads, and no more than that takes. */
static void spread_evenly(uint64_t threads, int enough, int most, int budget, struct plan *plan)
{
    if (!threads) threads = 1;
    plan_spread(threads, enough, budget, plan);
    uint64_t blocks = (uint64_t)plan->blocks;
    uint64_t rounds = (threads + blocks * (uint64_t)most - 1) / (blocks * (uint64_t)most);
    uint64_t each = (threads + blocks * rounds - 1) / (blocks * rounds);
    plan->threads = (int)((each + 31) / 32 * 32);
}

/* The table's blocks, of which a budget stays the most, or 0. */
static int row_blocks(const struct plan_query *query, const struct plan *plan)
{
    int blocks = plan->row ? plan->row->blocks : 0;
    return blocks ? least(blocks, most_blocks(query, blocks)) : 0;
}

/* As many threads as have work, in as many blocks as a row of the table says; its threads, if it
 * says how many. */
static void shape(const struct plan_query *query, struct plan *plan)
{
    int multicast = algorithm_rows[plan->algorithm].multicast;
    uint64_t each = multicast ? MC_BYTES : PEER_BYTES / (uint64_t)query->ranks;
    if (plan->algorithm == ALGORITHM_ONESHOT_PEER) each = 32;
    if (algorithm_is_push(plan->algorithm)) each = 16;
    if (each < 16) each = 16;
    uint64_t threads = (bytes_per_launch(query, plan) + each - 1) / each;
    int most = algorithm_rows[plan->algorithm].threads, told = row_blocks(query, plan);
    int budget = told ? told : plan_budget(query, multicast);
    if (algorithm_is_push(plan->algorithm)) {
        spread_evenly(threads, told ? 1 : PUSH_THREADS, most - 32, budget, plan);
        plan->threads += 32; /* a warp that moves no data */
    } else if (!multicast && threads <= (uint64_t)most * (uint64_t)budget) {
        spread_evenly(threads, told ? 1 : PEER_THREADS, most, budget, plan);
    } else {
        plan_spread(threads, most, budget, plan);
    }
    if (plan->threads < PLAN_LEAST_THREADS) plan->threads = PLAN_LEAST_THREADS;
    if (told) plan->blocks = told;
    if (plan->row && plan->row->threads) plan->threads = plan->row->threads;
}

/* What is wrong with an op that no kernel serves, and what would do. */
static const char *why_not(const struct plan_query *query)
{
    int bitwise = query->op >= SMFAR_BAND && query->op <= SMFAR_BXOR;
    switch (query->dtype) {
    case SMFAR_F8_E4M3:
    case SMFAR_F8_E5M2:
        return "8-bit floats have sum, avg, min, max and premul_sum; convert to bf16 first";
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
           bytes <= SMFAR_WHOLE_BYTES / (uint64_t)query->ranks;
}

/* No phase that anybody reads after, but twice the bytes, to every rank. */
static int fits_push(const struct plan_query *query)
{
    return query->collective == COLLECTIVE_ALL_REDUCE &&
           query->count * dtype_bytes(query->dtype) <= query->agreed.push_bytes;
}

/* Over peers the root of many ranks would read all their tensors alone. */
static int may_pull(const struct plan_query *query, enum algorithm algorithm)
{
    if (query->collective == COLLECTIVE_REDUCE)
        return algorithm_rows[algorithm].multicast || query->ranks <= 2;
    return query->collective == COLLECTIVE_REDUCE_SCATTER;
}

int plan_may_switch(const struct plan_query *query)
{
    return query->agreed.multicast && !query->agreed.fixed_order && !query->hint.fixed_order;
}

/* A push sums in rank order; of the switch it needs no sum. */
static int may_multicast(const struct plan_query *query, enum algorithm algorithm)
{
    if (algorithm == ALGORITHM_PUSH_MC) return query->agreed.multicast;
    return plan_may_switch(query) &&
           (!dtype_is_float8(query->dtype) || query->agreed.multicast_float8);
}

/* The kernel by which an algorithm can serve the call, or KERNELS. */
static enum kernel_id kernel_of(const struct plan_query *query, enum algorithm algorithm)
{
    char file[64];
    if (algorithm_is_split(algorithm)) return plan_split_kernel(query, algorithm);
    if (algorithm_rows[algorithm].multicast && !may_multicast(query, algorithm)) return KERNELS;
    if (is_pull(algorithm)) {
        const char *pull =
            algorithm_rows[algorithm].multicast ? "reduce_scatter_mc" : "reduce_scatter_peer";
        return may_pull(query, algorithm) ? kernel_find(pull, query->op, query->dtype) : KERNELS;
    }
    if (query->collective == COLLECTIVE_REDUCE_SCATTER) return KERNELS;
    if (algorithm_is_oneshot(algorithm) && !fits_oneshot(query)) return KERNELS;
    if (algorithm_is_push(algorithm) && !fits_push(query)) return KERNELS;
    snprintf(file, sizeof(file), "all_reduce_%s", algorithm_rows[algorithm].name);
    return kernel_find(file, query->op, query->dtype);
}

/* A switch that sums 8-bit floats would do it. */
static int lacks_float8(const struct plan_query *query)
{
    return dtype_is_float8(query->dtype) && !query->agreed.multicast_float8 &&
           kernel_find("all_reduce_twoshot_mc", query->op, query->dtype) != KERNELS;
}

static void say_why(const struct plan_query *query, struct plan *plan)
{
    const char *op = name_op(query->op), *dtype = name_dtype(query->dtype);
    if (query->hint.algorithm == plan->algorithm)
        snprintf(plan->reason, sizeof(plan->reason), "it was asked for");
    else if (plan->row)
        snprintf(plan->reason, sizeof(plan->reason), "line %d of the plan table says so%s",
                 plan->row->line,
                 plan->longer ? ", but for its chunk, in which this would be too many steps" : "");
    else if (plan->algorithm == ALGORITHM_PUSH_MC || plan->algorithm == ALGORITHM_ONESHOT_MC)
        snprintf(plan->reason, sizeof(plan->reason), "multicast is on and the tensor small");
    else if (algorithm_rows[plan->algorithm].multicast)
        snprintf(plan->reason, sizeof(plan->reason), "multicast is on and the switch has %s of %s",
                 op, dtype);
    else if (query->agreed.multicast && !plan_may_switch(query))
        snprintf(plan->reason, sizeof(plan->reason), "a fixed order was asked for");
    else if (query->agreed.multicast && lacks_float8(query))
        snprintf(plan->reason, sizeof(plan->reason), "%s of %s in the switch is %.110s", op, dtype,
                 query->float8_reason);
    else if (query->agreed.multicast)
        snprintf(plan->reason, sizeof(plan->reason), "the switch has no safe %s of %s", op, dtype);
    else
        snprintf(plan->reason, sizeof(plan->reason), "multicast is %.120s",
                 query->multicast_reason);
}

/* Is the algorithm, which can serve, worth it where nobody has asked for it?
 *
 * A push through the switch waits for others twice less than a two-shot, 2.7 us, but then each
 * thread waits for memory once per four ranks and vector, 0.33 us. So as much as the threads of the
 * usual blocks take by one vector each, or two; over a rank's link this, twice SMALL_READS as
 * packets, comes in 0.7 us. A one-shot waits once less, 1.4 us, copies in, 0.7 us, and its data,
 * SMALL_READS, take 0.3 us: it is for what is not pushed. */
static int suits(const struct plan_query *query, enum algorithm algorithm)
{
    uint64_t bytes = query->count * dtype_bytes(query->dtype);
    int is_small = bytes <= SMALL_READS / (uint64_t)query->ranks;
    return is_small || (algorithm != ALGORITHM_PUSH_MC && algorithm != ALGORITHM_ONESHOT_MC);
}

/* The first that serves: what was asked for, what the table says, then the defaults. */
static enum algorithm choose(const struct plan_query *query, const struct plan_row *row)
{
    static const enum algorithm order[] = {
        ALGORITHM_PULL_MC,      ALGORITHM_PUSH_MC,      ALGORITHM_ONESHOT_MC,
        ALGORITHM_TWOSHOT_MC,   ALGORITHM_PULL_PEER,    ALGORITHM_PUSH_PEER,
        ALGORITHM_ONESHOT_PEER, ALGORITHM_TWOSHOT_PEER, ALGORITHM_ANY};
    enum algorithm wish = query->hint.algorithm;
    enum algorithm told = row ? (enum algorithm)row->algorithm : ALGORITHM_ANY;
    int i = 0;
    if (wish != ALGORITHM_ANY && kernel_of(query, wish) != KERNELS) return wish;
    if (told != ALGORITHM_ANY && kernel_of(query, told) != KERNELS) return told;
    while (order[i] != ALGORITHM_ANY &&
           (!suits(query, order[i]) || kernel_of(query, order[i]) == KERNELS))
        i++;
    return order[i];
}

/* A step as short as the table says, but of a split no shorter than its streams have meetings for.
 */
static void cut_chunk(const struct plan_query *query, struct plan *plan)
{
    uint64_t ranks = (uint64_t)query->ranks;
    uint64_t elements = plan_whole_lines(query, plan->row->chunk / ranks) * ranks;
    uint64_t shortest = plan->streams ? plan_split_shortest(query) : 0;
    plan->longer = elements && elements < shortest;
    if (plan->longer) elements = shortest;
    if (elements && elements < plan->chunk) plan->chunk = elements;
}

/* Each rank would ask the switch for sums of its own. */
static int ranks_may_differ(const struct plan_query *query)
{
    int sum = query->op == SMFAR_SUM || query->op == SMFAR_AVG || query->op == SMFAR_PREMUL_SUM;
    int integer = query->dtype <= SMFAR_I64 || query->dtype == SMFAR_BOOL;
    return query->hint.algorithm == ALGORITHM_ONESHOT_MC && sum && !integer &&
           query->collective == COLLECTIVE_ALL_REDUCE;
}

static enum smfar_status plan_reduction(const struct plan_query *query, struct plan *plan)
{
    if (ranks_may_differ(query))
        return FAIL(SMFAR_ERR_UNSUPPORTED,
                    "%s(%s) of %s by oneshot_mc: each rank reads the sums from the switch itself, "
                    "which may add in another order for each, so that ranks would get different "
                    "bits; ask for push_mc or twoshot_mc, or for nothing",
                    name_collective(query->collective), name_op(query->op),
                    name_dtype(query->dtype));
    if (query->hint.sm_budget == SMFAR_NO_SMS)
        return FAIL(SMFAR_ERR_UNSUPPORTED,
                    "%s(%s) of %s without an SM: copy engines cannot add; allow one block or more",
                    name_collective(query->collective), name_op(query->op),
                    name_dtype(query->dtype));
    const struct plan_row *row = plan_table_row(query->table, query->collective,
                                                query->count * dtype_bytes((int)query->dtype));
    plan->algorithm = choose(query, row);
    if (plan->algorithm == ALGORITHM_ANY)
        return FAIL(SMFAR_ERR_UNSUPPORTED, "%s(%s) of %s is not available: %s",
                    name_collective(query->collective), name_op(query->op),
                    name_dtype(query->dtype), why_not(query));
    if (row && row->algorithm == (int)plan->algorithm) plan->row = row;
    plan->kernel = kernel_of(query, plan->algorithm);
    plan->name = algorithm_rows[plan->algorithm].name;
    plan->streams = algorithm_is_split(plan->algorithm);
    plan->pull = is_pull(plan->algorithm);
    if (plan->streams) plan->chunk = plan_split_chunk(query, plan->algorithm);
    if (plan->row) cut_chunk(query, plan);
    if (plan->streams) plan->leg = plan_leg(query, plan);
    shape(query, plan);
    say_why(query, plan);
    plan_split_say_why_not(query, plan);
    return SMFAR_OK;
}

static void plan_barrier(const struct plan_query *query, struct plan *plan)
{
    if (query->hint.sm_budget == SMFAR_NO_SMS) {
        plan->name = "streams";
        plan->kernel = KERNELS;
        plan->streams = 1;
        snprintf(plan->reason, sizeof(plan->reason), "streams can wait: no kernel");
        return;
    }
    plan->name = query->agreed.multicast ? "kernel_mc" : "kernel_peer";
    plan->kernel = query->agreed.multicast ? KERNEL_barrier_mc : KERNEL_barrier_peer;
    plan->blocks = 1;
    plan->threads = 32;
    snprintf(plan->reason, sizeof(plan->reason), "one block of one warp");
}

/* Is the staging slot divided among the ranks? */
static int is_divided(enum collective collective)
{
    return collective == COLLECTIVE_ALL_GATHER || collective == COLLECTIVE_REDUCE_SCATTER ||
           collective == COLLECTIVE_ALL_TO_ALL || collective == COLLECTIVE_ALL_TO_ALL_V ||
           collective == COLLECTIVE_GATHER;
}

static int is_reduction(enum collective collective)
{
    return collective == COLLECTIVE_ALL_REDUCE || collective == COLLECTIVE_REDUCE ||
           collective == COLLECTIVE_REDUCE_SCATTER;
}

/* Elements of one step: what fits the staging slot. */
static uint64_t chunk_elements(const struct plan_query *query)
{
    size_t bytes = query->agreed.chunk_bytes;
    return plan_elements(query,
                         is_divided(query->collective) ? bytes / (size_t)query->ranks : bytes);
}

enum smfar_status plan_make(const struct plan_query *query, struct plan *plan_out)
{
    struct plan plan;
    enum smfar_status status = SMFAR_OK;
    memset(&plan, 0, sizeof(plan));
    if (query->captured && query->hint.sm_budget == SMFAR_NO_SMS)
        return FAIL(
            SMFAR_ERR_UNSUPPORTED,
            "%s in a CUDA graph without an SM: what streams write and wait for would be the "
            "same at every replay; allow one block or more",
            name_collective(query->collective));
    plan.chunk = chunk_elements(query);
    if (is_reduction(query->collective))
        status = plan_reduction(query, &plan);
    else if (query->collective == COLLECTIVE_RMS_NORM)
        status = plan_norm(query, &plan);
    else if (query->collective == COLLECTIVE_BARRIER)
        plan_barrier(query, &plan);
    else
        plan_move(query, &plan);
    if (status == SMFAR_OK) *plan_out = plan;
    return status;
}
