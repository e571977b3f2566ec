/* Messages from one rank to another, ranks being threads on the software switch: order, tags, any
 * source, oneself, sizes up to many pieces, beside collectives that have not ended; and how they
 * fail: unequal sizes, nobody there, aborts, a rank that leaves, a device that fails, the end of a
 * communicator. */
#include <time.h>
#include <unistd.h>

#include "../../csrc/base/clock.h"
#include "ranks.h"
#include "switch.h"

enum { RANKS = 3, LARGEST = 100000, TIMEOUT_MS = 60000, SHORT_MS = 400 };

static smfar_comm *join(struct ranks_thread *me)
{
    struct smfar_config config = {.driver = SMFAR_DRIVER_SOFT,
                                  .device = -1,
                                  .timeout_ms = TIMEOUT_MS,
                                  .window_bytes = 1 << 20};
    smfar_comm *comm = NULL;
    must(smfar_comm_create(&config, me->store, me->rank, me->ranks, &comm));
    return comm;
}

static smfar_request *send_to(smfar_comm *comm, const void *data, size_t bytes, int peer, int tag)
{
    smfar_request *request = NULL;
    must(smfar_send(data, bytes, peer, tag, comm, NULL, NULL, &request));
    return request;
}

static smfar_request *receive(smfar_comm *comm, void *data, size_t bytes, int peer, int tag)
{
    smfar_request *request = NULL;
    must(smfar_recv(data, bytes, peer, tag, comm, NULL, NULL, &request));
    return request;
}

static void end(smfar_request *request)
{
    must(smfar_request_wait(request, -1));
    smfar_request_free(request);
}

static unsigned char byte_of(int from, int tag, size_t i)
{
    return (unsigned char)((size_t)(from * 7 + tag * 13) + i * 31 + i / 251);
}

static unsigned char *buffer_of(int rank, int which)
{
    static unsigned char memory[RANKS][4][LARGEST];
    return memory[rank][which];
}

static void fill(unsigned char *data, int from, int tag, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = byte_of(from, tag, i);
}

static void expect_bytes(const unsigned char *data, int from, int tag, size_t bytes)
{
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++)
        wrong += data[i] != byte_of(from, tag, i);
    EXPECT(wrong == 0, "%zu of %zu bytes from rank %d are wrong", wrong, bytes, from);
}

/* ---- what works ---- */

/* Everybody to everybody, itself included, all at once. */
static void exchange_all(smfar_comm *comm, int rank, size_t bytes)
{
    smfar_request *sent[RANKS], *got[RANKS];
    fill(buffer_of(rank, 3), rank, 5, bytes);
    for (int r = 0; r < RANKS; r++)
        memset(buffer_of(rank, r), 0xee, bytes);
    for (int r = 0; r < RANKS; r++) {
        got[r] = receive(comm, buffer_of(rank, r), bytes, r, 5);
        sent[r] = send_to(comm, buffer_of(rank, 3), bytes, r, 5);
    }
    for (int r = 0; r < RANKS; r++) {
        end(got[r]);
        end(sent[r]);
        expect_bytes(buffer_of(rank, r), r, 5, bytes);
    }
}

/* Rank 0 sends tags 0, 1, …; rank 1 asks for the last one first. */
static void reverse_tags(smfar_comm *comm, int rank)
{
    enum { COUNT = 20 };
    int32_t data[COUNT];
    smfar_request *request[COUNT];
    for (int i = 0; i < COUNT; i++) {
        int tag = rank == 0 ? i : COUNT - 1 - i;
        data[i] = rank == 0 ? 100 + tag : -1;
        request[i] =
            rank == 0 ? send_to(comm, &data[i], 4, 1, tag) : receive(comm, &data[i], 4, 0, tag);
    }
    for (int i = 0; i < COUNT; i++) {
        end(request[i]);
        if (rank == 1) EXPECT_EQ(data[i], 100 + COUNT - 1 - i);
    }
}

