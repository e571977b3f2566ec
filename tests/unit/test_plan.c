/* Units of collectives/plan: it depends on its query alone, never exceeds the budget, and says why.
 */
#include "../../csrc/collectives/plan.h"

#include "unit.h"

static struct plan_query query_of(enum smfar_op op, enum smfar_dtype dtype, uint64_t count)
{
    return (struct plan_query){
        .collective = COLLECTIVE_ALL_REDUCE,
        .dtype = dtype,
        .op = op,
        .count = count,
        .ranks = 4,
        .agreed = {.resident_blocks = 100, .multicast = 1, .chunk_bytes = 32 << 20},
        .multicast_reason = "off: no switch here",
        .float8_reason = "off: an older GPU",
    };
}

static struct plan plan_of(const struct plan_query *query)
{
    struct plan plan;
    enum smfar_status status = plan_make(query, &plan);
    REQUIRE(status == SMFAR_OK, "%s", smfar_last_error());
    return plan;
}

static void check_algorithm(void)
{
    struct plan_query query = query_of(SMFAR_SUM, SMFAR_BF16, 1 << 20);
    struct plan plan = plan_of(&query);
    EXPECT_HAS(plan.name, "twoshot_mc");
    EXPECT_EQ(plan.kernel, KERNEL_all_reduce_twoshot_mc_sum_bf16);
    query.agreed.multicast = 0;
    plan = plan_of(&query);
    EXPECT_HAS(plan.name, "twoshot_peer");
    EXPECT_EQ(plan.kernel, KERNEL_all_reduce_twoshot_peer_sum_bf16);
    EXPECT_HAS(plan.reason, "no switch here");
    query = query_of(SMFAR_AVG, SMFAR_F16, 1 << 20); /* its sum may overflow in the switch */
    plan = plan_of(&query);
    EXPECT_EQ(plan.kernel, KERNEL_all_reduce_twoshot_peer_avg_f16);
    EXPECT_HAS(plan.reason, "avg of f16");
}

/* Small ones over peers need one phase of the barrier; each rank reads all of every rank's. */
static void check_oneshot(void)
{
    struct plan_query query = query_of(SMFAR_SUM, SMFAR_BF16, 64 << 10);
    query.agreed.oneshot_bytes = 256 << 10;
    EXPECT_HAS(plan_of(&query).name, "twoshot_mc");
    query.agreed.multicast = 0;
    struct plan plan = plan_of(&query);
    EXPECT_HAS(plan.name, "oneshot_peer");
    EXPECT_EQ(plan.kernel, KERNEL_all_reduce_oneshot_peer_sum_bf16);
    EXPECT(plan.blocks >= 2, "%d blocks", plan.blocks);
    query.count++; /* 4 ranks' exceed what one may read */
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
    query.count = 1000;
    query.agreed.oneshot_bytes = 1024;
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
    query = query_of(SMFAR_MAX, SMFAR_I8, 1000);
    query.agreed.oneshot_bytes = 256 << 10;
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
}

/* Through the switch up to what its blocks take at once, or up to a box when asked for; in any
 * order of sums, since it makes its own. */
static void check_push_mc(void)
{
    struct plan_query query = query_of(SMFAR_SUM, SMFAR_BF16, 16 << 10);
    query.agreed.push_bytes = 64 << 10;
    struct plan plan = plan_of(&query);
    EXPECT_HAS(plan.name, "push_mc");
    EXPECT_EQ(plan.kernel, KERNEL_all_reduce_push_mc_sum_bf16);
    EXPECT(plan.blocks >= 2 && plan.blocks <= 4 && plan.threads <= 640, "%d x %d", plan.blocks,
           plan.threads);
    EXPECT(plan.blocks * (plan.threads - 32) * 16 >= 32 << 10, "a vector for each thread");
    query.hint.fixed_order = 1;
    EXPECT_HAS(plan_of(&query).name, "push_mc");
    query.count++;
    EXPECT_HAS(plan_of(&query).name, "push_peer");
    query.hint.fixed_order = 0;
    EXPECT_HAS(plan_of(&query).name, "twoshot_mc");
    query.hint.algorithm = ALGORITHM_PUSH_MC;
    EXPECT_HAS(plan_of(&query).name, "push_mc");
    query.count = (32 << 10) + 1; /* more than fits a box */
    EXPECT_HAS(plan_of(&query).name, "twoshot_mc");
    query.count = 1000;
    query.agreed.multicast = 0;
    EXPECT_HAS(plan_of(&query).name, "push_peer");
    query.hint.algorithm = ALGORITHM_ANY;
    query.agreed.multicast = 1;
    query.ranks = SMFAR_MAX_RANKS;
    EXPECT_HAS(plan_of(&query).name, "push_mc");
}

