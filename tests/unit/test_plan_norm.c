/* Units of collectives/plan_norm: rows are dealt to groups that a kernel can have, within the
 * budget. */
#include "../../csrc/collectives/plan.h"

#include "unit.h"

static struct plan_query query_of(uint64_t rows, uint32_t hidden)
{
    return (struct plan_query){
        .collective = COLLECTIVE_RMS_NORM,
        .dtype = SMFAR_BF16,
        .op = (enum smfar_op) - 1,
        .count = rows * hidden,
        .row = hidden,
        .ranks = 4,
        .agreed = {.resident_blocks = 100, .multicast = 1, .chunk_bytes = 32 << 20},
        .multicast_reason = "off: no switch here",
    };
}

static struct plan plan_of(const struct plan_query *query)
{
    struct plan plan;
    enum smfar_status status = plan_make(query, &plan);
    REQUIRE(status == SMFAR_OK, "%s", smfar_last_error());
    return plan;
}

static void check_kernel(void)
{
    struct plan_query query = query_of(64, 4096);
    struct plan plan = plan_of(&query);
    EXPECT_EQ(plan.kernel, KERNEL_rms_norm_mc_sum_bf16);
    EXPECT_HAS(plan.name, "fused_mc");
    for (int wish = ALGORITHM_ANY + 1; wish < ALGORITHMS; wish++) {
        if (wish == ALGORITHM_SPLIT_PEER || wish == ALGORITHM_SPLIT_MC) continue;
        int peers = !algorithm_rows[wish].multicast;
        query.hint.algorithm = (enum algorithm)wish;
        plan = plan_of(&query);
        EXPECT(plan.kernel == (peers ? KERNEL_rms_norm_peer_sum_bf16 : KERNEL_rms_norm_mc_sum_bf16),
               "%s: %s", algorithm_rows[wish].name, plan.name);
        EXPECT_HAS(plan.reason, peers ? "peers were asked for" : "multicast is on");
    }
    query.hint.algorithm = ALGORITHM_ANY;
    query.agreed.multicast = 0;
    plan = plan_of(&query);
    EXPECT_EQ(plan.kernel, KERNEL_rms_norm_peer_sum_bf16);
    EXPECT_HAS(plan.reason, "no switch here");
}

/* Whatever the shape: what kargs.h says of groups, and no more blocks than allowed. */
static void check_shapes(void)
{
    static const uint64_t rows[] = {0, 1, 5, 32, 1000, 100000};
    static const uint32_t hidden[] = {1, 8, 255, 1024, 4096, 32768, 1 << 20};
    for (int i = 0; i < 6 * 7 * 16; i++) {
        struct plan_query query = query_of(rows[i % 6], hidden[i / 6 % 7]);
        query.ranks = 1 + i / 42;
        query.agreed.multicast = i % 2;
        query.agreed.sm_budget = i % 5;
        struct plan plan = plan_of(&query);
        int groups = plan.threads / plan.group;
        EXPECT(plan.group % 32 == 0 && (plan.group & (plan.group - 1)) == 0, "%d", plan.group);
        EXPECT(plan.threads == groups * plan.group && plan.threads <= 512, "%d", plan.threads);
        EXPECT(groups >= 1 && (groups <= 15 || plan.group == 32), "%d groups", groups);
        EXPECT(plan.blocks >= 1 && plan.blocks <= (i % 5 ? i % 5 : 8), "%d blocks", plan.blocks);
        EXPECT(plan.chunk % query.row == 0 && plan.chunk * 2 <= 32 << 20, "%llu in a step",
               (unsigned long long)plan.chunk);
    }
}

static void check_spread(void)
{
    struct plan_query query = query_of(16, 4096);
    query.agreed.multicast = 0;
    struct plan plan = plan_of(&query); /* four rows of its own: a block each */
    EXPECT_EQ(plan.blocks, 4);
    EXPECT_EQ(plan.threads, plan.group);
    query = query_of(4096, 4096);
    query.agreed.multicast = 0;
    plan = plan_of(&query); /* many: several groups a block */
    EXPECT_EQ(plan.blocks, 8);
    EXPECT_EQ(plan.threads, 512);
    EXPECT_EQ(plan.group, 128);
}

static void check_steps(void)
{
    struct plan_query query = query_of(100000, 1000);
    uint64_t whole = plan_of(&query).chunk;
    query.halves = 1;
    uint64_t half = plan_of(&query).chunk;
    EXPECT(half <= whole / 2 && half + 1000 > whole / 2 - 1000, "%llu and %llu",
           (unsigned long long)whole, (unsigned long long)half);
}