/* More of one tag than a pair can announce at once arrive in the order of the calls. */
static void keep_order(smfar_comm *comm, int rank)
{
    enum { COUNT = 100 };
    int32_t data[COUNT];
    smfar_request *request[COUNT];
    for (int i = 0; i < COUNT; i++) {
        data[i] = rank == 0 ? i : -1;
        request[i] =
            rank == 0 ? send_to(comm, &data[i], 4, 1, 9) : receive(comm, &data[i], 4, 0, 9);
    }
    for (int i = 0; i < COUNT; i++) {
        end(request[i]);
        EXPECT_EQ(data[i], i);
    }
}

static void from_any(smfar_comm *comm, int rank)
{
    int32_t data[RANKS] = {rank}, seen = 0;
    smfar_request *request[RANKS];
    if (rank != 0) {
        end(send_to(comm, data, 4, 0, 3));
        return;
    }
    for (int i = 1; i < RANKS; i++)
        request[i] = receive(comm, &data[i], 4, SMFAR_ANY_RANK, 3);
    for (int i = 1; i < RANKS; i++) {
        must(smfar_request_wait(request[i], -1));
        EXPECT_EQ(smfar_request_peer(request[i]), data[i]);
        seen |= 1 << data[i];
        smfar_request_free(request[i]);
    }
    EXPECT_EQ(seen, (1 << RANKS) - 2);
}

/* A receive that was asked for long before does not hold up a collective, nor the reverse. */
static void beside_collectives(smfar_comm *comm, int rank)
{
    static float numbers[RANKS];
    int32_t data = rank;
    smfar_request *request = rank == 2 ? receive(comm, &data, 4, 0, 1) : NULL;
    numbers[rank] = 1;
    must(smfar_all_reduce(&numbers[rank], &numbers[rank], 1, SMFAR_F32, SMFAR_SUM, comm, NULL));
    must(smfar_comm_wait(comm, smfar_comm_sequence(comm), -1));
    EXPECT(numbers[rank] == RANKS, "the sum is %f", (double)numbers[rank]);
    if (rank == 2) EXPECT_EQ(smfar_request_query(request), SMFAR_PENDING);
    must(smfar_barrier(comm, NULL)); /* nobody sends before rank 2 has looked */
    must(smfar_comm_wait(comm, smfar_comm_sequence(comm), -1));
    if (rank == 0) end(send_to(comm, &data, 4, 2, 1));
    if (rank == 2) end(request);
    EXPECT_EQ(data, rank == 2 ? 0 : rank);
}

static void *move_nothing(void *comm)
{
    static const size_t none[RANKS];
    const void *send[RANKS] = {NULL};
    void *recv[RANKS] = {NULL};
    must(smfar_all_to_all_v(send, none, recv, none, SMFAR_U8, comm, NULL));
    return NULL;
}

/* Rank 0 sends while another thread of it is in a call that returns once all ranks have called,
 * which rank 1 does only when it has the message. */
static void beside_waiting_calls(smfar_comm *comm, int rank)
{
    uint64_t before = smfar_comm_sequence(comm);
    pthread_t thread;
    int32_t data = rank;
    if (rank == 0) {
        REQUIRE(pthread_create(&thread, NULL, move_nothing, comm) == 0, "no thread");
        while (smfar_comm_sequence(comm) == before)
            usleep(100);
        must(smfar_stream_order(comm, smfar_comm_stream(comm), smfar_comm_stream(comm)));
        end(send_to(comm, &data, 4, 1, 9));
        pthread_join(thread, NULL);
        return;
    }
    if (rank == 1) end(receive(comm, &data, 4, 0, 9));
    EXPECT_EQ(data, rank == 1 ? 0 : rank);
    move_nothing(comm);
}

static void exchange_numbers(smfar_comm *comm, int32_t *numbers)
{
    static const size_t counts[RANKS] = {1, 1, 1};
    const void *send[RANKS];
    void *recv[RANKS];
    for (int r = 0; r < RANKS; r++) {
        send[r] = &numbers[r];
        recv[r] = &numbers[RANKS + r];
    }
    must(smfar_all_to_all_v(send, counts, recv, counts, SMFAR_I32, comm, NULL));
}

