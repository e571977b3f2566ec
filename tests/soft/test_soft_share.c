/* Sharing between processes: exported handles through SCM_RIGHTS, multicast objects whose binds
 * come from several processes and in pieces, and a rank that is killed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../csrc/soft/soft_multicast.h"
#include "rig.h"

enum { RANKS = 3, PIECES = 2 };

static int sockets[RANKS][2]; /* from rank 0, [0], to each other, [1] */
static struct rig_sync *all_ranks, *survivors;

static int export_fd(CUmemGenericAllocationHandle handle)
{
    int fd = -1;
    OK(cu.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    EXPECT(fcntl(fd, F_GETFD) & FD_CLOEXEC, "the exported descriptor outlives an exec");
    return fd;
}

static CUmemGenericAllocationHandle import_fd(int fd)
{
    CUmemGenericAllocationHandle handle = 0;
    OK(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    return handle;
}

static volatile int *word(CUdeviceptr ptr) { return (volatile int *)(uintptr_t)ptr; }

static int owner_of_memory(int unused)
{
    (void)unused;
    rig_open(0);
    CUmemGenericAllocationHandle memory = rig_memory(0, MIB2);
    CUdeviceptr ptr = rig_map(memory, MIB2, 0);
    *word(ptr) = 17;
    int fd = export_fd(memory);
    rig_send_fd(sockets[1][0], fd);
    close(fd);
    OK(cu.cuMemRelease(memory));
    rig_sync(all_ranks);
    EXPECT_EQ(*word(ptr), 18);
    rig_unmap(ptr, MIB2);
    rig_leave(0);
    EXPECT_EQ(rig_leaks(), 0);
    return unit_failures > 0;
}

static int importer_of_memory(int unused)
{
    (void)unused;
    rig_open(1);
    CUmemGenericAllocationHandle memory = import_fd(rig_receive_fd(sockets[1][1]));
    CUdeviceptr ptr = rig_map(memory, MIB2, 1);
    int device;
    OK(cu.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr));
    EXPECT_EQ(device, 0);
    EXPECT_EQ(*word(ptr), 17);
    GIVES(CUDA_ERROR_INVALID_VALUE, cu.cuMemsetD8Async(ptr, 0, 4, NULL)); /* a peer's memory */
    *word(ptr) = 18;
    rig_sync(all_ranks);
    OK(cu.cuMemRelease(memory));
    rig_unmap(ptr, MIB2);
    rig_leave(1);
    EXPECT_EQ(rig_leaks(), 0);
    return unit_failures > 0;
}

static int imports_only_its_own(int unused)
{
    CUmemGenericAllocationHandle handle;
    int strangers[] = {-1, 1, memfd_create("stranger", 0),
                       memfd_create("sealed", MFD_ALLOW_SEALING)};
    (void)unused;
    rig_open(0);
    EXPECT_EQ(ftruncate(strangers[3], MIB2 + 4096), 0);
    EXPECT_EQ(fcntl(strangers[3], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    for (int i = 0; i < 4; i++)
        GIVES(CUDA_ERROR_INVALID_VALUE,
              cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)strangers[i],
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    return unit_failures > 0;
}

/* The object of all ranks: rank 0 makes it, the others import it. */
static CUmemGenericAllocationHandle join_object(int rank)
{
    CUmemGenericAllocationHandle object;
    if (rank > 0)
        object = import_fd(rig_receive_fd(sockets[rank][1]));
    else {
        object = rig_multicast(RANKS, PIECES * MIB2);
        int fd = export_fd(object);
        for (int i = 1; i < RANKS; i++)
            rig_send_fd(sockets[i][0], fd);
        close(fd);
    }
    OK(cu.cuMulticastAddDevice(object, rank));
    return object;
}

/* Every rank in turn writes through the switch, and all look at their own memory. */
static void broadcast_in_turn(int rank, CUdeviceptr own, CUdeviceptr multicast)
{
    for (int turn = 0; turn < RANKS; turn++) {
        int value = 1000 + turn;
        if (turn == rank) {
            OK(cu.cuMemcpyHtoDAsync(multicast + 4 * turn, &value, sizeof value, NULL));
            OK(cu.cuCtxSynchronize());
        }
        rig_sync(all_ranks);
        EXPECT_EQ(word(own)[turn], value);
    }
}

static int multicast_rank(int rank)
{
    rig_open(rank);
    CUmemGenericAllocationHandle object = join_object(rank), memory[PIECES];
    CUdeviceptr own[PIECES], view = rig_map(object, PIECES * MIB2, rank);
    int value = 5;
    for (int piece = 0; piece < PIECES; piece++) {
        GIVES(CUDA_ERROR_INVALID_VALUE,
              cu.cuMemcpyHtoDAsync(view + piece * MIB2, &value, sizeof value, NULL));
        memory[piece] = rig_memory(rank, MIB2);
        own[piece] = rig_map(memory[piece], MIB2, rank);
        rig_sync(all_ranks); /* nobody has bound this piece before everybody has tried it */
        OK(cu.cuMulticastBindMem(object, piece * MIB2, memory[piece], 0, MIB2, 0));
        rig_sync(all_ranks);
        broadcast_in_turn(rank, own[piece], view + piece * MIB2);
    }
    rig_sync(all_ranks);
    rig_unmap(view, PIECES * MIB2);
    for (int piece = 0; piece < PIECES; piece++) {
        OK(cu.cuMulticastUnbind(object, rank, piece * MIB2, MIB2));
        rig_unmap(own[piece], MIB2);
        OK(cu.cuMemRelease(memory[piece]));
    }
    OK(cu.cuMemRelease(object));
    rig_leave(rank);
    EXPECT_EQ(rig_leaks(), 0);
    return unit_failures > 0;
}

/* Rank 2 is killed after it has bound, and while it holds the object's lock. The others go on, and
 * what it had bound can be bound by another in its place. */
static int rank_with_a_dead_peer(int rank)
{
    rig_open(rank);
    CUmemGenericAllocationHandle object = join_object(rank), memory = rig_memory(rank, MIB2);
    OK(cu.cuMulticastBindMem(object, 0, memory, 0, MIB2, 0));
    CUdeviceptr own = rig_map(memory, MIB2, rank), view = rig_map(object, MIB2, rank);
    rig_sync(all_ranks);
    if (rank == 2) {
        EXPECT_EQ(shared_lock(allocation_get(object)->multicast->shared), 0);
        raise(SIGKILL);
    }
    int value = 6;
    if (rank == 0) {
        CUmemGenericAllocationHandle substitute = rig_memory(2, MIB2);
        CUdeviceptr other = rig_map(substitute, MIB2, 0);
        while (cu.cuMulticastBindMem(object, 0, substitute, 0, MIB2, 0) != CUDA_SUCCESS)
            usleep(1000); /* until the kill has happened and the test has seen it */
        OK(cu.cuMemcpyHtoDAsync(view, &value, sizeof value, NULL));
        OK(cu.cuCtxSynchronize());
        EXPECT_EQ(*word(other), 6);
    }
    rig_sync(survivors);
    EXPECT_EQ(*word(own), 6);
    return unit_failures > 0;
}

static int bind_without_the_others(int unused)
{
    (void)unused;
    setenv("SMFAR_SOFT_BLOCK_MS", "100", 1);
    rig_open(0);
    CUmemGenericAllocationHandle object = rig_multicast(2, MIB2), memory = rig_memory(0, MIB2);
    CUdeviceptr ptr;
    OK(cu.cuMulticastAddDevice(object, 0));
    GIVES(CUDA_ERROR_SYSTEM_NOT_READY, cu.cuMulticastBindMem(object, 0, memory, 0, MIB2, 0));
    OK(cu.cuMemAddressReserve(&ptr, MIB2, 0, 0, 0));
    GIVES(CUDA_ERROR_SYSTEM_NOT_READY, cu.cuMemMap(ptr, MIB2, 0, object, 0));
    OK(cu.cuMulticastAddDevice(object, 1));
    OK(cu.cuMulticastBindMem(object, 0, memory, 0, MIB2, 0));
    return unit_failures > 0;
}

static void run_ranks(int (*rank)(int argument), int ranks, int killed)
{
    int pid[RANKS];
    all_ranks = rig_sync_create(ranks);
    survivors = rig_sync_create(ranks - 1);
    for (int i = 0; i < ranks; i++)
        pid[i] = rig_fork(rank, i);
    for (int i = ranks - 1; i >= 0; i--)
        EXPECT_EQ(rig_join(pid[i]), i == killed ? -SIGKILL : 0);
}

static void test_memory_between_processes(void)
{
    all_ranks = rig_sync_create(2);
    int owner = rig_fork(owner_of_memory, 0), importer = rig_fork(importer_of_memory, 0);
    EXPECT_EQ(rig_join(owner), 0);
    EXPECT_EQ(rig_join(importer), 0);
}

int main(void)
{
    rig_resolve();
    for (int i = 0; i < RANKS; i++)
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[i]) == 0, "no sockets");
    test_memory_between_processes();
    run_ranks(multicast_rank, RANKS, -1);
    /* emulated processes die and are found dead in other ways than the kernel's */
    if (getenv("SMFAR_TEST_EMULATED")) return unit_end();
    run_ranks(rank_with_a_dead_peer, RANKS, 2);
    EXPECT_EQ(rig_join(rig_fork(imports_only_its_own, 0)), 0);
    EXPECT_EQ(rig_join(rig_fork(bind_without_the_others, 0)), 0);
    return unit_end();
}
