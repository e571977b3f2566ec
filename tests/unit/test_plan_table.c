/* Units of comm/plan_table_read: what a table may say, the section that counts, and the sentence
 * for every fault. */
#define _GNU_SOURCE
#include "../../csrc/comm/plan_table.h"

#include <errno.h>

#include "../../csrc/base/status.h"
#include "unit.h"

#define HEAD "smfar plan table 1\n"
#define PEERS "topology ranks=2 ranks_per_gpu=1 multicast=off device=Some GPU 9000\n"
#define SWITCH "topology ranks=2 multicast=on ranks_per_gpu=1 device=Some GPU 9000\n"
#define OTHER "topology ranks=4 multicast=on ranks_per_gpu=1 device=Some GPU 9000\n"

static const struct plan_topology here = {
    .ranks = 2, .per_device = 1, .resident_blocks = 100, .device = "Some GPU 9000"};

static enum smfar_status read_text(const char *text, struct plan_table *table)
{
    FILE *file = fmemopen((void *)(uintptr_t)text, strlen(text), "r");
    REQUIRE(file != NULL, "no file in memory");
    memset(table, 0, sizeof *table);
    enum smfar_status status = plan_table_read(file, "some/table", &here, table);
    fclose(file);
    return status;
}

static void expect_fault(const char *text, const char *place, const char *words)
{
    struct plan_table table;
    EXPECT_EQ(read_text(text, &table), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(table.count, 0);
    EXPECT_HAS(smfar_last_error(), place);
    EXPECT_HAS(smfar_last_error(), words);
}

/* A fault of the row behind the third line. */
static void expect_row_fault(const char *row, const char *words)
{
    char text[512];
    snprintf(text, sizeof text, HEAD "# a comment\n" PEERS "%s", row);
    expect_fault(text, "some/table:4: ", words);
}

static void check_section(void)
{
    struct plan_table table;
    const char *text = HEAD "\n" SWITCH "all_reduce from=0 to=end algorithm=split_mc\n" PEERS
                            "all_reduce algorithm=push_peer from=0 to=4096 blocks=3\n"
                            "  all_reduce from=4097 to=end algorithm=split_peer blocks=4 "
                            "threads=256 chunk=1048576\n"
                            "reduce_scatter from=10 to=20 algorithm=pull_peer";
    EXPECT_EQ(read_text(text, &table), SMFAR_OK);
    EXPECT_EQ(table.count, 3);
    const struct plan_row *row = plan_table_row(&table, COLLECTIVE_ALL_REDUCE, 4096);
    REQUIRE(row != NULL, "no row");
    EXPECT_EQ(row->algorithm, ALGORITHM_PUSH_PEER);
    EXPECT_EQ(row->blocks, 3);
    EXPECT_EQ(row->threads, 0);
    EXPECT_EQ(row->line, 6);
    row = plan_table_row(&table, COLLECTIVE_ALL_REDUCE, UINT32_MAX);
    REQUIRE(row != NULL, "no row");
    EXPECT_EQ(row->algorithm, ALGORITHM_SPLIT_PEER);
    EXPECT_EQ(row->threads, 256);
    EXPECT_EQ(row->chunk, 1 << 20);
    EXPECT(plan_table_row(&table, COLLECTIVE_REDUCE, 15) == NULL, "a row of another collective");
    EXPECT(plan_table_row(&table, COLLECTIVE_REDUCE_SCATTER, 15) != NULL, "no row");
    EXPECT(plan_table_row(&table, COLLECTIVE_REDUCE_SCATTER, 21) == NULL, "past the row");
    EXPECT(plan_table_row(NULL, COLLECTIVE_REDUCE_SCATTER, 15) == NULL, "no table");
}

static void check_lines(void)
{
    expect_fault("", "some/table:0: ", "is empty");
    expect_fault("smfar plan table 2\n", "some/table:1: ", "python -m smfar tune writes one anew");
    expect_fault(HEAD "all_reduce from=0 to=1 algorithm=push_peer", ":2: ", "topology must come");
    expect_fault(HEAD PEERS SWITCH PEERS, ":4: ", "has come before");
    expect_fault(HEAD "topology ranks=2 multicast=on device=x", ":2: ", "needs ranks_per_gpu=");
    expect_fault(HEAD "topology ranks=99 ranks_per_gpu=1 multicast=on device=x",
                 ":2: ", "ranks=99: a whole number from 1 to 16");
    expect_fault(HEAD "topology ranks=2 ranks_per_gpu=1 multicast=yes device=x",
                 ":2: ", "multicast=yes: on or off");
    expect_fault(HEAD "topology ranks=2 gpus=1", ":2: ", "\"gpus\" is no field");
    expect_row_fault("all_gather from=0 to=1 algorithm=push_peer", "\"all_gather\" begins no line");
}

static void check_rows(void)
{
    expect_row_fault("all_reduce from=0 to=9", "needs algorithm=");
    expect_row_fault("all_reduce from=0 to=9 algorithm=push_peer to=8", "to= comes twice");
    expect_row_fault("all_reduce from=0 to=9 algorithm=push_peer block=8", "\"block\" is no field");
    expect_row_fault("all_reduce from=0 to 9", "\"to\" is no field");
    expect_row_fault("all_reduce from=9 to=8 algorithm=push_peer", "from=9 is more than to=8");
    expect_row_fault("all_reduce from=-1 to=8 algorithm=push_peer", "from=-1: a whole number");
    expect_row_fault("all_reduce from= to=8 algorithm=push_peer", "from=: a whole number");
    expect_row_fault("all_reduce from=0 to=8K algorithm=push_peer", "to=8K: a whole number");
    expect_row_fault("all_reduce from=0 to=8 algorithm=ring", "push_peer, oneshot_peer, twoshot");
    expect_row_fault("all_reduce from=0 to=8 algorithm=any", "algorithm=any: all_reduce");
    expect_row_fault("all_reduce from=0 to=8 algorithm=twoshot_mc",
                     "with multicast=off is done by");
    expect_row_fault("reduce_scatter from=0 to=8 algorithm=twoshot_peer", "is done by pull_peer");
    expect_row_fault("all_reduce from=0 to=262145 algorithm=push_peer", "to=262144, or less");
    expect_row_fault("all_reduce from=0 to=end algorithm=oneshot_peer", "to=262144, or less");
    expect_row_fault("all_reduce from=0 to=8 algorithm=push_peer chunk=8192", "has one step");
    expect_row_fault("all_reduce from=0 to=8 algorithm=split_peer chunk=10", "chunk=10: a whole");
    expect_row_fault("all_reduce from=0 to=8 algorithm=push_peer blocks=0", "blocks=0: a whole");
    expect_row_fault("all_reduce from=0 to=8 algorithm=push_peer blocks=101", "room for 100");
    expect_row_fault("all_reduce from=0 to=8 algorithm=push_peer threads=32", "from 64 to 640");
    expect_row_fault("all_reduce from=0 to=8 algorithm=split_peer threads=33", "multiple of 32");
    expect_row_fault("all_reduce from=0 to=8 algorithm=split_peer threads=1024", "from 32 to 512");
}

static void check_ranges(void)
{
    struct plan_table table;
    char text[16384] = HEAD PEERS;
    expect_fault(HEAD PEERS "all_reduce from=0 to=9 algorithm=push_peer\n"
                            "reduce from=0 to=9 algorithm=pull_peer\n"
                            "all_reduce from=9 to=12 algorithm=split_peer",
                 ":5: ", "from 9 on are those of line 3");
    for (int i = 0, n = (int)strlen(text); i < PLAN_ROWS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      "all_reduce from=%d to=%d algorithm=twoshot_peer\n", 2 * i, 2 * i + 1);
    EXPECT_EQ(read_text(text, &table), SMFAR_OK);
    EXPECT_EQ(table.count, PLAN_ROWS);
    strcat(text, "all_reduce from=900 to=901 algorithm=twoshot_peer\n");
    expect_fault(text, ":67: ", "more than 64 rows");
}

/* Sections for others are read, and their faults found; room there is not known here. */
static void check_others(void)
{
    struct plan_table table;
    EXPECT_EQ(
        read_text(HEAD SWITCH "all_reduce from=0 to=8 algorithm=twoshot_mc blocks=101\n", &table),
        SMFAR_OK);
    EXPECT_EQ(table.count, 0);
    expect_fault(HEAD SWITCH "all_reduce from=0 to=8 algorithm=twoshot_mc threads=7\n" PEERS,
                 ":3: ", "threads=7");
    expect_fault(HEAD SWITCH "all_reduce from=0 to=8 algorithm=twoshot_mc\n"
                             "all_reduce from=8 to=9 algorithm=split_mc\n" PEERS,
                 ":4: ", "from 8 on are those of line 3");
    EXPECT_EQ(read_text(HEAD SWITCH "all_reduce from=0 to=8 algorithm=twoshot_mc\n" OTHER
                                    "all_reduce from=0 to=8 algorithm=twoshot_mc\n",
                        &table),
              SMFAR_OK);
}

static ssize_t read_half(void *text, char *buffer, size_t size)
{
    const char **left = text;
    size_t length = strlen(*left);
    if (!length) {
        errno = EIO;
        return -1;
    }
    if (length > size) length = size;
    memcpy(buffer, *left, length);
    *left += length;
    return (ssize_t)length;
}

/* A table of which only the beginning can be read is none. */
static void check_half(void)
{
    struct plan_table table = {.count = 0};
    const char *text = HEAD PEERS "all_reduce from=0 to=9 algorithm=push_peer\n";
    FILE *file = fopencookie(&text, "r", (cookie_io_functions_t){.read = read_half});
    REQUIRE(file != NULL, "no file");
    EXPECT_EQ(plan_table_read(file, "some/table", &here, &table), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(table.count, 0);
    EXPECT_HAS(smfar_last_error(), "some/table:3: what follows cannot be read: Input/output error");
    fclose(file);
}

int main(void)
{
    check_section();
    check_lines();
    check_rows();
    check_ranges();
    check_others();
    check_half();
    return unit_end();
}
