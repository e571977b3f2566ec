/* A plan table at work: what the plan takes of it and what stays stronger; one table, rank 0's, on
 * all ranks; sums by every shape that a table may ask for; faults in it. The file's form is
 * test_plan_table.c's. */
#define _GNU_SOURCE
#include <sys/stat.h>
#include <unistd.h>

#include "../../csrc/base/env.h"
#include "../../csrc/collectives/plan.h"
#include "../../csrc/comm/meeting.h"
#include "ranks.h"

enum { COUNT = 5001, TIMEOUT_MS = 60000 };

/* ---- the plan ---- */

static struct plan_table table_of(struct plan_row row)
{
    return (struct plan_table){.count = 1, .row = {row}};
}

static struct plan_query query_of(const struct plan_table *table, uint64_t count)
{
    return (struct plan_query){
        .dtype = SMFAR_F32,
        .op = SMFAR_SUM,
        .count = count,
        .ranks = 4,
        .agreed = {.resident_blocks = 100,
                   .chunk_bytes = 32 << 20,
                   .oneshot_bytes = 128 << 10,
                   .push_bytes = 128 << 10},
        .multicast_reason = "off: no switch here",
        .table = table,
    };
}

static struct plan plan_of(const struct plan_query *query)
{
    struct plan plan;
    must(plan_make(query, &plan));
    return plan;
}

static void check_row(void)
{
    struct plan_table table = table_of((struct plan_row){
        .algorithm = ALGORITHM_TWOSHOT_PEER, .blocks = 20, .threads = 96, .line = 7, .to = 8000});
    struct plan_query query = query_of(&table, 2000);
    struct plan plan = plan_of(&query);
    EXPECT_HAS(plan.name, "twoshot_peer");
    EXPECT_HAS(plan.reason, "line 7 of the plan table");
    EXPECT_EQ(plan.blocks, 20);
    EXPECT_EQ(plan.threads, 96);
    query.count = 2001; /* past its bytes */
    EXPECT_HAS(plan_of(&query).name, "push_peer");
    EXPECT(plan_of(&query).row == NULL, "a row of other sizes");
    query.count = 1000;
    query.dtype = SMFAR_I64; /* bytes count, not elements */
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
    query.count = 1001;
    EXPECT_HAS(plan_of(&query).name, "push_peer");
    query.count = 10;
    query.collective = COLLECTIVE_REDUCE_SCATTER;
    EXPECT_HAS(plan_of(&query).name, "pull_peer");
}

/* A budget is the most, from whoever; the table gives no more. */
static void check_budgets(void)
{
    struct plan_table table = table_of(
        (struct plan_row){.algorithm = ALGORITHM_TWOSHOT_PEER, .blocks = 6, .to = 1 << 30});
    struct plan_query query = query_of(&table, 1 << 24);
    EXPECT_EQ(plan_of(&query).blocks, 6);
    query.agreed.sm_budget = 16;
    EXPECT_EQ(plan_of(&query).blocks, 6);
    query.agreed.sm_budget = 3;
    EXPECT_EQ(plan_of(&query).blocks, 3);
    query.hint.sm_budget = 2;
    EXPECT_EQ(plan_of(&query).blocks, 2);
    query.agreed.sm_budget = 0;
    query.hint.sm_budget = 0;
    query.agreed.resident_blocks = 5;
    EXPECT_EQ(plan_of(&query).blocks, 5);
}

/* Of so many blocks as a row says each has the threads that take the tensor in as few rounds as can
 * be: not those of the blocks that there would be without the row. */
