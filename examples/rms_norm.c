/* A sum over ranks and an RMSNorm of its rows in one launch, checked against the CPU.
 *
 *   NTHREADS=4 ./rms_norm           ranks are threads
 *   mpirun -n 4 ./rms_norm_mpi      built with MPI=1: ranks are processes
 *
 * On GPUs where there is libcuda.so.1 and SOFT is not set, else on the software switch. Whether
 * these GPUs fit together, and why the switch is used or not, is said before anything runs. */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef MPI
#include <mpi.h>
#endif

#include "smfar.h"

enum { TOKENS = 4096, HIDDEN = 1024, COUNT = TOKENS * HIDDEN, MOST = SMFAR_MAX_RANKS };
#define EPS 1e-6

struct rank {
    struct smfar_id id;
    int rank, ranks, failed;
};

static float value(int rank, size_t i)
{
    return (float)((i * 7919 + (size_t)rank * 31) % 1000) / 500 - 1;
}
static float weight_of(size_t column) { return 0.5f + (float)(column % 8) / 8; }

/* Between host and device; on the software switch both are the host's. */
static int copy(smfar_comm *comm, void *cuda, void *to, const void *from, size_t bytes)
{
    if (!cuda) return memcpy(to, from, bytes) == NULL;
    int (*retain)(void **, int), (*use)(void *), (*move)(uint64_t, uint64_t, size_t);
    *(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    *(void **)&use = dlsym(cuda, "cuCtxSetCurrent");
    *(void **)&move = dlsym(cuda, "cuMemcpy");
    void *context; /* the communicator's */
    return retain(&context, smfar_comm_device(comm)) || use(context) ||
           move((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes);
}

/* Of the result on this rank: 1e-5 absolute or 1e-4 relative; NaN is neither. */
static int check(const float *got, int ranks)
{
    for (size_t row = 0; row < TOKENS; row++) {
        double sum[HIDDEN], squares = 0;
        for (size_t j = 0; j < HIDDEN; j++) {
            sum[j] = 0;
            for (int r = 0; r < ranks; r++)
                sum[j] += value(r, row * HIDDEN + j);
            squares += sum[j] * sum[j];
        }
        for (size_t j = 0; j < HIDDEN; j++) {
            double want = sum[j] / sqrt(squares / HIDDEN + EPS) * weight_of(j);
            double error = fabs(got[row * HIDDEN + j] - want);
            if (error <= 1e-5 || error <= 1e-4 * fabs(want)) continue;
            fprintf(stderr, "row %zu, column %zu: %g, not %g\n", row, j,
                    (double)got[row * HIDDEN + j], want);
            return 1;
        }
    }
    return 0;
}

static int norm(smfar_comm *comm, void *cuda, float *host, int rank, int ranks)
{
    void *x, *weight;
    if (smfar_window_alloc(comm, COUNT * sizeof(float), &x)) return 1;
    if (smfar_window_alloc(comm, HIDDEN * sizeof(float), &weight)) return 1;
    for (size_t i = 0; i < HIDDEN; i++)
        host[i] = weight_of(i);
    if (copy(comm, cuda, weight, host, HIDDEN * sizeof(float))) return 1;
    for (size_t i = 0; i < COUNT; i++)
        host[i] = value(rank, i);
    if (copy(comm, cuda, x, host, COUNT * sizeof(float))) return 1;
    struct smfar_rms_norm rows = {.rows = TOKENS,
                                  .hidden = HIDDEN,
                                  .dtype = SMFAR_F32,
                                  .weight_dtype = SMFAR_F32,
                                  .weight = weight,
                                  .eps = EPS};
    if (smfar_all_reduce_rms_norm(x, x, &rows, comm, NULL)) return 1;
    if (smfar_comm_wait(comm, smfar_comm_sequence(comm), -1)) return 1;
    if (copy(comm, cuda, host, x, COUNT * sizeof(float)) || check(host, ranks)) return 1;
    printf("rank %d of %d: %d x %d is right\n", rank, ranks, TOKENS, HIDDEN);
    return 0;
}

static void *run(void *argument)
{
    struct rank *me = argument;
    void *cuda = getenv("SOFT") ? NULL : dlopen("libcuda.so.1", RTLD_NOW);
    struct smfar_config config = {
        .driver = cuda ? SMFAR_DRIVER_CUDA : SMFAR_DRIVER_SOFT, .device = -1, .timeout_ms = 20000};
    char fitness[4096] = "";
    smfar_comm *comm = NULL;
    float *host = malloc(COUNT * sizeof(float));
    me->failed = !host || smfar_comm_init_rank(&me->id, me->rank, me->ranks, &config, &comm) ||
                 smfar_comm_describe(comm, fitness, sizeof fitness);
    if (me->rank == 0) fputs(fitness, stdout);
    me->failed = me->failed || norm(comm, cuda, host, me->rank, me->ranks);
    if (me->failed) fprintf(stderr, "rank %d failed; %s\n", me->rank, smfar_last_error());
    smfar_comm_destroy(comm);
    free(host);
    return NULL;
}

int main(int argc, char **argv)
{
    struct rank rank[MOST];
    struct smfar_id id;
    int ranks = atoi(getenv("NTHREADS") ? getenv("NTHREADS") : "4"), failed = 0;
    if (ranks < 1 || ranks > MOST || smfar_unique_id(&id)) return 1;
#ifdef MPI
    rank[0] = (struct rank){.id = id};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &rank->ranks);
    MPI_Bcast(&rank->id, sizeof rank->id, MPI_BYTE, 0, MPI_COMM_WORLD);
    run(rank);
    MPI_Finalize();
    return rank->failed;
#endif
    (void)argc, (void)argv;
    pthread_t thread[MOST];
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
