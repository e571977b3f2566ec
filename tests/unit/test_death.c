/* Ranks are processes; one is killed or stopped, in every phase: while the communicator is set up
 * (at moments spread over its length), between collectives, inside them, in the allocation of
 * window memory, after rank 0 has left, and while its forked child lives on. The others must hear
 * of it, from an error that names it: of a death at once, of silence within the deadline. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../csrc/base/clock.h"
#include "../../csrc/smfar.h"
#include "unit.h"

enum {
    RANKS = 3,
    COUNT = 20000,
    LONG_MS = 120000,  /* a test that needs it has failed */
    SOON_MS = 30000,   /* a second, and what a slow and busy machine adds */
    STOPPED_MS = 2500, /* the deadline where a rank is only stopped */
    SETUPS = 6         /* in set-up: so many undisturbed ones, if that is more */
};

/* An emulator's or a sanitizer's collectives take their time. */
static int64_t stopped_ms(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 6 * STOPPED_MS;
#else
    return getenv("SMFAR_TEST_EMULATED") ? 6 * STOPPED_MS : STOPPED_MS;
#endif
}

enum phase { IN_SETUP, IN_COLLECTIVES, IN_COPIES, IN_ALLOCATION, AFTER_FIRST_LEFT, WITH_CHILD };
static const char *const names[] = {"set-up",     "collectives",       "copies",
                                    "allocation", "after rank 0 left", "with a child"};

/* What parent and ranks share. */
struct shared {
    struct smfar_id id;
    enum phase phase;
    int victim;
    int64_t timeout_ms;
    _Atomic pid_t child;                    /* of the victim */
    _Atomic int ready;                      /* ranks that have reached the phase */
    _Atomic int64_t set_up;                 /* how long the slowest took */
    _Atomic int64_t struck;                 /* when the victim was struck; 0: not yet */
    _Atomic int64_t heard[SMFAR_MAX_RANKS]; /* when each rank had its error */
    _Atomic int named[SMFAR_MAX_RANKS];     /* 1: the error names the victim */
    char text[SMFAR_MAX_RANKS][400];
};
static struct shared *shared;

static enum smfar_status sum_for_ever(smfar_comm *comm, float *data)
{
    for (;;) {
        enum smfar_status status =
            smfar_all_reduce(data, data, COUNT, SMFAR_F32, SMFAR_AVG, comm, NULL);
        if (status == SMFAR_OK) status = smfar_comm_wait(comm, smfar_comm_sequence(comm), -1);
        if (status != SMFAR_OK) return status;
    }
}

/* Those in which streams and hosts meet, and copy engines carry. */
static enum smfar_status carry_for_ever(smfar_comm *comm, float *data)
{
    static const char *const algorithms[] = {"split_mc", "split_peer"};
    for (int i = 0;; i++) {
        struct smfar_hint hint = {.sm_budget = SMFAR_NO_SMS};
        if (i % 4 < 2) hint = (struct smfar_hint){.algorithm = algorithms[i % 2]};
        enum smfar_status status = smfar_hint_set(&hint);
        if (status == SMFAR_OK && i % 4 < 2)
            status = smfar_all_reduce(data, data, COUNT, SMFAR_F32, SMFAR_AVG, comm, NULL);
        else if (status == SMFAR_OK && i % 4 == 2)
            status = smfar_all_gather_into(data, data + COUNT, COUNT, SMFAR_F32, comm, NULL);
        else if (status == SMFAR_OK)
            status = smfar_barrier(comm, NULL);
        if (status == SMFAR_OK && i % 3 == 0)
            status = smfar_comm_wait(comm, smfar_comm_sequence(comm), -1);
        if (status != SMFAR_OK) return status;
    }
}

/* The victim holds the others up: it comes to no allocation any more. */
static enum smfar_status allocate(smfar_comm *comm, int rank)
{
    void *memory;
    if (rank == shared->victim)
        for (;;)
            pause();
    return smfar_window_alloc(comm, 1000, &memory);
}

static enum smfar_status wait_for_error(smfar_comm *comm)
{
    while (smfar_comm_error(comm) == SMFAR_OK)
        usleep(1000);
    return smfar_comm_error(comm);
}

static enum smfar_status live(smfar_comm *comm, int rank, float *data)
{
    shared->ready++;
    if (shared->phase == IN_ALLOCATION) return allocate(comm, rank);
    if (shared->phase == IN_COPIES) return carry_for_ever(comm, data);
    if (shared->phase == AFTER_FIRST_LEFT) return wait_for_error(comm);
    if (shared->phase == WITH_CHILD && rank == shared->victim) {
        pid_t child = fork(); /* outlives the victim, and so do its copies of the descriptors */
        for (; child == 0;)
            pause();
        shared->child = child;
    }
    return sum_for_ever(comm, data);
}

static void note(int rank)
{
    char victim[16];
    snprintf(victim, sizeof victim, "rank %d", shared->victim);
    snprintf(shared->text[rank], sizeof shared->text[rank], "%s", smfar_last_error());
    shared->named[rank] = strstr(shared->text[rank], victim) != NULL;
    shared->heard[rank] = clock_now_ms();
}