static void check_threads(void)
{
    /* 1024 vectors: in 2 rounds, then in 1 */
    static const int threads[] = {0, 544, 544, 384, 288, 256, 224, 192, 160};
    for (int blocks = 1; blocks <= 8; blocks++) {
        struct plan_table table = table_of(
            (struct plan_row){.algorithm = ALGORITHM_PUSH_PEER, .blocks = blocks, .to = 1 << 20});
        struct plan_query query = query_of(&table, 4096);
        EXPECT_EQ(plan_of(&query).blocks, blocks);
        EXPECT_EQ(plan_of(&query).threads, threads[blocks]);
    }
    struct plan_table table = table_of(
        (struct plan_row){.algorithm = ALGORITHM_TWOSHOT_PEER, .blocks = 1, .to = 1 << 20});
    struct plan_query query = query_of(&table, 32 << 10); /* 512 threads have work */
    EXPECT_EQ(plan_of(&query).threads, 512);
    query.table = NULL;
    query.hint.algorithm = ALGORITHM_TWOSHOT_PEER;
    EXPECT_EQ(plan_of(&query).blocks, 4);
    EXPECT_EQ(plan_of(&query).threads, 128);
}

static void check_wishes(void)
{
    struct plan_table table =
        table_of((struct plan_row){.algorithm = ALGORITHM_TWOSHOT_MC, .blocks = 3, .to = 1 << 30});
    struct plan_query query = query_of(&table, 1000);
    query.agreed.multicast = 1;
    EXPECT_HAS(plan_of(&query).name, "twoshot_mc");
    EXPECT_EQ(plan_of(&query).blocks, 3);
    query.hint.fixed_order = 1;
    EXPECT_HAS(plan_of(&query).name, "push_mc");
    query.hint.fixed_order = 0;
    query.hint.algorithm = ALGORITHM_ONESHOT_PEER;
    EXPECT_HAS(plan_of(&query).name, "oneshot_peer");
    EXPECT_HAS(plan_of(&query).reason, "asked for");
    query.hint.algorithm = ALGORITHM_TWOSHOT_MC; /* the shape that was found best for it */
    EXPECT_HAS(plan_of(&query).reason, "asked for");
    EXPECT_EQ(plan_of(&query).blocks, 3);
    query.hint.algorithm = ALGORITHM_ANY;
    query.op = SMFAR_PRODUCT; /* not in the switch */
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
    EXPECT(plan_of(&query).row == NULL, "a row that cannot serve");
}

/* A smaller window leaves less room than a table reckons with; graphs hold no splits. */
static void check_what_cannot_be(void)
{
    struct plan_table table =
        table_of((struct plan_row){.algorithm = ALGORITHM_PUSH_PEER, .to = 128 << 10});
    struct plan_query query = query_of(&table, 4096);
    query.agreed.push_bytes = 8192;
    query.agreed.oneshot_bytes = 8192;
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
    table.row[0].algorithm = ALGORITHM_SPLIT_PEER;
    EXPECT_HAS(plan_of(&query).name, "split_peer");
    query.captured = 1;
    EXPECT_HAS(plan_of(&query).name, "twoshot_peer");
}

static void check_chunks(void)
{
    static const enum algorithm cut[] = {ALGORITHM_TWOSHOT_PEER, ALGORITHM_SPLIT_PEER};
    for (int i = 0; i < 2; i++) {
        struct plan_table table =
            table_of((struct plan_row){.algorithm = cut[i], .chunk = 1 << 20, .to = INT64_MAX});
        struct plan_query query = query_of(&table, 1 << 24);
        struct plan plan = plan_of(&query);
        EXPECT_EQ(plan.chunk, (1 << 20) / 4);
        EXPECT_EQ(plan.chunk % (4 * 32), 0); /* whole lines of each rank's */
        table.row[0].chunk = 1ull << 40;     /* more than the slot holds */
        EXPECT(plan_of(&query).chunk * 4 <= 32 << 20, "a step that does not fit");
    }
}