/* Each rank asks the switch for everything: only what no order changes. */
static void check_oneshot_mc(void)
{
    struct plan_query query = query_of(SMFAR_MAX, SMFAR_I32, 8 << 10);
    struct plan plan;
    query.agreed.push_bytes = query.agreed.oneshot_bytes = 64 << 10;
    EXPECT_HAS(plan_of(&query).name, "oneshot_mc");
    EXPECT_EQ(plan_of(&query).kernel, KERNEL_all_reduce_oneshot_mc_max_i32);
    query.op = SMFAR_SUM; /* is pushed */
    EXPECT_HAS(plan_of(&query).name, "push_mc");
    query.agreed.push_bytes = 16 << 10; /* less than a tensor */
    EXPECT_HAS(plan_of(&query).name, "oneshot_mc");
    query = query_of(SMFAR_BOR, SMFAR_BOOL, (32 << 10) + 1); /* more than pays */
    query.agreed.oneshot_bytes = 64 << 10;
    EXPECT_HAS(plan_of(&query).name, "twoshot_mc");
    query.hint.algorithm = ALGORITHM_ONESHOT_MC;
    EXPECT_HAS(plan_of(&query).name, "oneshot_mc");
    EXPECT_HAS(plan_of(&query).reason, "asked for");
    query.op = SMFAR_SUM; /* of bools: any */
    EXPECT_HAS(plan_of(&query).name, "oneshot_mc");
    query.collective = COLLECTIVE_REDUCE;
    EXPECT_HAS(plan_of(&query).name, "pull_mc");
    static const enum smfar_dtype floats[] = {SMFAR_F32, SMFAR_BF16, SMFAR_F8_E5M2, SMFAR_C64};
    for (int i = 0; i < 4; i++) {
        query = query_of(SMFAR_SUM, floats[i], 100);
        query.hint.algorithm = ALGORITHM_ONESHOT_MC;
        EXPECT_EQ(plan_make(&query, &plan), SMFAR_ERR_UNSUPPORTED);
        EXPECT_HAS(smfar_last_error(), "different bits; ask for push_mc");
    }
    query.op = SMFAR_PRODUCT; /* the usual way */
    query.dtype = SMFAR_F32;
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
}

/* The smallest, where packets have boxes. */
static void check_push(void)
{
    struct plan_query query = query_of(SMFAR_SUM, SMFAR_BF16, 8 << 10);
    query.agreed.oneshot_bytes = 256 << 10;
    query.agreed.push_bytes = 16 << 10;
    query.hint.algorithm = ALGORITHM_PUSH_PEER;
    EXPECT_HAS(plan_of(&query).name, "push_peer");
    EXPECT_HAS(plan_of(&query).reason, "asked for");
    query.hint.algorithm = ALGORITHM_ANY;
    query.agreed.multicast = 0;
    struct plan plan = plan_of(&query);
    EXPECT_HAS(plan.name, "push_peer");
    EXPECT_EQ(plan.kernel, KERNEL_all_reduce_push_peer_sum_bf16);
    EXPECT(plan.blocks >= 2 && plan.threads <= 640, "%d x %d", plan.blocks, plan.threads);
    query.count++; /* more than fits a box */
    EXPECT_HAS(plan_of(&query).name, "oneshot_peer");
    query.hint.algorithm = ALGORITHM_PUSH_PEER;
    EXPECT_HAS(plan_of(&query).name, "oneshot_peer");
    query.count = 0; /* one warp moves data even then */
    EXPECT(plan_of(&query).threads > 32, "%d threads", plan_of(&query).threads);
    query.collective = COLLECTIVE_REDUCE;
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
    query = query_of(SMFAR_MAX, SMFAR_I8, 1000);
    query.agreed.push_bytes = 16 << 10;
    query.hint.algorithm = ALGORITHM_PUSH_PEER;
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
}

/* Each rank of a reduce-scatter reads its part; of a reduce the root reads everything, unless that
 * is more than its link should carry alone. */
