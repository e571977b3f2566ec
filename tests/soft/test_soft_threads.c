/* Many threads in one process, as ranks that are threads: mappings, binds and streams come and go
 * while other threads' copies run, and all load one module. */
#include <pthread.h>

#include "rig.h"

enum { RANKS = 4, ROUNDS = 40 };

static CUmemGenericAllocationHandle object;
static CUdeviceptr view;
static struct rig_sync *all_ranks;

static volatile int *word(CUdeviceptr ptr) { return (volatile int *)(uintptr_t)ptr; }

/* Memory that this rank alone sees, for the length of a round. */
static void use_private_memory(int rank, int round)
{
    CUmemGenericAllocationHandle memory = rig_memory(rank, MIB2);
    CUdeviceptr ptr = rig_map(memory, MIB2, rank);
    CUstream stream = rig_stream();
    CUevent event;
    int value = 0;
    OK(cu.cuMemRelease(memory));
    OK(cu.cuEventCreate(&event, 0));
    OK(cu.cuMemsetD32Async(ptr, rank << 16 | round, MIB2 / 4, stream));
    OK(cu.cuEventRecord(event, stream));
    OK(cu.cuStreamWaitEvent(NULL, event, 0));
    OK(cu.cuMemcpyDtoHAsync(&value, ptr + MIB2 - 4, 4, NULL));
    OK(cu.cuStreamSynchronize(NULL));
    EXPECT_EQ(value, rank << 16 | round);
    OK(cu.cuEventDestroy(event));
    OK(cu.cuStreamDestroy(stream));
    rig_unmap(ptr, MIB2);
}

/* Each rank binds anew in every round and writes its own word of all copies. */
static void use_the_object(int rank, int round)
{
    CUmemGenericAllocationHandle memory = rig_memory(rank, MIB2);
    CUdeviceptr own = rig_map(memory, MIB2, rank);
    int value = round;
    OK(cu.cuMulticastBindMem(object, 0, memory, 0, MIB2, 0));
    OK(cu.cuMemRelease(memory));
    rig_sync(all_ranks);
    OK(cu.cuMemcpyHtoDAsync(view + 64 * (unsigned)rank, &value, sizeof value, NULL));
    OK(cu.cuStreamSynchronize(NULL));
    rig_sync(all_ranks);
    for (int i = 0; i < RANKS; i++)
        EXPECT_EQ(*word(own + 64 * (unsigned)i), round);
    rig_sync(all_ranks);
    OK(cu.cuMulticastUnbind(object, rank, 0, MIB2));
    rig_unmap(own, MIB2);
}

static void use_a_module(void)
{
    static const char text[] = ".version 8.2\n.target sm_90\n.address_size 64\n"
                               ".visible .entry empty()\n{\n    ret;\n}\n";
    CUmodule module;
    CUfunction empty = rig_function(text, "empty", &module);
    OK(cu.cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cu.cuModuleUnload(module));
}

static void *run_rank(void *argument)
{
    int rank = (int)(intptr_t)argument;
    rig_use(rank);
    OK(cu.cuMulticastAddDevice(object, rank));
    rig_sync(all_ranks);
    if (rank == 0) view = rig_map(object, MIB2, -1);
    rig_sync(all_ranks);
    rig_access(view, MIB2, rank, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    for (int round = 1; round <= ROUNDS; round++) {
        use_private_memory(rank, round);
        use_the_object(rank, round);
        use_a_module();
    }
    rig_sync(all_ranks);
    rig_leave(rank);
    return NULL;
}

int main(void)
{
    pthread_t threads[RANKS];
    rig_open(0);
    all_ranks = rig_sync_create(RANKS);
    object = rig_multicast(RANKS, MIB2);
    for (int i = 0; i < RANKS; i++)
        REQUIRE(pthread_create(&threads[i], NULL, run_rank, (void *)(intptr_t)i) == 0, "no thread");
    for (int i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    rig_unmap(view, MIB2);
    OK(cu.cuMemRelease(object));
    rig_leave(0);
    EXPECT_EQ(rig_leaks(), 0);
    return unit_end();
}
