/* Checks stage_peer, which copies inside one GPU: every byte arrives, and none beside them. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { GUARD = 512, SHIFTS = 17, ROOM = 2 * GUARD + SHIFTS, MOST = 300000 };

static const size_t counts[] = {0, 1, 15, 16, 17, 4095, 4096, 4097, 65536, MOST};

/* Shifts of source and target from a 16-byte boundary: vectors need both to be 0 or 16. */
static const size_t shifts[][2] = {{0, 0}, {16, 0}, {1, 0}, {0, 5}, {3, 3}};

static void fill(unsigned char *bytes, size_t count, uint64_t *state)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)random_next(state);
}

static void launch(struct rig *rig, int rank, CUdeviceptr from, CUdeviceptr to, size_t count,
                   uint64_t *state)
{
    struct kargs args;
    rig_arguments(rig, rank, 0, &args);
    args.src = from;
    args.dst = to;
    args.count = count;
    int blocks = 1 + (int)random_below(state, 4), threads = 32 << random_below(state, 5);
    must(rig_launch(rig, rank, KERNEL_stage_peer, blocks, threads, &args), "launch");
    must(rig_synchronize(rig, rank), "synchronize");
}

static int check_one(struct rig *rig, int rank, size_t count, const size_t shift[2],
                     unsigned char *buffers, uint64_t *state)
{
    unsigned char *from = buffers, *want = buffers + MOST + ROOM, *got = want + MOST + ROOM;
    const struct rig_rank *me = &rig->rank[rank];
    size_t at = GUARD + shift[1], all = count + ROOM;
    fill(from, count, state);
    fill(want, all, state);
    must(rig_write(rig, rank, me->src + shift[0], from, count), "write");
    must(rig_write(rig, rank, me->dst, want, all), "write");
    launch(rig, rank, me->src + shift[0], me->dst + at, count, state);
    must(rig_read(rig, rank, got, me->dst, all), "read");
    memcpy(want + at, from, count);
    for (size_t i = 0; i < all; i++) {
        if (got[i] == want[i]) continue;
        printf("WRONG smfar_stage_peer rank=%d count=%zu shifts=%zu,%zu: byte %zd of the target\n",
               rank, count, shift[0], shift[1], (ptrdiff_t)i - (ptrdiff_t)at);
        return 1;
    }
    return 0;
}

int check_stage(struct rig *rig, uint64_t seed)
{
    unsigned char *buffers = malloc(3 * (MOST + ROOM));
    int faults = 0;
    if (!buffers) abort();
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t s = 0; s < sizeof shifts / sizeof *shifts; s++) {
            int rank = (int)random_below(&seed, (unsigned)rig->ranks);
            faults += check_one(rig, rank, counts[c], shifts[s], buffers, &seed);
        }
    free(buffers);
    return faults;
}