static void expect_no_split(const struct plan_query *query, const char *name, const char *why)
{
    struct plan plan = plan_of(query);
    EXPECT_HAS(plan.name, name);
    EXPECT_HAS(plan.reason, algorithm_rows[query->hint.algorithm].name);
    EXPECT_HAS(plan.reason, " was asked for, but ");
    EXPECT_HAS(plan.reason, why);
}

/* Steps have up to seven legs of rows, and streams meetings for all of them. */
static void check_legs(enum algorithm algorithm)
{
    for (uint64_t rows = 1; rows < 100; rows++) {
        struct plan_query query = query_of(4 * rows, 64);
        query.hint.algorithm = algorithm;
        struct plan plan = plan_of(&query);
        EXPECT((rows * 64 * 2 + plan.leg - 1) / plan.leg <= 7, "%zu bytes of %llu rows", plan.leg,
               (unsigned long long)rows);
    }
}

/* By copy engines in whole rows and legs, where that was asked for and can be; `parts` are what the
 * slot has to hold at once. */
static void check_split(enum algorithm algorithm, enum kernel_id kernel, uint64_t parts,
                        const char *otherwise)
{
    struct plan_query query = query_of(100000, 1000);
    query.hint.algorithm = algorithm;
    struct plan plan = plan_of(&query);
    EXPECT_EQ(plan.kernel, kernel);
    EXPECT(plan.streams && plan.algorithm == algorithm, "%s", plan.name);
    EXPECT_EQ(plan.chunk % (1000 * 4), 0);
    EXPECT(plan.chunk / 4 * 2 * parts <= query.agreed.chunk_bytes, "%llu elements",
           (unsigned long long)plan.chunk);
    EXPECT((plan.chunk / 4 + 1000) * 2 * parts > query.agreed.chunk_bytes - 256 * parts,
           "%llu elements", (unsigned long long)plan.chunk);
    EXPECT(plan.leg % 2000 == 0 && plan.leg > 0, "%zu bytes", plan.leg);
    query.spread = 1;
    expect_no_split(&query, otherwise, "every rank is to get the sums");
    query.spread = 0;
    query.captured = 1;
    expect_no_split(&query, otherwise, "streams cannot meet in a CUDA graph");
    query.captured = 0;
    query.ranks = 1;
    expect_no_split(&query, otherwise, "one rank has nobody to meet");
    query.ranks = 4;
    query.agreed.chunk_bytes = 8000; /* a row fits, but not all that a split needs */
    expect_no_split(&query, otherwise, "its parts do not fit the staging slot");
    query.agreed.chunk_bytes = 16000; /* a row of each rank a step, and 25,000 steps */
    expect_no_split(&query, otherwise, "it takes too many steps");
    query.count = 4 * 8191 * 1000;
    EXPECT_HAS(plan_of(&query).name, algorithm_rows[algorithm].name);
    query.count++;
    expect_no_split(&query, otherwise, "it takes too many steps");
}

/* Rows have the bits of the fused kernel only if its groups make them. */
static void check_split_groups(void)
{
    struct plan_query query = query_of(100000, 4096);
    int fused = plan_of(&query).group;
    query.hint.algorithm = ALGORITHM_SPLIT_MC;
    struct plan plan = plan_of(&query);
    EXPECT_EQ(plan.group, fused);
    EXPECT_EQ(plan.blocks, 4);
    query.hint.fixed_order = 1;
    expect_no_split(&query, "fused_peer", "a fixed order was, too");
    query.hint.fixed_order = 0;
    query.agreed.multicast = 0;
    expect_no_split(&query, "fused_peer", "multicast is off");
}

static void expect_refusal(const struct plan_query *query, const char *words)
{
    struct plan plan;
    EXPECT_EQ(plan_make(query, &plan), SMFAR_ERR_UNSUPPORTED);
    EXPECT_HAS(smfar_last_error(), words);
}

static void check_refusals(void)
{
    struct plan_query query = query_of(4, 4096);
    query.hint.sm_budget = SMFAR_NO_SMS;
    expect_refusal(&query, "without an SM");
    query = query_of(4, 4096);
    query.dtype = SMFAR_F64;
    expect_refusal(&query, "f32, f16 and bf16");
    query = query_of(4, 4096);
    query.agreed.chunk_bytes = 4096;
    expect_refusal(&query, "SMFAR_CHUNK_BYTES");
}

int main(void)
{
    check_kernel();
    check_split(ALGORITHM_SPLIT_PEER, KERNEL_rms_norm_split_peer_sum_bf16, 6, "fused_peer");
    check_split(ALGORITHM_SPLIT_MC, KERNEL_rms_norm_split_mc_sum_bf16, 5, "fused_mc");
    check_legs(ALGORITHM_SPLIT_PEER);
    check_legs(ALGORITHM_SPLIT_MC);
    check_split_groups();
    check_shapes();
    check_spread();
    check_steps();
    check_refusals();
    return unit_end();
}
