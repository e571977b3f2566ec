/* Numbers shared by the C core and the PTX kernels: the kernel's arguments, the signals at the
 * start of every window, and the host page of a group.
 *
 * The first part is plain macros, for the preprocessor that PTX goes through. The second part, for
 * C, declares the same as structures and asserts that the two agree. */
#ifndef SMFAR_KERNELS_KARGS_H
#define SMFAR_KERNELS_KARGS_H

#define KARGS_MAX_RANKS 16

/* struct kargs: the one argument of every kernel */
#define KARGS_WINDOW 0      /* u64: base of my window, my own mapping */
#define KARGS_MULTICAST 8   /* u64: base of the multicast mapping; unused by *_peer kernels */
#define KARGS_PAGE 16       /* u64: the group's host page, device address */
#define KARGS_SRC 24        /* u64: input to copy into the window first, or 0 */
#define KARGS_DST 32        /* u64: output to copy out of the window last, or 0 */
#define KARGS_OFFSET 40     /* u64: where the chunk lies in my window, bytes from its base */
#define KARGS_COUNT 48      /* u64: elements in the chunk */
#define KARGS_TIMEOUT_NS 56 /* u64: deadline of each wait, from its start */
#define KARGS_SEQUENCE 64   /* u64: the collective's number, for the error record */
#define KARGS_RANK 72       /* u32 */
#define KARGS_RANKS 76      /* u32 */
#define KARGS_HASH 80       /* u32: what must be equal on every rank */
#define KARGS_SIGNALS 84    /* u32: this channel's signals, bytes from the window's base */
#define KARGS_SCALE 88      /* f64: what avg multiplies sums of floats by */
#define KARGS_DONE 96 /* u32: DONE_*: whether the collective ends here, and how that is told */
#define KARGS_STRIDE                                                                               \
    100              /* u32: from one slot to the next, of a one-shot or of split inputs, bytes */
#define KARGS_AT 104 /* u64: where in the chunk a split launch begins, bytes */
#define KARGS_OWNER 112    /* u32: in a graph, the collective's number in SIGNALS_OWNER; else 0 */
#define KARGS_FREE 116     /* u32: what SIGNALS_OWNER must hold when this launch begins */
#define KARGS_PART 120     /* u64: from one rank's part to the next in my window, bytes; 0: one */
#define KARGS_SRC_PART 128 /* u64: the same at src */
#define KARGS_PEER 136     /* u64[KARGS_MAX_RANKS]: base of every rank's window, mine included */
#define KARGS_BYTES 264

/* KARGS_DONE */
#define DONE_NOT 0
#define DONE_CALLED 1   /* the host is told: its number is written to PAGE_DONE */
#define DONE_REPLAYED 2 /* the next collective of a graph may have the channel */

/* struct norm_kargs: the argument of the rms_norm kernels. It begins with struct kargs, whose chunk
 * is of whole rows; this rank sums and normalises its own of them. The residual lies as the chunk
 * does, but of it only my own rows need be there. A group is 32 threads times a power of two;
 * several make a block, at most 15 unless each is one warp. */
#define NORM_WEIGHT KARGS_BYTES + 0       /* u64: what multiplies each column, or 0 */
#define NORM_RESIDUAL KARGS_BYTES + 8     /* u64: what is added to the sums, or 0 */
#define NORM_SPREAD KARGS_BYTES + 16      /* u64: where the sums go in every window, or 0 */
#define NORM_SUMS_DST KARGS_BYTES + 24    /* u64: output to copy these out to last, or 0 */
#define NORM_HIDDEN KARGS_BYTES + 32      /* u32: elements of a row */
#define NORM_FIRST KARGS_BYTES + 36       /* u32: my first row's number in the chunk */
#define NORM_ROWS KARGS_BYTES + 40        /* u32: how many are mine */
#define NORM_GROUP KARGS_BYTES + 44       /* u32: threads to a row */
#define NORM_KEPT KARGS_BYTES + 48        /* u32: not 0: my own sums go back to the residual */
#define NORM_WEIGHT_TYPE KARGS_BYTES + 52 /* u32: one of NORM_WEIGHT_* */
#define NORM_EPS KARGS_BYTES + 56         /* f32 */
#define NORM_BYTES 328

