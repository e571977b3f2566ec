/* The running machine: a launch, its resident blocks, their warps, and the strands (lanes of a
 * warp that share a program counter). For the interpreter's files alone. */
#ifndef SMFAR_SOFT_PTX_MACHINE_H
#define SMFAR_SOFT_PTX_MACHINE_H

#include <string.h>

#include "ptx_code.h"

enum ptx_state {
    STRAND_RUNS,
    STRAND_AT_SYNC,    /* waits for lanes of its warp, at the instruction itself */
    STRAND_AT_BARRIER, /* waits for lanes of its block, at the instruction itself */
    STRAND_AT_BAR_WARP /* waits at bar.warp.sync, which pairs across program counters */
};

struct ptx_strand {
    uint32_t pc, mask;
    uint32_t turns;  /* backward branches taken while other strands waited */
    uint32_t member; /* AT_BAR_WARP: the member mask */
    uint8_t state, barrier;
};

enum { PTX_RANGE_CACHE = 4 };

struct ptx_warp {
    unsigned char *base[3]; /* registers, pool, nothing: indexed by ptx_ref.base */
    struct ptx_block *block;
    struct ptx_machine *machine;
    uint32_t pc, mask;  /* of the current strand */
    uint32_t limit;     /* reaching it, another strand may have to run or to be merged */
    uint32_t alive;     /* lanes that have not exited */
    uint32_t index;     /* %warpid */
    uint8_t yield;      /* end of this turn */
    uint8_t polled;     /* this turn looked at memory that others write … */
    uint8_t progressed; /* … or changed something */
    unsigned strands, current;
    struct ptx_strand strand[PTX_LANES];
    const struct ptx_range *range[PTX_RANGE_CACHE];
    unsigned range_next;
    unsigned char *local; /* lane by lane */
    uint64_t scratch[PTX_LANES];
};

struct ptx_barrier_state {
    uint32_t arrived, expected; /* lanes; expected 0: every lane that lives */
    uint32_t true_lanes;
};

struct ptx_block {
    struct ptx_machine *machine;
    uint32_t ctaid[3];
    uint32_t threads, alive, warps, smid;
    int active;
    /* checked mode: who it is, how far it is bound to see (ptx_checked.c), sweeps it sits out */
    uint64_t id, view_gpu, view_sys, alias_gpu, alias_sys;
    unsigned stall;
    struct ptx_barrier_state barrier[PTX_BARRIERS];
    unsigned char *shared;
    unsigned char *memory; /* what the block's warps, registers, local and shared lie in */
    size_t memory_bytes;
    struct ptx_warp *warp;
};

struct ptx_machine {
    const struct ptx_launch *launch;
    const struct ptx_kernel *kernel;
    struct ptx_counts counts;
    enum ptx_outcome outcome;
    char *error;
    size_t error_size;
    uint64_t random;
    uint64_t grid_id;
    uint64_t next_block, blocks, ended;
    unsigned slots;
    struct ptx_block *slot;
    uint64_t started; /* checked mode: when, in its own time */
    unsigned haste,
        still; /* checked mode: buffers drain every `haste` turns; sweeps nobody ran in */
};

static inline void *ptx_at(const struct ptx_warp *w, struct ptx_ref ref)
{
    return w->base[ref.base] + ref.at;
}

static inline uint32_t ptx_predicate(const struct ptx_warp *w, struct ptx_ref ref)
{
    uint32_t bits = *(const uint32_t *)ptx_at(w, ref);
    return ref.negate ? ~bits : bits;
}

static inline unsigned ptx_lanes(uint32_t mask)
{
    return mask == PTX_ALL_LANES ? PTX_LANES : (unsigned)__builtin_popcount(mask);
}

/* d[lane] = s[lane] for the lanes of `mask`; elements of `size` bytes. */
void ptx_alu_blend(void *d, const void *s, uint32_t mask, unsigned size);

/* Bits `bits` of the lanes of `mask` to a predicate, which may be nothing. */
void ptx_alu_set_predicate(struct ptx_warp *w, struct ptx_ref ref, uint32_t bits, uint32_t mask);

/* Ends the launch with this outcome; the first one stays. */
void ptx_machine_fail(struct ptx_warp *w, const struct ptx_insn *in, enum ptx_outcome outcome,
                      const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The range of an address, through the warp's cache. */
const struct ptx_range *ptx_memory_range(struct ptx_warp *w, uint64_t address);

/* Every lane's address, as the instruction's state space counts it. */
void ptx_memory_addresses(struct ptx_warp *w, const struct ptx_insn *in, uint64_t *address_out);

/* Do all 32 lanes take part, each `step` bytes after the one before? Then the first's address. */
int ptx_memory_run(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask, uint64_t step,
                   uint64_t *first_out);

/* Gathers lane `lane` of the vector operand into `bytes`, or scatters it from there. */
void ptx_memory_gather(const struct ptx_warp *w, const struct ptx_insn *in, unsigned lane,
                       void *bytes);
void ptx_memory_scatter(struct ptx_warp *w, const struct ptx_insn *in, unsigned lane,
                        const void *bytes);
/* The same for 32 full lanes that lie one after the other. */
void ptx_memory_gather_all(const struct ptx_warp *w, const struct ptx_insn *in, void *bytes);
void ptx_memory_scatter_all(struct ptx_warp *w, const struct ptx_insn *in, const void *bytes);

/* Checks one access to plain memory and returns 1, or fails the launch and returns 0. */
int ptx_memory_check(struct ptx_warp *w, const struct ptx_insn *in, uint64_t address,
                     uint64_t bytes, unsigned align, int write);

/* Checked host addresses of the lanes of `mask`, for reading and writing; 0 after a failure. */
int ptx_memory_resolve(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask,
                       uint64_t *address_out);

/* One element stored or loaded with at least relaxed order; size 1, 2, 4 or 8. */
uint64_t ptx_memory_peek(const void *p, unsigned size, int order);
void ptx_memory_poke(void *p, uint64_t value, unsigned size, int order);
/* old = *p; *p = op(old, value); returns old. Sets w->progressed when the value changed. */
uint64_t ptx_atom_apply(struct ptx_warp *w, void *p, unsigned size,
                        uint64_t (*op)(uint64_t, uint64_t), uint64_t value);

/* Runs a warp until it blocks, ends, or has taken one turn of a loop. Returns 0 when no strand of
 * it can run. */
int ptx_warp_run(struct ptx_warp *w);
void ptx_warp_start(struct ptx_warp *w, uint32_t lanes);
/* Lanes `mask` of the current strand wait at the instruction just fetched, in `state`. */
struct ptx_strand *ptx_warp_wait(struct ptx_warp *w, uint32_t mask, enum ptx_state state);

/* Rechecks bar.warp.sync after lanes left. */
void ptx_sync_recheck(struct ptx_warp *w);

/* Rechecks the block's barriers after lanes left. */
void ptx_block_recheck(struct ptx_block *block);

uint64_t ptx_machine_random(struct ptx_machine *m);
uint64_t ptx_machine_clock(const struct ptx_machine *m);

#endif