/* Messages before and after a collective for which hosts wait, and to which rank 1 comes late: more
 * of them than a pair announces at once. */
static void around_messages(smfar_comm *comm, int rank)
{
    enum { COUNT = 40 };
    int32_t data[COUNT], late = rank, numbers[2 * RANKS];
    smfar_request *request[COUNT];
    for (int r = 0; r < RANKS; r++)
        numbers[r] = 10 * rank + r;
    for (int i = 0; rank == 0 && i < COUNT; i++) {
        data[i] = i;
        request[i] = send_to(comm, &data[i], 4, 1, 20);
    }
    smfar_request *first = rank == 2 ? send_to(comm, &late, 4, 1, 21) : NULL;
    if (rank == 1) end(receive(comm, &late, 4, 2, 21));
    exchange_numbers(comm, numbers);
    if (first) end(first);
    must(smfar_comm_wait(comm, smfar_comm_sequence(comm), -1));
    for (int r = 0; r < RANKS; r++)
        EXPECT_EQ(numbers[RANKS + r], 10 * r + rank);
    for (int i = 0; rank == 1 && i < COUNT; i++)
        request[i] = receive(comm, &data[i], 4, 0, 20);
    for (int i = 0; rank < 2 && i < COUNT; i++) {
        end(request[i]);
        EXPECT_EQ(data[i], i);
    }
    if (rank == 1) EXPECT_EQ(late, 2);
}

static void count_ending(void *context) { ++*(_Atomic int *)context; }

static void tell_ending(smfar_comm *comm, int rank)
{
    static _Atomic int ended;
    struct smfar_ending ending = {count_ending, &ended};
    int32_t data = 0;
    if (rank == 0) must(smfar_send(&data, 4, 1, 8, comm, NULL, &ending, NULL));
    if (rank == 1) end(receive(comm, &data, 4, 0, 8));
    for (int i = 0; rank == 0 && i < TIMEOUT_MS && !ended; i++)
        usleep(1000);
    if (rank == 0) EXPECT_EQ(ended, 1);
}

static void work_well(struct ranks_thread *me)
{
    static const size_t sizes[] = {0, 1, 511, 4096, 10001, LARGEST};
    smfar_comm *comm = join(me);
    smfar_request *none = NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        exchange_all(comm, me->rank, sizes[i]);
    if (me->rank < 2) reverse_tags(comm, me->rank);
    if (me->rank < 2) keep_order(comm, me->rank);
    from_any(comm, me->rank);
    beside_collectives(comm, me->rank);
    beside_waiting_calls(comm, me->rank);
    around_messages(comm, me->rank);
    tell_ending(comm, me->rank);
    EXPECT_EQ(smfar_send(&none, 4, RANKS, 0, comm, NULL, NULL, &none), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_send(&none, 4, SMFAR_ANY_RANK, 0, comm, NULL, NULL, &none), SMFAR_ERR_ARGUMENT);
    EXPECT_EQ(smfar_recv(NULL, 4, 0, 0, comm, NULL, NULL, &none), SMFAR_ERR_ARGUMENT);
    must(smfar_barrier(comm, NULL));
    must(smfar_comm_wait(comm, smfar_comm_sequence(comm), -1));
    smfar_comm_destroy(comm);
}

/* ---- what does not ---- */

/* All ranks; not over the communicator, which may have failed. */
static pthread_barrier_t meeting;

enum failing { SIZES, NOBODY, ABORT, LEAVE, DEVICE, DESTROY };

static void expect_end(smfar_request *request, enum smfar_status status, const char *words)
{
    int64_t begin = clock_now_ms();
    EXPECT_EQ(smfar_request_wait(request, -1), status);
    EXPECT_HAS(smfar_last_error(), words);
    EXPECT(clock_now_ms() - begin < TIMEOUT_MS / 2, "it took %lld ms",
           (long long)(clock_now_ms() - begin));
    smfar_request_free(request);
}