/* struct move_kargs: the argument of pull_peer. It begins with struct kargs, whose count is bytes.
 */
#define MOVE_TO KARGS_BYTES + 0 /* u64[KARGS_MAX_RANKS]: where each rank's data go here, or 0 */
#define MOVE_BYTES 392

/* NORM_WEIGHT_TYPE */
#define NORM_WEIGHT_NONE 0
#define NORM_WEIGHT_F16 1
#define NORM_WEIGHT_BF16 2
#define NORM_WEIGHT_F32 3
#define NORM_WEIGHT_F64 4

/* struct signals: in device memory, one per channel */
#define SIGNALS_ARRIVE 0      /* u64[2][ranks]: epoch << 32 | hash, written by each rank */
#define SIGNALS_OFFSET 256    /* u64[2][ranks]: where each rank's chunk lies */
#define SIGNALS_EPOCH 512     /* u32: phases passed; written by my kernels alone */
#define SIGNALS_COUNT_IN 640  /* u32: my blocks that have copied in; resets itself */
#define SIGNALS_COUNT_OUT 768 /* u32: my blocks that are done; resets itself */
#define SIGNALS_FAILED                                                                             \
    896                        /* u32, in the first channel's alone: not 0 once a kernel of any    \
                                * rank has failed: ends every wait, and later kernels do nothing;  \
                                * written by every rank */
#define SIGNALS_COUNT_END 1024 /* u32: my blocks that have copied out; resets itself */
#define SIGNALS_TURN 1152      /* u32: one-shots that have ended; written by my kernels alone */
#define SIGNALS_OWNER                                                                              \
    1280 /* u32: the collective of a graph that is running, or 0; written by my kernels alone */
#define SIGNALS_BYTES 1408
#define SIGNALS_LINE 128 /* bytes from one parity's line to the other's */

/* struct host_page: host memory shared by every rank of a group */
#define PAGE_ABORT 0   /* u32: not 0 ends every wait */
#define PAGE_ERROR 512 /* struct error_record[KARGS_MAX_RANKS] */
#define PAGE_APART                                                                                 \
    1536 /* u64[KARGS_MAX_RANKS]: each rank's last collective whose chunks did not lie             \
          * at one offset on all ranks, and so went over peers */
#define PAGE_DONE 1664 /* u64, PAGE_WORDS apart: each rank's last collective that has ended */
#define PAGE_RELEASED                                                                              \
    1688 /* u64, PAGE_WORDS apart: the first collective that each rank's kernels                   \
          * have left undone, or 0 */
#define PAGE_PLACE                                                                                 \
    1752 /* u64, PAGE_WORDS apart: where each rank's chunk lies in its window, bytes               \
          * from its base; written by its stream before it arrives there */
#define PAGE_WORDS 128
#define ERROR_CODE 0      /* u32: 0, or one of ERROR_*; written last */
#define ERROR_PEER 4      /* u32: the rank that was missing or different */
#define ERROR_EPOCH 8     /* u32: the phase waited for */
#define ERROR_MINE 12     /* u32: my hash */
#define ERROR_THEIRS 16   /* u32: the other's hash */
#define ERROR_SEQUENCE 24 /* u64: my collective's number */
#define ERROR_BYTES 64

/* ERROR_CODE */
#define ERROR_TIMEOUT 1
#define ERROR_MISMATCH 2
#define ERROR_ABORTED 3 /* in no record: whoever set the abort word has said why */
#define ERROR_OVERLAP 4 /* another collective of a graph is running */

#ifndef __ASSEMBLER__
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

struct kargs {
    uint64_t window, multicast, page;
    uint64_t src, dst, offset, count;
    uint64_t timeout_ns, sequence;
    uint32_t rank, ranks, hash, signals;
    double scale;
    uint32_t done, stride;
    uint64_t at;
    uint32_t owner, free;
    uint64_t part, src_part;
    uint64_t peer[KARGS_MAX_RANKS];
};

struct norm_kargs {
    struct kargs common;
    uint64_t weight, residual, spread, sums_dst;
    uint32_t hidden, first, rows, group, kept, weight_type;
    float eps;
    uint32_t unused;
};

