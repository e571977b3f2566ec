/* One warp: fetches and executes; keeps the strands into which branches split its lanes, merges
 * those that meet, and lets none starve. Not the waiting of lanes for lanes: ptx_sync.c,
 * ptx_block.c. */
#include "ptx_machine.h"

enum {
    NO_STRAND = PTX_LANES,
    /* Backward branches after which a strand goes behind the others: the lanes it may be waiting
     * for can stand at a higher program counter. A turn that only polled counts for many. */
    TURNS_PER_EPOCH = 64,
    TURNS_OF_A_POLL = 16
};

static int mergeable(const struct ptx_strand *s)
{
    return s->state == STRAND_RUNS || s->state == STRAND_AT_SYNC;
}

static void remove_strand(struct ptx_warp *w, unsigned index)
{
    w->strand[index] = w->strand[--w->strands];
}

/* Writes the current strand back to the list. */
static void put_back(struct ptx_warp *w)
{
    if (w->current == NO_STRAND) return;
    struct ptx_strand *s = &w->strand[w->current];
    s->pc = w->pc;
    s->mask = w->mask;
    if (!s->mask) remove_strand(w, w->current);
    w->current = NO_STRAND;
}

/* Lanes that wait for their warp at one instruction are rechecked when others join them. */
static void merge(struct ptx_warp *w)
{
    for (unsigned i = 0; i < w->strands; i++) {
        struct ptx_strand *s = &w->strand[i];
        if (!mergeable(s)) continue;
        for (unsigned j = w->strands; --j > i;) {
            const struct ptx_strand *other = &w->strand[j];
            if (other->pc != s->pc || !mergeable(other)) continue;
            s->mask |= other->mask;
            if (other->turns > s->turns) s->turns = other->turns;
            s->state = STRAND_RUNS;
            remove_strand(w, j);
        }
    }
}

static int precedes(const struct ptx_strand *a, const struct ptx_strand *b)
{
    uint32_t x = a->turns / TURNS_PER_EPOCH, y = b->turns / TURNS_PER_EPOCH;
    return x != y ? x < y : a->pc < b->pc;
}

/* Makes the strand that should run the current one; 0 when none can. */
static int pick(struct ptx_warp *w)
{
    unsigned best = NO_STRAND;
    put_back(w);
    if (w->strands > 1) merge(w);
    for (unsigned i = 0; i < w->strands; i++) {
        if (w->strand[i].state != STRAND_RUNS) continue;
        if (best == NO_STRAND || precedes(&w->strand[i], &w->strand[best])) best = i;
    }
    w->current = best;
    w->mask = 0;
    if (best == NO_STRAND) return 0;
    struct ptx_strand *s = &w->strand[best];
    if (w->strands == 1) s->turns = 0;
    w->pc = s->pc;
    w->mask = s->mask;
    w->limit = UINT32_MAX;
    for (unsigned i = 0; i < w->strands; i++) {
        const struct ptx_strand *other = &w->strand[i];
        if (mergeable(other) && other->pc > s->pc && other->pc < w->limit) w->limit = other->pc;
    }
    return 1;
}

void ptx_warp_start(struct ptx_warp *w, uint32_t lanes)
{
    w->alive = lanes;
    w->strands = 1;
    w->strand[0] = (struct ptx_strand){.mask = lanes};
    w->current = NO_STRAND;
    w->mask = 0;
}

struct ptx_strand *ptx_warp_wait(struct ptx_warp *w, uint32_t mask, enum ptx_state state)
{
    struct ptx_strand *s;
    w->limit = 0;
    if (mask == w->mask) {
        s = &w->strand[w->current];
        w->current = NO_STRAND;
    } else {
        s = &w->strand[w->strands++];
        s->turns = w->strand[w->current].turns;
    }
    w->mask &= ~mask;
    s->mask = mask;
    s->pc = w->pc - 1;
    s->state = (uint8_t)state;
    return s;
}

int ptx_warp_run(struct ptx_warp *w)
{
    const struct ptx_insn *code = w->machine->kernel->code;
    uint64_t instructions = 0;
    w->yield = w->polled = w->progressed = 0;
    if (!pick(w)) return 0;
    while (!w->yield) {
        if (w->pc >= w->limit && !pick(w)) break;
        const struct ptx_insn *in = &code[w->pc++];
        uint32_t mask = w->mask;
        if (in->guard) {
            uint32_t p;
            memcpy(&p, w->base[BASE_REGISTERS] + in->guard - 1, 4);
            mask &= p ^ in->guard_flip;
            if (!mask) continue;
        }
        if (in->counted) instructions += ptx_lanes(mask);
        in->exec(w, in, mask);
    }
    w->machine->counts.instructions += instructions;
    return 1;
}

/* ---- control flow ---- */

void ptx_warp_branch(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint32_t turns = 0;
    if (in->target < w->pc) {
        w->yield = 1;
        turns = w->polled && !w->progressed ? TURNS_OF_A_POLL : 1;
    }
    if (mask == w->mask) {
        w->pc = in->target;
        if (w->strands == 1) return;
        w->strand[w->current].turns += turns;
    } else {
        w->strand[w->strands++] = (struct ptx_strand){
            .pc = in->target, .mask = mask, .turns = w->strand[w->current].turns + turns};
        w->mask &= ~mask;
    }
    w->limit = 0;
}

/* Lanes that wait for the leaving ones must look again. */
void ptx_warp_exit(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    w->progressed = 1;
    w->mask &= ~mask;
    w->alive &= ~mask;
    w->limit = 0;
    w->block->alive -= (uint32_t)__builtin_popcount(mask);
    for (unsigned i = 0; i < w->strands; i++)
        if (w->strand[i].state == STRAND_AT_SYNC) w->strand[i].state = STRAND_RUNS;
    (void)in;
    ptx_sync_recheck(w);
    ptx_block_recheck(w->block);
}

void ptx_warp_trap(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    (void)mask;
    ptx_machine_fail(w, in, PTX_TRAP, "trap");
}

/* Others may run; if nobody can, the launch naps. */
void ptx_warp_nanosleep(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    (void)in, (void)mask;
    w->polled = 1;
    w->yield = 1;
}
