/* Driver calls that fail while streams meet and copy engines carry: the nth call of each function
 * on one rank, for n = 1, 2, … until there is no such call.
 * Every rank must hear of it soon, from an error that names the call, and nothing may be left
 * behind. */
#define _GNU_SOURCE /* pthread_setname_np */
#include "../../csrc/base/clock.h"
#include "ranks.h"
#include "switch.h"

enum { RANKS = 3, FAULTY = 1, COUNT = 4000, SOON_MS = 15000, LONG_MS = 60000, MOST_CALLS = 400 };

static const char *const functions[] = {"cuStreamBatchMemOp", "cuEventRecord", "cuStreamWaitEvent",
                                        "cuMemcpyAsync", "cuLaunchKernel"};

/* What one group is to suffer. */
struct trial {
    const char *function;
    unsigned first;
    int index; /* of the fault */
    pthread_barrier_t together;
};

static int (*plan)(const struct soft_fault *);
static unsigned (*matches)(int);
static void (*clear_faults)(void);

/* The rank's calls, some on tensors in the window, some outside; at each another rank is late. */
static enum smfar_status call_all(smfar_comm *comm, int rank, float *window, float *outside)
{
    enum smfar_status status = SMFAR_OK;
    for (int i = 0; i < 8 && status == SMFAR_OK; i++) {
        struct smfar_hint hint = {.algorithm = i & 2 ? "split_peer" : "split_mc"};
        float *data = i & 1 ? outside : window;
        if (i >= 4) hint = (struct smfar_hint){.sm_budget = SMFAR_NO_SMS};
        must(smfar_hint_set(&hint));
        if (rank == i % RANKS) usleep(2000);
        if (i < 4)
            status = smfar_all_reduce(data, data, COUNT, SMFAR_F32, SMFAR_SUM, comm, NULL);
        else if (i < 6)
            status =
                smfar_all_gather_into(outside + RANKS * COUNT, data, COUNT, SMFAR_F32, comm, NULL);
        else
            status = smfar_broadcast(data, data, COUNT, SMFAR_F32, i % RANKS, comm, NULL);
    }
    const size_t count[RANKS] = {10, 10, 10};
    const void *send[RANKS] = {window, window, window};
    void *recv[RANKS] = {outside, outside + 10, outside + 20};
    must(smfar_hint_set(NULL));
    if (status == SMFAR_OK)
        status = smfar_all_to_all_v(send, count, recv, count, SMFAR_F32, comm, NULL);
    must(smfar_hint_set(&(struct smfar_hint){.sm_budget = SMFAR_NO_SMS}));
    return status == SMFAR_OK ? smfar_barrier(comm, NULL) : status;
}

static void order_fault(struct trial *trial)
{
    char name[16];
    snprintf(name, sizeof name, "rank%d", FAULTY);
    struct soft_fault fault = {
        .call = trial->function, .thread = name, .first = trial->first, .times = 1, .result = 999};
    trial->index = plan(&fault);
    REQUIRE(trial->index >= 0, "%s cannot be made to fail", trial->function);
}

static void expect_failure(const struct trial *trial, int rank, enum smfar_status status,
                           int64_t took)
{
    const char *text = smfar_last_error();
    EXPECT(status == SMFAR_ERR_DRIVER, "%s number %u: rank %d has %s: %s", trial->function,
           trial->first, rank, smfar_status_name(status), text);
    EXPECT_HAS(text, trial->function);
    EXPECT(took < SOON_MS, "%s number %u: rank %d heard after %lld ms", trial->function,
           trial->first, rank, (long long)took);
}

static void suffer(struct ranks_thread *me)
{
    static float outside[RANKS][(2 * RANKS + 1) * COUNT];
    struct trial *trial = me->extra;
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = LONG_MS,
                                  .window_bytes = 1 << 20,
                                  .chunk_bytes = 16 << 10};
    smfar_comm *comm = NULL;
    void *window;
    char name[16];
    snprintf(name, sizeof name, "rank%d", me->rank);
    pthread_setname_np(pthread_self(), name);
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm));
    must(smfar_window_alloc(comm, RANKS * COUNT * sizeof(float), &window));
    if (pthread_barrier_wait(&trial->together) == PTHREAD_BARRIER_SERIAL_THREAD) order_fault(trial);
    pthread_barrier_wait(&trial->together);
    int64_t begin = clock_now_ms();
    enum smfar_status status = call_all(comm, me->rank, window, outside[me->rank]);
    if (status == SMFAR_OK) status = smfar_comm_wait(comm, smfar_comm_sequence(comm), -1);
    int64_t took = clock_now_ms() - begin;
    pthread_barrier_wait(&trial->together);
    if (matches(trial->index) >= trial->first)
        expect_failure(trial, me->rank, status, took);
    else
        EXPECT(status == SMFAR_OK, "%s not failing: %s", trial->function, smfar_last_error());
    pthread_barrier_wait(&trial->together);
    smfar_comm_destroy(comm);
}

int main(void)
{
    smfar_comm *comm;
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT, .window_bytes = 1 << 20};
    struct smfar_id id;
    must(smfar_unique_id(&id));
    must(smfar_comm_init_rank(&id, 0, 1, &config, &comm)); /* loads the switch */
    *(void **)&plan = switch_symbol("soft_fault_plan");
    *(void **)&matches = switch_symbol("soft_fault_matches");
    *(void **)&clear_faults = switch_symbol("soft_faults_clear");
    smfar_comm_destroy(comm);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        struct trial trial = {.function = functions[i]};
        int touched = 1;
        pthread_barrier_init(&trial.together, NULL, RANKS);
        while (touched && trial.first < MOST_CALLS) {
            trial.first += trial.first < 20 ? 1 : 7;
            ranks_run(RANKS, suffer, &trial);
            touched = matches(trial.index) >= trial.first;
            clear_faults();
        }
        EXPECT(trial.first > 1 && !touched, "%s: %u calls", functions[i], trial.first);
        printf("%s: to number %u\n", functions[i], trial.first);
    }
    switch_expect_no_leaks();
    return unit_end();
}