/* Steps so short that the streams would have to meet more often than they can. */
static void check_too_short(void)
{
    static const enum algorithm split[] = {ALGORITHM_SPLIT_PEER, ALGORITHM_SPLIT_MC};
    for (int i = 0; i < 2; i++) {
        struct plan_table table = table_of(
            (struct plan_row){.algorithm = split[i], .chunk = 4096, .line = 3, .to = INT64_MAX});
        struct plan_query query = query_of(&table, 1 << 20);
        query.agreed.multicast = 1;
        EXPECT_EQ(plan_of(&query).chunk, 1024);
        query.count = 1 << 28; /* 262,144 steps of 4 KiB */
        struct plan plan = plan_of(&query);
        uint64_t steps = query.count / plan.chunk + 1,
                 share = plan.chunk; /* of 4 ranks, in bytes */
        EXPECT(steps * ((share + plan.leg - 1) / plan.leg + 1) <= MEETINGS_MOST, "%llu steps",
               (unsigned long long)steps);
        EXPECT(plan.chunk * 4 < 1 << 20, "steps of %llu elements", (unsigned long long)plan.chunk);
        EXPECT_HAS(plan.reason, "line 3 of the plan table says so, but for its chunk");
    }
}

/* ---- communicators ---- */

struct tables {
    const char *text[2]; /* of rank 0, and of the others; NULL: no option */
    const char *wanted;  /* the algorithm */
    int blocks, threads; /* 0: any */
    const char *fault;   /* or NULL */
    const char *source;
};

static void write_table(const char *path, const char *topology, const char *rows)
{
    FILE *file = fopen(path, "w");
    REQUIRE(file != NULL, "%s cannot be written", path);
    fprintf(file, "smfar plan table 1\ntopology %s\n%s", topology, rows);
    fclose(file);
}

static char folder[] = "/tmp/smfar-tables-XXXXXX"; /* main makes it */

static enum smfar_status join(struct ranks_thread *me, const char *table, smfar_comm **comm_out)
{
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 8 << 20,
                                  .plan_table = table};
    return smfar_comm_create(&config, me->store, me->rank, me->ranks, comm_out);
}

/* What a section of this communicator begins with. */
static char topology[256];

static void learn_topology(struct ranks_thread *me)
{
    static const char begins[] = "topology ";
    char text[4096] = "";
    smfar_comm *comm = NULL;
    must(join(me, "0", &comm));
    must(smfar_comm_describe(comm, text, sizeof text));
    EXPECT_HAS(text, "plan table: none; topology ranks=3 ranks_per_gpu=1 multicast=on device=");
    const char *found = strstr(text, begins);
    REQUIRE(found != NULL, "%s", text);
    found += strlen(begins);
    if (me->rank == 0)
        snprintf(topology, sizeof topology, "%.*s", (int)strcspn(found, "\n"), found);
    smfar_comm_destroy(comm);
}

static void check_sum(struct ranks_thread *me, smfar_comm *comm, const struct tables *tables)
{
    static float memory[SMFAR_MAX_RANKS][COUNT];
    float *data = memory[me->rank];
    struct smfar_path path;
    int wrong = 0;
    for (int i = 0; i < COUNT; i++)
        data[i] = (float)(i % 100 * (me->rank + 1));
    must(smfar_all_reduce(data, data, COUNT, SMFAR_F32, SMFAR_SUM, comm, NULL));
    must(smfar_comm_wait(comm, smfar_comm_sequence(comm), -1));
    for (int i = 0; i < COUNT; i++)
        wrong += data[i] != (float)(i % 100 * (me->ranks * (me->ranks + 1) / 2));
    EXPECT_EQ(wrong, 0);
    must(smfar_comm_path(comm, 0, &path));
    EXPECT_HAS(path.algorithm, tables->wanted);
    if (tables->blocks) EXPECT_EQ(path.blocks, tables->blocks);
    if (tables->threads) EXPECT_EQ(path.threads, tables->threads);
}

static void use_table(struct ranks_thread *me)
{
    const struct tables *tables = me->extra;
    const char *rows = tables->text[me->rank > 0];
    char path[128], text[4096] = "";
    smfar_comm *comm = NULL;
    snprintf(path, sizeof path, "%s/of_rank_%d", folder, me->rank);
    if (rows) write_table(path, topology, rows);
    enum smfar_status status = join(me, rows ? path : NULL, &comm);
    if (tables->fault) {
        EXPECT_EQ(status, SMFAR_ERR_ARGUMENT);
        EXPECT_HAS(smfar_last_error(), tables->fault);
        EXPECT_HAS(smfar_last_error(), "on rank 0");
        return;
    }
    must(status);
    must(smfar_comm_describe(comm, text, sizeof text));
    EXPECT_HAS(text, tables->source);
    check_sum(me, comm, tables);
    smfar_comm_destroy(comm);
}

