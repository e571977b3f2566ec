/* Barriers of a block: bar and barrier, sixteen of them, counted in lanes. */
#include "ptx_machine.h"

static void deliver(struct ptx_warp *w, const struct ptx_strand *s,
                    const struct ptx_barrier_state *state)
{
    const struct ptx_insn *in = &w->machine->kernel->code[s->pc];
    uint32_t out[PTX_LANES], yes;
    switch (in->choice) {
    case BARRIER_POPC:
        for (unsigned i = 0; i < PTX_LANES; i++)
            out[i] = state->true_lanes;
        ptx_alu_blend(ptx_at(w, in->d), out, s->mask, 4);
        return;
    case BARRIER_AND:
        yes = state->true_lanes == state->arrived;
        break;
    case BARRIER_OR:
        yes = state->true_lanes != 0;
        break;
    default:
        return;
    }
    ptx_alu_set_predicate(w, in->d, yes ? PTX_ALL_LANES : 0, s->mask);
}

/* Lanes of one warp must come to an aligned barrier at one instruction, and none may stay away: PTX
 * leaves open what a GPU does else. */
static int is_aligned(struct ptx_warp *w, unsigned id)
{
    const struct ptx_strand *first = NULL;
    uint32_t here = 0;
    for (unsigned i = 0; i < w->strands; i++) {
        const struct ptx_strand *s = &w->strand[i];
        if (s->state != STRAND_AT_BARRIER || s->barrier != id) continue;
        if (!first) first = s;
        if (s->pc == first->pc) here |= s->mask;
    }
    if (!first || here == w->alive) return 1;
    const struct ptx_insn *in = &w->machine->kernel->code[first->pc];
    if (!(in->flags & FLAG_ALIGNED)) return 1;
    ptx_machine_fail(w, in, PTX_TRAP, "of a warp's lanes 0x%x only 0x%x came to an aligned barrier",
                     w->alive, here);
    return 0;
}

static void release(struct ptx_block *block, unsigned id)
{
    for (uint32_t n = 0; n < block->warps; n++)
        if (!is_aligned(&block->warp[n], id)) return;
    for (uint32_t n = 0; n < block->warps; n++) {
        struct ptx_warp *w = &block->warp[n];
        for (unsigned i = 0; i < w->strands; i++) {
            struct ptx_strand *s = &w->strand[i];
            if (s->state != STRAND_AT_BARRIER || s->barrier != id) continue;
            deliver(w, s, &block->barrier[id]);
            s->state = STRAND_RUNS;
            s->pc++;
            w->limit = 0;
        }
    }
    block->barrier[id] = (struct ptx_barrier_state){0};
}

static void check(struct ptx_block *block, unsigned id)
{
    const struct ptx_barrier_state *state = &block->barrier[id];
    if (!state->arrived) return;
    uint32_t expected = state->expected ? state->expected : block->alive;
    if (state->arrived >= expected) release(block, id);
}

void ptx_block_recheck(struct ptx_block *block)
{
    for (unsigned id = 0; id < PTX_BARRIERS; id++)
        check(block, id);
}

/* The operand must be the same for all lanes that came together. */
static int uniform(struct ptx_warp *w, const struct ptx_insn *in, struct ptx_ref ref, uint32_t mask,
                   uint32_t *value_out)
{
    const uint32_t *values = ptx_at(w, ref);
    *value_out = values[__builtin_ctz(mask)];
    for (unsigned i = 0; i < PTX_LANES; i++) {
        if (!(mask >> i & 1) || values[i] == *value_out) continue;
        ptx_machine_fail(w, in, PTX_TRAP, "a barrier's number or count differs between lanes");
        return 0;
    }
    return 1;
}

/* a: number; b: thread count or nothing; c: predicate of bar.red */
void ptx_block_barrier(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    struct ptx_block *block = w->block;
    uint32_t id, threads = 0;
    w->progressed = 1;
    if (!uniform(w, in, in->a, mask, &id)) return;
    if (in->b.base != BASE_NONE && !uniform(w, in, in->b, mask, &threads)) return;
    if (id >= PTX_BARRIERS || threads % PTX_LANES) {
        ptx_machine_fail(w, in, PTX_TRAP, "barrier %u of %u threads", id, threads);
        return;
    }
    struct ptx_barrier_state *state = &block->barrier[id];
    state->arrived += (uint32_t)__builtin_popcount(mask);
    /* a last warp of fewer lanes counts as a full one */
    if (in->b.base != BASE_NONE)
        state->expected = threads < block->threads ? threads : block->threads;
    if (in->c.base != BASE_NONE)
        state->true_lanes += (uint32_t)__builtin_popcount(ptx_predicate(w, in->c) & mask);
    if (in->choice != BARRIER_ARRIVE)
        ptx_warp_wait(w, mask, STRAND_AT_BARRIER)->barrier = (uint8_t)id;
    check(block, id);
}