static void check_pull(void)
{
    struct plan_query query = query_of(SMFAR_SUM, SMFAR_BF16, 1 << 20);
    query.collective = COLLECTIVE_REDUCE_SCATTER;
    struct plan plan = plan_of(&query);
    EXPECT_HAS(plan.name, "pull_mc");
    EXPECT_EQ(plan.kernel, KERNEL_reduce_scatter_mc_sum_bf16);
    query.agreed.multicast = 0;
    EXPECT_EQ(plan_of(&query).kernel, KERNEL_reduce_scatter_peer_sum_bf16);
    query.count = 100; /* no one-shot */
    query.agreed.oneshot_bytes = 256 << 10;
    EXPECT_HAS(plan_of(&query).name, "pull_peer");
    query.collective = COLLECTIVE_REDUCE;
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
    EXPECT_EQ(plan_of(&query).pull, 0);
    query.ranks = 2;
    EXPECT_HAS(plan_of(&query).name, "pull_peer");
    query.ranks = 8;
    query.agreed.multicast = 1;
    EXPECT_HAS(plan_of(&query).name, "pull_mc");
    query.op = SMFAR_MAX; /* of bf16: not in the switch */
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
}

/* Where every GPU's switch sums 8-bit floats, of which it does e4m3 without overflows on the way;
 * never in a fixed order, and averages are made of sums that nothing has cut. */
static void check_float8(void)
{
    struct plan_query query = query_of(SMFAR_SUM, SMFAR_F8_E4M3, 1 << 20);
    EXPECT_EQ(plan_of(&query).kernel, KERNEL_all_reduce_twoshot_peer_sum_f8_e4m3);
    EXPECT_HAS(plan_of(&query).reason, "sum of f8_e4m3 in the switch is off: an older GPU");
    query.hint.algorithm = ALGORITHM_SPLIT_MC;
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
    query.agreed.multicast_float8 = 1;
    EXPECT_EQ(plan_of(&query).kernel, KERNEL_all_reduce_split_mc_sum_f8_e4m3);
    query.hint.algorithm = ALGORITHM_ANY;
    EXPECT_EQ(plan_of(&query).kernel, KERNEL_all_reduce_twoshot_mc_sum_f8_e4m3);
    EXPECT_HAS(plan_of(&query).reason, "the switch has sum of f8_e4m3");
    query.hint.fixed_order = 1;
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
    query.hint.fixed_order = 0;
    query.op = SMFAR_AVG;
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
    EXPECT_HAS(plan_of(&query).reason, "no safe avg of f8_e4m3");
    query = query_of(SMFAR_SUM, SMFAR_F8_E5M2, 1 << 20);
    EXPECT_HAS(plan_of(&query).reason, "no safe sum of f8_e5m2");
    query.agreed.multicast_float8 = 1;
    EXPECT_HAS(plan_of(&query).reason, "no safe sum of f8_e5m2");
}

static int is_bitwise(int op) { return op == SMFAR_BAND || op == SMFAR_BOR || op == SMFAR_BXOR; }

/* The table of docs/types.md. */
static int is_served(int op, int dtype)
{
    int linear = op == SMFAR_SUM || op == SMFAR_AVG || op == SMFAR_PREMUL_SUM;
    switch (dtype) {
    case SMFAR_F8_E4M3:
    case SMFAR_F8_E5M2:
        return linear || op == SMFAR_MIN || op == SMFAR_MAX;
    case SMFAR_C64:
    case SMFAR_C128:
        return linear;
    case SMFAR_BOOL:
        return op != SMFAR_AVG && op != SMFAR_PREMUL_SUM;
    case SMFAR_F16:
    case SMFAR_BF16:
    case SMFAR_F32:
    case SMFAR_F64:
        return !is_bitwise(op);
    default:
        return op != SMFAR_PREMUL_SUM;
    }
}

/* `float8`: a switch that sums 8-bit floats. */
static int is_in_switch(int op, int dtype, int float8)
{
    int linear = op == SMFAR_SUM || op == SMFAR_AVG || op == SMFAR_PREMUL_SUM;
    if (dtype == SMFAR_F8_E4M3) return float8 && op == SMFAR_SUM;
    if (dtype == SMFAR_BOOL || is_bitwise(op)) return 1;
    if (dtype == SMFAR_F16) return op == SMFAR_SUM;
    if (dtype == SMFAR_I32 || dtype == SMFAR_I64)
        return linear || op == SMFAR_MIN || op == SMFAR_MAX;
    return linear && dtype > SMFAR_I64 && dtype < SMFAR_F8_E4M3;
}