static _Noreturn void be_rank(int rank)
{
    static float data[(1 + RANKS) * COUNT];
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms =
                                      shared->phase == IN_SETUP ? shared->timeout_ms : LONG_MS,
                                  .window_bytes = 1 << 20};
    smfar_comm *comm = NULL;
    int64_t begin = clock_now_ms();
    enum smfar_status status = smfar_comm_init_rank(&shared->id, rank, RANKS, &config, &comm);
    if (clock_now_ms() - begin > shared->set_up) shared->set_up = clock_now_ms() - begin;
    if (shared->phase == AFTER_FIRST_LEFT && rank == 0 && status == SMFAR_OK) {
        smfar_comm_destroy(comm);
        shared->ready++;
        _exit(0);
    }
    if (status == SMFAR_OK) smfar_comm_set_timeout(comm, shared->timeout_ms);
    if (status == SMFAR_OK) status = live(comm, rank, data);
    note(rank);
    smfar_comm_destroy(comm);
    _exit(status == SMFAR_OK);
}

/* The victim is struck once all are in the phase, and `delay_us` later. */
static void strike(pid_t pid, int signal_number, int delay_us)
{
    int64_t limit = clock_now_ms() + LONG_MS / 2;
    int all = shared->phase == IN_SETUP ? 0 : RANKS;
    while (shared->ready < all && clock_now_ms() < limit)
        usleep(1000);
    EXPECT(shared->ready >= all, "%d ranks are ready", shared->ready);
    usleep((unsigned)delay_us);
    shared->struck = clock_now_ms();
    kill(pid, signal_number);
}

static int wait_end(pid_t pid, int64_t limit)
{
    int status = -1;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (clock_now_ms() > limit) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        usleep(1000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int64_t worst_ms, set_up_ms; /* the latter of the slowest undisturbed set-up */

/* A rank that was in the group with the victim; `most_ms` after the strike it has its error. */
static void check_survivor(int rank, pid_t pid, int64_t most_ms)
{
    int code = wait_end(pid, shared->struck + most_ms + LONG_MS / 4);
    int left = shared->phase == AFTER_FIRST_LEFT && rank == 0;
    EXPECT(code == 0, "%s: rank %d ended with %d", names[shared->phase], rank, code);
    if (left || code != 0) return;
    int64_t took = shared->heard[rank] - shared->struck;
    if (shared->timeout_ms == LONG_MS && took > worst_ms) worst_ms = took;
    EXPECT(took < most_ms, "%s: rank %d heard of rank %d after %lld ms: %s", names[shared->phase],
           rank, shared->victim, (long long)took, shared->text[rank]);
    EXPECT(shared->named[rank], "%s: rank %d does not name rank %d: %s", names[shared->phase], rank,
           shared->victim, shared->text[rank]);
}

static void run(enum phase phase, int victim, int signal_number, int delay_us)
{
    pid_t pid[RANKS];
    memset(shared, 0, sizeof *shared);
    shared->phase = phase;
    shared->victim = victim;
    shared->timeout_ms = signal_number == SIGKILL ? LONG_MS : stopped_ms();
    /* a rank that never came cannot be known to be dead: then the deadline counts */
    if (phase == IN_SETUP)
        shared->timeout_ms = STOPPED_MS > SETUPS * set_up_ms ? STOPPED_MS : SETUPS * set_up_ms;
    REQUIRE(smfar_unique_id(&shared->id) == SMFAR_OK, "%s", smfar_last_error());
    fflush(stdout);
    for (int r = 0; r < RANKS; r++) {
        pid[r] = fork();
        if (pid[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            be_rank(r);
        }
    }
    strike(pid[victim], signal_number, delay_us);
    for (int r = 0; r < RANKS; r++)
        if (r != victim)
            check_survivor(r, pid[r],
                           shared->timeout_ms == LONG_MS ? SOON_MS : shared->timeout_ms + SOON_MS);
    if (phase != IN_SETUP && shared->set_up > set_up_ms) set_up_ms = shared->set_up;
    if (shared->child > 0) kill(shared->child, SIGKILL);
    kill(pid[victim], SIGKILL);
    waitpid(pid[victim], NULL, 0);
}

static void test_r13_a_peer_that_stops_in_an_allocation(void)
{
    run(IN_ALLOCATION, 1, SIGSTOP, 50000);
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shared != MAP_FAILED, "no shared memory");
    for (int victim = 0; victim < RANKS; victim++) {
        run(IN_COLLECTIVES, victim, SIGKILL, 7000 * victim);
        if (victim < 2) run(IN_COLLECTIVES, victim, SIGSTOP, 5000 * victim);
        run(IN_COPIES, victim, SIGKILL, 9000 * victim);
        run(IN_ALLOCATION, victim, SIGKILL, 50000);
    }
    run(IN_COPIES, 1, SIGSTOP, 7000);
    test_r13_a_peer_that_stops_in_an_allocation();
    run(AFTER_FIRST_LEFT, 2, SIGKILL, 1000);
    run(WITH_CHILD, 0, SIGKILL, 20000);
    for (int i = 0; i < 10; i++)
        run(IN_SETUP, i % RANKS, i % 4 == 3 ? SIGSTOP : SIGKILL, (int)(100 * set_up_ms) * i);
    printf("a death was heard of after at most %lld ms\n", (long long)worst_ms);
    return unit_end();
}
