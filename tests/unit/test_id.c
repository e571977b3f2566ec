/* Ranks that meet by an id: threads in any order of arrival; what cannot be a group is refused on
 * every rank, long before the deadline where somebody can know. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../csrc/bootstrap/fdpass.h"
#include "ranks.h"
#include "switch.h"

enum { SHORT_MS = 2000, LONG_MS = 60000, STRANGER_UID = 65534 };

struct meeting {
    struct smfar_id id;
    int late; /* the rank that comes last */
    int64_t timeout_ms;
};

static enum smfar_status meet(struct meeting *meeting, int rank, int ranks, smfar_comm **comm)
{
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = meeting->timeout_ms,
                                  .window_bytes = 1 << 20};
    return smfar_comm_init_rank(&meeting->id, rank, ranks, &config, comm);
}

static void together(struct ranks_thread *me)
{
    struct meeting *meeting = me->extra;
    smfar_comm *comm = NULL;
    float data[100];
    if (me->rank == meeting->late) usleep(100000);
    enum smfar_status status = meet(meeting, me->rank, me->ranks, &comm);
    REQUIRE(status == SMFAR_OK, "rank %d: %s", me->rank, smfar_last_error());
    for (int i = 0; i < 100; i++)
        data[i] = 1;
    EXPECT_EQ(smfar_all_reduce(data, data, 100, SMFAR_F32, SMFAR_SUM, comm, NULL), SMFAR_OK);
    EXPECT_EQ(smfar_comm_wait(comm, smfar_comm_sequence(comm), -1), SMFAR_OK);
    EXPECT_EQ(data[99], me->ranks);
    smfar_comm_destroy(comm);
}

static void nobody_else(struct ranks_thread *me)
{
    smfar_comm *comm = NULL;
    int64_t begin = clock_now_ms();
    if (me->rank == 1) return;
    EXPECT_EQ(meet(me->extra, me->rank, me->ranks, &comm), SMFAR_ERR_TIMEOUT);
    EXPECT_HAS(smfar_last_error(), "rank 1");
    EXPECT(clock_now_ms() - begin < LONG_MS / 2, "late by %lld ms",
           (long long)(clock_now_ms() - begin));
    EXPECT(comm == NULL, "a communicator in spite of the failure");
}

static void no_first(struct ranks_thread *me)
{
    smfar_comm *comm = NULL;
    if (me->rank == 0) return;
    EXPECT_EQ(meet(me->extra, me->rank, me->ranks, &comm), SMFAR_ERR_TIMEOUT);
    EXPECT_HAS(smfar_last_error(), "rank 0");
}

/* The last rank thinks that there is one more: all hear of it. */
static void miscounted(struct ranks_thread *me)
{
    smfar_comm *comm = NULL;
    int64_t begin = clock_now_ms();
    int ranks = me->rank == me->ranks - 1 ? me->ranks + 1 : me->ranks;
    EXPECT(meet(me->extra, me->rank, ranks, &comm) != SMFAR_OK, "rank %d", me->rank);
    EXPECT(clock_now_ms() - begin < LONG_MS / 2, "waited for the deadline");
}

static void same_number_twice(struct ranks_thread *me)
{
    smfar_comm *comm = NULL;
    enum smfar_status status = meet(me->extra, me->rank ? 1 : 0, me->ranks, &comm);
    EXPECT(status != SMFAR_OK, "rank %d", me->rank);
    if (me->rank == 0) EXPECT_HAS(smfar_last_error(), "rank is there already");
}

/* A process of another user that connects first and then says nothing. */
static pid_t start_stranger(const struct meeting *meeting)
{
    pid_t pid = fork();
    if (pid) return pid;
    int fd = -1;
    if (setuid(STRANGER_UID) ||
        fdpass_connect(meeting->id.text, 1, clock_now_ms() + LONG_MS, &fd) != SMFAR_OK)
        _exit(1);
    for (;;)
        pause();
}

/* The others come once the stranger has had time to be first. */
static void beside_a_stranger(struct ranks_thread *me)
{
    struct meeting *meeting = me->extra;
    smfar_comm *comm = NULL;
    if (me->rank) usleep(300000);
    int64_t begin = clock_now_ms();
    EXPECT(meet(meeting, me->rank, me->ranks, &comm) == SMFAR_OK, "%s", smfar_last_error());
    EXPECT(me->rank == 0 || clock_now_ms() - begin < LONG_MS / 2,
           "waited for another user: %lld ms", (long long)(clock_now_ms() - begin));
    smfar_comm_destroy(comm);
}

static void strangers(void)
{
    struct meeting meeting = {.timeout_ms = LONG_MS};
    if (geteuid() != 0) {
        printf("another user's connection: left out, only root can make one\n");
        return;
    }
    EXPECT_EQ(smfar_unique_id(&meeting.id), SMFAR_OK);
    pid_t pid = start_stranger(&meeting);
    ranks_run(2, beside_a_stranger, &meeting);
    EXPECT_EQ(waitpid(pid, NULL, WNOHANG), 0); /* it was there */
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void refusals(void)
{
    struct smfar_id id = {"smfar-id-0123"}, other;
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT, .device = -1};
    smfar_comm *comm = NULL;
    EXPECT_EQ(smfar_unique_id(NULL), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_comm_init_rank(NULL, 0, 1, &config, &comm), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_comm_init_rank(&id, 0, 1, &config, &comm), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_unique_id(&id), SMFAR_OK);
    EXPECT_EQ(smfar_unique_id(&other), SMFAR_OK);
    EXPECT(strcmp(id.text, other.text) != 0, "two ids are the same");
    EXPECT_EQ(smfar_comm_init_rank(&id, 1, 1, &config, &comm), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_comm_init_rank(&id, 0, 1, NULL, &comm), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_comm_init_rank(&id, 0, 1, &config, NULL), SMFAR_ERR_ARGUMENT);
}

static void run(int ranks, void (*body)(struct ranks_thread *), int late, int64_t timeout_ms)
{
    struct meeting meeting = {.late = late, .timeout_ms = timeout_ms};
    EXPECT_EQ(smfar_unique_id(&meeting.id), SMFAR_OK);
    ranks_run(ranks, body, &meeting);
}

int main(void)
{
    refusals();
    run(1, together, 0, LONG_MS);
    run(3, together, 0, LONG_MS);
    run(3, together, 1, LONG_MS);
    run(SMFAR_MAX_RANKS, together, 3, LONG_MS);
    run(3, nobody_else, 0, SHORT_MS);
    run(2, no_first, 0, SHORT_MS);
    run(3, miscounted, 0, LONG_MS);
    run(3, same_number_twice, 0, LONG_MS);
    strangers();
    return unit_end();
}