static void check_pair(int op, int dtype, enum collective collective, int float8)
{
    struct plan_query query = query_of((enum smfar_op)op, (enum smfar_dtype)dtype, 100);
    query.collective = collective;
    query.agreed.multicast_float8 = float8;
    struct plan plan = {.blocks = -7};
    enum smfar_status status = plan_make(&query, &plan);
    EXPECT_EQ(status, is_served(op, dtype) ? SMFAR_OK : SMFAR_ERR_UNSUPPORTED);
    if (status != SMFAR_OK) {
        EXPECT_EQ(plan.blocks, -7);
        EXPECT_HAS(smfar_last_error(), name_op(op));
        EXPECT_HAS(smfar_last_error(), name_dtype(dtype));
        return;
    }
    EXPECT(kernel_rows[plan.kernel].multicast == is_in_switch(op, dtype, float8), "%s of %s: %s",
           name_op(op), name_dtype(dtype), kernel_rows[plan.kernel].entry);
    /* a call's bytes are whole elements of the kernel */
    EXPECT_EQ(dtype_bytes(dtype) % dtype_bytes((int)kernel_rows[plan.kernel].dtype), 0);
    query.agreed.multicast = 0;
    EXPECT(!kernel_rows[plan_of(&query).kernel].multicast, "the switch, which is off");
}

static void check_pairs(void)
{
    static const enum collective reductions[] = {COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE,
                                                 COLLECTIVE_REDUCE_SCATTER};
    for (int op = 0; op < SMFAR_OPS; op++)
        for (int dtype = 0; dtype < SMFAR_DTYPES; dtype++)
            for (int i = 0; i < 6; i++)
                check_pair(op, dtype, reductions[i % 3], i / 3);
}