static void run(struct tables tables) { ranks_run(3, use_table, &tables); }

static void check_agreement(void)
{
    run((struct tables){.text = {"all_reduce from=0 to=20003 algorithm=push_peer",
                                 "all_reduce from=0 to=end algorithm=twoshot_peer"},
                        .wanted = "push_mc", /* 20,004 bytes: not its */
                        .source = "plan table: 1 row of /tmp"});
    run((struct tables){
        .text = {"all_reduce from=20004 to=30000 algorithm=push_peer", "that is none"},
        .wanted = "push_peer",
        .source = "of_rank_0;"});
    run((struct tables){.text = {"all_reduce from=0 to=30000 algorithm=push_peer blocks=9"},
                        .fault = "blocks=9: a rank has room for 8"});
    char mine[256];
    snprintf(mine, sizeof mine, "%s", topology);
    topology[6] = '5'; /* ranks */
    run((struct tables){.text = {"all_reduce from=0 to=end algorithm=twoshot_peer"},
                        .wanted = "push_mc",
                        .source = "none for this topology in /tmp"});
    snprintf(topology, sizeof topology, "%s", mine);
    run((struct tables){.text = {NULL, "that is none"}, .wanted = "push_mc", .source = "none;"});
}

/* Sums are right in every shape, also where most blocks have nothing to do. */
static void check_shapes(void)
{
    static const char *const names[] = {"twoshot_mc",   "split_mc",     "push_mc",   "push_peer",
                                        "oneshot_peer", "twoshot_peer", "split_peer"};
    enum { NAMES = sizeof names / sizeof *names };
    static const int shapes[][2] = {{1, 64}, {8, 64}, {8, 512}, {3, 480}, {1, 32}};
    char row[160];
    for (int i = 0; i < NAMES * 5; i++) {
        const char *name = names[i % NAMES];
        int blocks = shapes[i / NAMES][0], threads = shapes[i / NAMES][1];
        if (strstr(name, "push") && threads == 32) continue; /* it has a warp that moves nothing */
        snprintf(row, sizeof row, "all_reduce from=0 to=100000 algorithm=%s blocks=%d threads=%d",
                 name, blocks, threads);
        run((struct tables){.text = {row},
                            .wanted = name,
                            .blocks = blocks,
                            .threads = threads,
                            .source = "1 row of"});
    }
    run((struct tables){.text = {"all_reduce from=0 to=end algorithm=twoshot_mc chunk=4096"},
                        .wanted = "twoshot_mc",
                        .source = "1 row of"});
    run((struct tables){.text = {"all_reduce from=0 to=end algorithm=split_peer chunk=4096"},
                        .wanted = "split_peer",
                        .source = "1 row of"});
}

/* Such as no file can have; and such as leave no room for what is wrong with them. */
static void check_long_paths(void)
{
    char path[5001], room[4096];
    for (size_t i = 0; i < sizeof path; i++)
        path[i] = i % 2 ? 'x' : '/';
    path[5000] = 0;
    setenv("SMFAR_PLAN_TABLE", path, 1);
    run((struct tables){.fault = "path has 5000 characters, and there is room for 4095: name"});
    EXPECT_EQ(smfar_plan_table_place(room, sizeof room), SMFAR_ERR_ARGUMENT);
    EXPECT_HAS(smfar_last_error(), "path has 5000 characters");
    path[4095] = 0;
    setenv("SMFAR_PLAN_TABLE", path, 1);
    EXPECT_EQ(smfar_plan_table_place(room, sizeof room), SMFAR_OK);
    EXPECT_EQ(strlen(room), 4095);
    path[1500] = 0;
    setenv("SMFAR_PLAN_TABLE", path, 1);
    run((struct tables){.fault = "the plan table .../x/x"});
    run((struct tables){.fault = "/x/x cannot be read: No such file"});
}