/* As after a kernel's illegal access: no event of the device ends any more. */
static void lose_device(void)
{
    int (*plan)(const struct soft_fault *);
    *(void **)&plan = switch_symbol("soft_fault_plan");
    EXPECT(plan(&(struct soft_fault){.call = "cuEventQuery", .first = 1, .result = 700}) >= 0,
           "no fault was planned");
}

static void find_device(void)
{
    void (*clear)(void);
    *(void **)&clear = switch_symbol("soft_faults_clear");
    clear();
}

static void fail_with(enum failing failing, smfar_comm *comm, int rank)
{
    static unsigned char data[RANKS][64];
    smfar_request *request = NULL;
    if (failing == SIZES && rank == 0) request = send_to(comm, data[0], 16, 1, 2);
    if (failing == SIZES && rank == 1) request = receive(comm, data[1], 12, 0, 2);
    if (failing == SIZES && rank < 2)
        expect_end(request, SMFAR_ERR_MISMATCH,
                   "rank 0 sends 16 bytes with tag 2, and rank 1 receives 12");
    if (failing == NOBODY && rank == 0) {
        request = send_to(comm, data[0], 8, 1, 4);
        EXPECT_EQ(smfar_request_wait(request, 1), SMFAR_ERR_TIMEOUT);
        expect_end(request, SMFAR_ERR_TIMEOUT,
                   "rank 0 sends a message of 8 bytes with tag 4 to rank 1");
        EXPECT_EQ(smfar_comm_error(comm), SMFAR_ERR_TIMEOUT);
    }
    if (failing == ABORT && rank == 1) {
        request = receive(comm, data[1], 8, SMFAR_ANY_RANK, 0);
        pthread_barrier_wait(&meeting);
        expect_end(request, SMFAR_ERR_ABORTED, "enough");
        EXPECT_EQ(smfar_recv(data[1], 8, 0, 0, comm, NULL, NULL, &request), SMFAR_ERR_ABORTED);
    }
    if (failing == ABORT && rank != 1) pthread_barrier_wait(&meeting);
    if (failing == ABORT && rank == 2) smfar_comm_abort(comm, "enough");
    if (failing == LEAVE && rank == 0) {
        request = receive(comm, data[0], 8, 1, 0);
        expect_end(request, SMFAR_ERR_PEER, "has left the group");
    }
    if (failing == DEVICE && rank == 0) {
        lose_device();
        must(smfar_send(data[0], 8, 1, 0, comm, smfar_comm_stream(comm), NULL, &request));
        expect_end(request, SMFAR_ERR_DRIVER, "cuEventQuery");
        find_device();
        EXPECT_EQ(smfar_comm_error(comm), SMFAR_ERR_DRIVER);
    }
    if (failing == DESTROY && rank == 2) {
        request = receive(comm, data[2], 8, 2, 1);
        smfar_comm_destroy(comm);
        expect_end(request, SMFAR_ERR_ABORTED, "destroyed");
    }
}

static void work_ill(struct ranks_thread *me)
{
    enum failing failing = *(const enum failing *)me->extra;
    smfar_comm *comm = join(me);
    if (failing == NOBODY) smfar_comm_set_timeout(comm, SHORT_MS);
    fail_with(failing, comm, me->rank);
    if (failing != LEAVE) pthread_barrier_wait(&meeting); /* before that nobody has left */
    if (failing != DESTROY || me->rank != 2) smfar_comm_destroy(comm);
}

int main(void)
{
    pthread_barrier_init(&meeting, NULL, RANKS);
    ranks_run(RANKS, work_well, NULL);
    for (enum failing failing = SIZES; failing <= DESTROY; failing++)
        ranks_run(RANKS, work_ill, &failing);
    switch_expect_no_leaks();
    return unit_end();
}