struct move_kargs {
    struct kargs common;
    uint64_t to[KARGS_MAX_RANKS];
};

struct signals {
    uint64_t arrive[2][KARGS_MAX_RANKS];
    uint64_t offset[2][KARGS_MAX_RANKS];
    uint32_t epoch[32], count_in[32], count_out[32], failed[32]; /* a 128-byte line each */
    uint32_t count_end[32], turn[32], owner[32];
};

struct error_record {
    uint32_t code, peer, epoch, mine, theirs, unused;
    uint64_t sequence;
    uint8_t pad[32];
};

#define SAME(type, field, number)                                                                  \
    static_assert(offsetof(struct type, field) == (number), #type "." #field " is not " #number)
SAME(kargs, window, KARGS_WINDOW);
SAME(kargs, multicast, KARGS_MULTICAST);
SAME(kargs, page, KARGS_PAGE);
SAME(kargs, src, KARGS_SRC);
SAME(kargs, dst, KARGS_DST);
SAME(kargs, offset, KARGS_OFFSET);
SAME(kargs, count, KARGS_COUNT);
SAME(kargs, timeout_ns, KARGS_TIMEOUT_NS);
SAME(kargs, sequence, KARGS_SEQUENCE);
SAME(kargs, rank, KARGS_RANK);
SAME(kargs, ranks, KARGS_RANKS);
SAME(kargs, hash, KARGS_HASH);
SAME(kargs, signals, KARGS_SIGNALS);
SAME(kargs, scale, KARGS_SCALE);
SAME(kargs, done, KARGS_DONE);
SAME(kargs, stride, KARGS_STRIDE);
SAME(kargs, at, KARGS_AT);
SAME(kargs, owner, KARGS_OWNER);
SAME(kargs, free, KARGS_FREE);
SAME(kargs, part, KARGS_PART);
SAME(kargs, src_part, KARGS_SRC_PART);
SAME(kargs, peer, KARGS_PEER);
static_assert(sizeof(struct kargs) == KARGS_BYTES, "struct kargs");
SAME(norm_kargs, weight, NORM_WEIGHT);
SAME(norm_kargs, residual, NORM_RESIDUAL);
SAME(norm_kargs, kept, NORM_KEPT);
SAME(norm_kargs, spread, NORM_SPREAD);
SAME(norm_kargs, sums_dst, NORM_SUMS_DST);
SAME(norm_kargs, hidden, NORM_HIDDEN);
SAME(norm_kargs, first, NORM_FIRST);
SAME(norm_kargs, rows, NORM_ROWS);
SAME(norm_kargs, group, NORM_GROUP);
SAME(norm_kargs, weight_type, NORM_WEIGHT_TYPE);
SAME(norm_kargs, eps, NORM_EPS);
static_assert(sizeof(struct norm_kargs) == NORM_BYTES, "struct norm_kargs");
SAME(move_kargs, to, MOVE_TO);
static_assert(sizeof(struct move_kargs) == MOVE_BYTES, "struct move_kargs");
SAME(signals, arrive, SIGNALS_ARRIVE);
SAME(signals, offset, SIGNALS_OFFSET);
SAME(signals, epoch, SIGNALS_EPOCH);
SAME(signals, count_in, SIGNALS_COUNT_IN);
SAME(signals, count_out, SIGNALS_COUNT_OUT);
SAME(signals, failed, SIGNALS_FAILED);
SAME(signals, count_end, SIGNALS_COUNT_END);
SAME(signals, turn, SIGNALS_TURN);
SAME(signals, owner, SIGNALS_OWNER);
static_assert(sizeof(struct signals) == SIGNALS_BYTES, "struct signals");
static_assert(sizeof(uint64_t[KARGS_MAX_RANKS]) == SIGNALS_LINE, "one line per parity");
SAME(error_record, code, ERROR_CODE);
SAME(error_record, peer, ERROR_PEER);
SAME(error_record, epoch, ERROR_EPOCH);
SAME(error_record, mine, ERROR_MINE);
SAME(error_record, theirs, ERROR_THEIRS);
SAME(error_record, sequence, ERROR_SEQUENCE);
static_assert(sizeof(struct error_record) == ERROR_BYTES, "struct error_record");
#undef SAME
#endif
#endif