/* By the variable, and at the user's place, where a fault is said and passed over. */
static void check_places(void)
{
    char path[160];
    snprintf(path, sizeof path, "%s/smfar", folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/smfar/plan_table", folder);
    write_table(path, topology, "all_reduce from=0 to=end algorithm=twoshot_peer");
    struct tables by_place = {.wanted = "twoshot_peer", .source = "1 row of"};
    unsetenv("SMFAR_PLAN_TABLE");
    setenv("XDG_CONFIG_HOME", folder, 1);
    run(by_place);
    setenv("SMFAR_PLAN_TABLE", "0", 1);
    run((struct tables){.wanted = "push_mc", .source = "none;"});
    setenv("SMFAR_PLAN_TABLE", path, 1);
    setenv("XDG_CONFIG_HOME", "/nowhere", 1);
    run(by_place);
    setenv("SMFAR_PLAN_TABLE", "/nowhere/table", 1);
    run((struct tables){.fault = "/nowhere/table cannot be read: No such file"});
    check_long_paths();
    unsetenv("SMFAR_PLAN_TABLE");
    run((struct tables){.wanted = "push_mc", .source = "none;"});
    write_table(path, topology, "all_reduce from=0 to=end algorithm=ring");
    setenv("XDG_CONFIG_HOME", folder, 1);
    run((struct tables){.wanted = "push_mc", .source = "plan_table:3: algorithm=ring"});
    unlink(path);
    /* nobody waits for what writes to a pipe */
    REQUIRE(mkfifo(path, 0600) == 0, "no pipe");
    run((struct tables){.wanted = "push_mc",
                        .source = "plan_table cannot be read: it is no regular"});
    setenv("SMFAR_PLAN_TABLE", path, 1);
    run((struct tables){.fault = "plan_table cannot be read: it is no regular file; python -m"});
    EXPECT_EQ(smfar_plan_table_check(path), SMFAR_ERR_ARGUMENT);
    unlink(path);
    setenv("SMFAR_PLAN_TABLE", "0", 1);
}

/* Rows for other topologies count, too. */
static void check_a_file(void)
{
    char path[160];
    snprintf(path, sizeof path, "%s/table", folder);
    write_table(path, topology, "all_reduce from=0 to=end algorithm=twoshot_peer blocks=1000");
    EXPECT_EQ(smfar_plan_table_check(path), SMFAR_OK);
    write_table(path, "ranks=7 ranks_per_gpu=1 multicast=on device=x",
                "all_reduce from=0 to=end algorithm=ring");
    EXPECT_EQ(smfar_plan_table_check(path), SMFAR_ERR_ARGUMENT);
    EXPECT_HAS(smfar_last_error(), "table:3: algorithm=ring");
    unlink(path);
    EXPECT_EQ(smfar_plan_table_check(path), SMFAR_ERR_ARGUMENT);
    EXPECT_HAS(smfar_last_error(), "No such file");
    EXPECT_EQ(smfar_plan_table_check(NULL), SMFAR_ERR_ARGUMENT);
}

static void remove_all(void)
{
    char path[160];
    for (int rank = 0; rank < 3; rank++) {
        snprintf(path, sizeof path, "%s/of_rank_%d", folder, rank);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/smfar", folder);
    rmdir(path);
    EXPECT(rmdir(folder) == 0, "something is left in %s", folder);
}

int main(void)
{
    REQUIRE(mkdtemp(folder) != NULL, "no folder");
    setenv("SMFAR_PLAN_TABLE", "0", 1);
    check_row();
    check_budgets();
    check_threads();
    check_wishes();
    check_what_cannot_be();
    check_chunks();
    check_too_short();
    ranks_run(3, learn_topology, NULL);
    check_agreement();
    check_shapes();
    check_places();
    check_a_file();
    remove_all();
    return unit_end();
}