/* Pairs that a kernel of another name serves. */
static void check_forms(void)
{
    static const struct {
        enum smfar_op op;
        enum smfar_dtype dtype;
        enum kernel_id kernel;
    } forms[] = {
        {SMFAR_SUM, SMFAR_U8, KERNEL_all_reduce_twoshot_peer_sum_i8},
        {SMFAR_MIN, SMFAR_U8, KERNEL_all_reduce_twoshot_peer_min_u8},
        {SMFAR_BAND, SMFAR_I64, KERNEL_all_reduce_twoshot_peer_band_u8},
        {SMFAR_SUM, SMFAR_BOOL, KERNEL_all_reduce_twoshot_peer_bor_u8},
        {SMFAR_PRODUCT, SMFAR_BOOL, KERNEL_all_reduce_twoshot_peer_band_u8},
        {SMFAR_BXOR, SMFAR_BOOL, KERNEL_all_reduce_twoshot_peer_bxor_u8},
        {SMFAR_SUM, SMFAR_C128, KERNEL_all_reduce_twoshot_peer_sum_f64},
        {SMFAR_PREMUL_SUM, SMFAR_C64, KERNEL_all_reduce_twoshot_peer_avg_f32},
        {SMFAR_PREMUL_SUM, SMFAR_BF16, KERNEL_all_reduce_twoshot_peer_avg_bf16},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        EXPECT_EQ(kernel_find("all_reduce_twoshot_peer", forms[i].op, forms[i].dtype),
                  forms[i].kernel);
}

/* A push of so many blocks takes its vectors in as few rounds as its largest blocks would. */
static void check_rounds(const struct plan_query *query, const struct plan *plan)
{
    uint64_t vectors = (query->count * dtype_bytes(query->dtype) + 15) / 16;
    uint64_t most = (uint64_t)(plan->blocks * (algorithm_rows[plan->algorithm].threads - 32));
    uint64_t each = (uint64_t)(plan->blocks * (plan->threads - 32));
    EXPECT((vectors + each - 1) / each == (vectors + most - 1) / most, "%d x %d for %llu vectors",
           plan->blocks, plan->threads, (unsigned long long)vectors);
}

static void check_shape(const struct plan_query *query)
{
    struct plan plan = plan_of(query), again = plan_of(query);
    int budget = query->agreed.sm_budget;
    EXPECT(memcmp(&plan, &again, sizeof plan) == 0, "two plans of one query");
    EXPECT(plan.blocks >= 1 && plan.blocks <= query->agreed.resident_blocks, "%d blocks",
           plan.blocks);
    EXPECT(budget == 0 || plan.blocks <= budget, "%d blocks, %d allowed", plan.blocks, budget);
    EXPECT(plan.threads % 32 == 0 && plan.threads >= 32 &&
               plan.threads <= algorithm_rows[plan.algorithm].threads,
           "%s: %d threads", plan.name, plan.threads);
    if (algorithm_is_push(plan.algorithm)) check_rounds(query, &plan);
    EXPECT(plan.chunk >= 1, "a step of nothing");
    EXPECT(plan.chunk * dtype_bytes(query->dtype) <= query->agreed.chunk_bytes, "a step of %llu",
           (unsigned long long)plan.chunk);
    EXPECT(strlen(plan.reason) > 0 && strlen(plan.reason) < sizeof plan.reason - 1, "reason");
}

static void check_shapes(void)
{
    for (int budget = 0; budget <= 5; budget++) {
        for (uint64_t count = 0; count < 1ull << 33; count = 3 * count + 1) {
            struct plan_query query = query_of(SMFAR_SUM, SMFAR_F32, count);
            query.agreed.sm_budget = budget;
            query.agreed.resident_blocks = budget == 5 ? 1 : 100;
            query.agreed.multicast = budget % 2;
            query.agreed.oneshot_bytes = query.agreed.push_bytes = 256 << 10;
            for (query.ranks = 1; query.ranks <= SMFAR_MAX_RANKS; query.ranks++)
                check_shape(&query);
        }
    }
}

/* Large tensors use the whole default budget, small ones one block. */
static void check_budget(void)
{
    struct plan_query query = query_of(SMFAR_SUM, SMFAR_F32, 1 << 24);
    EXPECT_EQ(plan_of(&query).blocks, 4);
    query.ranks = 8;
    EXPECT_EQ(plan_of(&query).blocks, 2);
    query.agreed.multicast = 0;
    EXPECT_EQ(plan_of(&query).blocks, 8);
    query.agreed.sm_budget = 3;
    EXPECT_EQ(plan_of(&query).blocks, 3);
    query.count = 10;
    EXPECT_EQ(plan_of(&query).blocks, 1);
}

static void check_copies(void)
{
    struct plan_query query = query_of(SMFAR_SUM, SMFAR_C128, 10000);
    query.collective = COLLECTIVE_ALL_GATHER;
    query.agreed.chunk_bytes = 4096;
    query.agreed.pageable = 1;
    EXPECT_HAS(plan_of(&query).name, "copy_peer");
    EXPECT_EQ(plan_of(&query).chunk, 4096 / 4 / 16);
    query.agreed.multicast_copy = 1;
    EXPECT_HAS(plan_of(&query).name, "copy_mc");
    query.agreed.multicast = 0;
    EXPECT_HAS(plan_of(&query).name, "copy_peer");
    query.collective = COLLECTIVE_BROADCAST;
    EXPECT_EQ(plan_of(&query).chunk, 4096 / 16);
}

static struct plan_query move_of(enum collective collective, uint64_t count)
{
    struct plan_query query = query_of(SMFAR_SUM, SMFAR_F32, count);
    query.collective = collective;
    return query;
}

static void check_moves_by_kernel(void)
{
    struct plan_query query = move_of(COLLECTIVE_ALL_GATHER, 1 << 24);
    struct plan plan = plan_of(&query);
    EXPECT_HAS(plan.name, "pull_peer");
    EXPECT_EQ(plan.blocks, 8);
    EXPECT_EQ(plan.threads, 1024);
    EXPECT_EQ(plan.chunk, (32 << 20) / 4); /* one part is for all */
    query.collective = COLLECTIVE_ALL_TO_ALL;
    EXPECT_EQ(plan_of(&query).chunk, (32 << 20) / 4 / 4);
    query.count = 100001; /* no whole vectors */
    EXPECT_HAS(plan_of(&query).name, "copy_peer");
    query.count = 101;
    EXPECT_HAS(plan_of(&query).name, "pull_peer");
    EXPECT_EQ(plan_of(&query).blocks, 1);
    query.agreed.pageable = 1;
    EXPECT_HAS(plan_of(&query).name, "pull_peer");
    query.count = 1 << 20;
    EXPECT_HAS(plan_of(&query).name, "copy_peer");
    query.hint.algorithm = ALGORITHM_PULL_PEER;
    EXPECT_HAS(plan_of(&query).name, "pull_peer");
    EXPECT_HAS(plan_of(&query).reason, "asked for");
    query = move_of(COLLECTIVE_BROADCAST, 1 << 20);
    EXPECT_HAS(plan_of(&query).name, "pull_peer");
    query.agreed.multicast_copy = 1; /* the root's links carry it once */
    EXPECT_HAS(plan_of(&query).name, "copy_mc");
}

/* A split that was asked for and is not taken says why; the rest of the reason stays. */
static void expect_no_split(const struct plan_query *query, const char *name, const char *why)
{
    struct plan plan = plan_of(query);
    EXPECT_HAS(plan.name, name);
    EXPECT_HAS(plan.reason, why);
    EXPECT_HAS(plan.reason, query->hint.algorithm == ALGORITHM_SPLIT_MC
                                ? "; split_mc was asked for, but "
                                : "; split_peer was asked for, but ");
}

static void check_splits(void)
{
    struct plan_query query = query_of(SMFAR_SUM, SMFAR_F32, 1 << 20);
    query.hint.algorithm = ALGORITHM_SPLIT_MC;
    EXPECT_HAS(plan_of(&query).name, "split_mc");
    query.captured = 1;
    expect_no_split(&query, "twoshot_mc", "the switch has sum of f32; split_mc was");
    expect_no_split(&query, "twoshot_mc", "but streams cannot meet in a CUDA graph");
    query.captured = 0;
    query.hint.fixed_order = 1;
    expect_no_split(&query, "twoshot_peer", "a fixed order was, too");
    query.hint.fixed_order = 0;
    query.op = SMFAR_MAX;
    query.dtype = SMFAR_I32;
    expect_no_split(&query, "twoshot_mc", "it has no kernel for this");
    query.op = SMFAR_SUM;
    query.dtype = SMFAR_F8_E4M3;
    expect_no_split(&query, "twoshot_peer", "this switch sums no 8-bit floats");
    query = query_of(SMFAR_SUM, SMFAR_F32, 1 << 20);
    query.hint.algorithm = ALGORITHM_SPLIT_PEER;
    query.collective = COLLECTIVE_REDUCE;
    expect_no_split(&query, "pull_mc", "only all-reduces are split");
    query.collective = COLLECTIVE_ALL_REDUCE;
    query.agreed.chunk_bytes = 600; /* less than a line for each of 2 times 3 parts */
    expect_no_split(&query, "twoshot_mc", "its parts do not fit the staging slot");
    query.agreed.chunk_bytes = 6 * 128; /* steps of 512 bytes */
    query.count = 8191 * 128;
    EXPECT_HAS(plan_of(&query).name, "split_peer");
    query.count++;
    expect_no_split(&query, "twoshot_mc", "it takes too many steps");
    query.agreed.multicast = 0;
    expect_no_split(&query, "twoshot_peer", "multicast is off: no switch here");
    query.hint.algorithm = ALGORITHM_SPLIT_MC;
    expect_no_split(&query, "twoshot_peer", "but multicast is off");
}

static void check_copy_engines(void)
{
    struct plan_query query = move_of(COLLECTIVE_ALL_GATHER, 1 << 18);
    query.agreed.copy_engines = 1;
    EXPECT_EQ(plan_of(&query).streams, 1);
    EXPECT_EQ(plan_of(&query).blocks, 0);
    query.count--;
    EXPECT_EQ(plan_of(&query).streams, 0);
    query.count = 1 << 20;
    query.captured = 1;
    query.agreed.graph_chunk_bytes = 1 << 20;
    EXPECT_HAS(plan_of(&query).name, "pull_peer");
    query = move_of(COLLECTIVE_ALL_TO_ALL_V, 0);
    EXPECT_EQ(plan_of(&query).streams, 0);
    query.agreed.copy_engines = 1;
    EXPECT_EQ(plan_of(&query).streams, 1);
}

int main(void)
{
    check_algorithm();
    check_oneshot();
    check_push_mc();
    check_oneshot_mc();
    check_push();
    check_pull();
    check_float8();
    check_pairs();
    check_forms();
    check_shapes();
    check_budget();
    check_copies();
    check_moves_by_kernel();
    check_copy_engines();
    check_splits();
    return unit_end();
}
