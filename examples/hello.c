/* One all-reduce in C, without Python: on the software switch, whose memory is the host's.
 *
 *   make hello              builds it and runs four threads, then four processes
 *   make hello MPI=1        builds it with mpicc and runs it under mpirun
 *   NTHREADS=4 ./hello      ranks are threads
 *   NPROCS=4 ./hello        ranks are processes: this program, started again */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef MPI
#include <mpi.h>
#endif

#include "smfar.h"

enum { COUNT = 1 << 16, MOST = SMFAR_MAX_RANKS };

struct rank {
    struct smfar_id id;
    int rank, ranks, failed;
};

static int sum(smfar_comm *comm, int rank, int ranks)
{
    void *memory;
    if (smfar_window_alloc(comm, COUNT * sizeof(float), &memory)) return 1;
    float *data = memory;
    for (int i = 0; i < COUNT; i++)
        data[i] = (float)(rank + 1);
    if (smfar_all_reduce(data, data, COUNT, SMFAR_F32, SMFAR_SUM, comm, NULL)) return 1;
    if (smfar_comm_wait(comm, smfar_comm_sequence(comm), -1)) return 1;
    for (int i = 0; i < COUNT; i++)
        if (data[i] != (float)(ranks * (ranks + 1) / 2)) return 1;
    printf("rank %d of %d: every element is %g\n", rank, ranks, (double)data[0]);
    smfar_window_free(comm, data);
    return 0;
}

static void *run(void *argument)
{
    struct rank *me = argument;
    struct smfar_config config = {
        .driver = SMFAR_DRIVER_SOFT, .device = -1, .timeout_ms = 20000, .window_bytes = 4 << 20};
    smfar_comm *comm = NULL;
    me->failed = smfar_comm_init_rank(&me->id, me->rank, me->ranks, &config, &comm) ||
                 sum(comm, me->rank, me->ranks);
    if (me->failed) fprintf(stderr, "rank %d: %s\n", me->rank, smfar_last_error());
    smfar_comm_destroy(comm);
    return NULL;
}

static int run_threads(struct smfar_id id, int ranks)
{
    struct rank rank[MOST];
    pthread_t thread[MOST];
    int failed = 0;
    for (int r = 0; r < ranks; r++) {
        rank[r] = (struct rank){id, r, ranks, 1};
        pthread_create(&thread[r], NULL, run, &rank[r]);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(thread[r], NULL);
        failed |= rank[r].failed;
    }
    return failed;
}

static int run_processes(struct smfar_id id, int ranks, const char *program)
{
    char mine[12], all[12];
    int failed = 0, status;
    snprintf(all, sizeof all, "%d", ranks);
    for (int r = 0; r < ranks; r++) {
        snprintf(mine, sizeof mine, "%d", r);
        if (fork() == 0) _exit(execl("/proc/self/exe", program, mine, all, id.text, NULL) != 0);
    }
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}

int main(int argc, char **argv)
{
    struct rank me = {.ranks = 1};
    const char *threads = getenv("NTHREADS"), *processes = getenv("NPROCS");
    int ranks = atoi(threads ? threads : processes ? processes : "4");
    if (ranks < 1 || ranks > MOST || smfar_unique_id(&me.id)) return 1;
#ifdef MPI
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &me.ranks);
    MPI_Bcast(&me.id, sizeof me.id, MPI_BYTE, 0, MPI_COMM_WORLD);
    run(&me);
    MPI_Finalize();
    return me.failed;
#endif
    if (argc < 4) return processes ? run_processes(me.id, ranks, *argv) : run_threads(me.id, ranks);
    me.rank = atoi(argv[1]);
    me.ranks = atoi(argv[2]);
    snprintf(me.id.text, sizeof me.id.text, "%s", argv[3]);
    run(&me);
    return me.failed;
}
