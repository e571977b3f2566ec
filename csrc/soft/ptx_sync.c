/* Lanes of a warp that wait for each other and exchange values: shfl, vote, match, redux, elect,
 * bar.warp. Each names its members; it happens once every living member has come. */
#include "ptx_machine.h"

/* The lanes of `mask` whose members have all come; the others are left waiting. */
static uint32_t gathered(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask,
                         const uint32_t *member)
{
    uint32_t ready = 0;
    for (unsigned i = 0; i < PTX_LANES; i++) {
        if (!(mask >> i & 1)) continue;
        if (!(member[i] >> i & 1)) {
            ptx_machine_fail(w, in, PTX_TRAP, "lane %u is not in its member mask 0x%x", i,
                             member[i]);
            return 0;
        }
        if (!(member[i] & w->alive & ~mask)) ready |= 1u << i;
    }
    if (ready != mask) ptx_warp_wait(w, mask & ~ready, STRAND_AT_SYNC);
    return ready;
}

static void store(struct ptx_warp *w, struct ptx_ref ref, const uint32_t *values, uint32_t mask)
{
    if (ref.base != BASE_NONE) ptx_alu_blend(ptx_at(w, ref), values, mask, 4);
}

/* ---- shfl ---- */

/* The lane that lane `i` reads; *valid_out: it is in range. */
static unsigned shuffle_source(unsigned mode, unsigned i, uint32_t b, uint32_t c, int *valid_out)
{
    unsigned segment = c >> 8 & 0x1f, clamp = c & 0x1f;
    unsigned low = i & segment, high = low | (clamp & ~segment & 0x1f);
    unsigned amount = b & 0x1f;
    int j;
    switch (mode) {
    case SHUFFLE_UP:
        j = (int)i - (int)amount;
        *valid_out = j >= (int)high;
        break;
    case SHUFFLE_DOWN:
        j = (int)(i + amount);
        *valid_out = j <= (int)high;
        break;
    case SHUFFLE_BFLY:
        j = (int)(i ^ amount);
        *valid_out = j <= (int)high;
        break;
    default:
        j = (int)(low | (amount & ~segment));
        *valid_out = j <= (int)high;
        break;
    }
    return *valid_out ? (unsigned)j : i;
}

/* v[0] holds the member mask */
void ptx_sync_shfl(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    const uint32_t *a = ptx_at(w, in->a), *b = ptx_at(w, in->b), *c = ptx_at(w, in->c);
    uint32_t out[PTX_LANES], valid_lanes = 0;
    uint32_t ready = gathered(w, in, mask, ptx_at(w, in->v[0]));
    for (unsigned i = 0; i < PTX_LANES; i++) {
        int valid;
        out[i] = a[shuffle_source(in->choice, i, b[i], c[i], &valid)];
        valid_lanes |= (uint32_t)valid << i;
    }
    store(w, in->d, out, ready);
    ptx_alu_set_predicate(w, in->d2, valid_lanes, ready);
}

/* ---- vote, match, redux, elect ---- */

static uint32_t vote(unsigned mode, uint32_t bits, uint32_t group)
{
    switch (mode) {
    case VOTE_ALL:
        return bits == group ? ~0u : 0;
    case VOTE_ANY:
        return bits ? ~0u : 0;
    case VOTE_UNI:
        return bits == 0 || bits == group ? ~0u : 0;
    default:
        return bits;
    }
}

void ptx_sync_vote(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    const uint32_t *member = ptx_at(w, in->v[0]);
    uint32_t out[PTX_LANES] = {0}, bits = 0, p = ptx_predicate(w, in->a);
    uint32_t ready = gathered(w, in, mask, member);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        uint32_t group = member[i] & ready;
        out[i] = vote(in->choice, p & group, group);
        bits |= out[i] & 1u << i;
    }
    if (in->choice == VOTE_BALLOT)
        store(w, in->d, out, ready);
    else
        ptx_alu_set_predicate(w, in->d, bits, ready);
}

static uint32_t same_value(const void *a, unsigned size, unsigned lane, uint32_t group)
{
    uint32_t same = 0;
    const char *at = a;
    for (unsigned j = 0; j < PTX_LANES; j++)
        if (group >> j & 1 && !memcmp(at + j * size, at + lane * size, size)) same |= 1u << j;
    return same;
}

void ptx_sync_match(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    const uint32_t *member = ptx_at(w, in->v[0]);
    uint32_t out[PTX_LANES] = {0}, bits = 0;
    uint32_t ready = gathered(w, in, mask, member);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        uint32_t group = member[i] & ready;
        out[i] = same_value(ptx_at(w, in->a), in->a.size, i, group);
        if (in->choice == MATCH_ALL && out[i] != group) out[i] = 0;
        bits |= (uint32_t)(out[i] != 0) << i;
    }
    store(w, in->d, out, ready);
    ptx_alu_set_predicate(w, in->d2, bits, ready);
}

void ptx_sync_redux(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    const uint32_t *member = ptx_at(w, in->v[0]), *a = ptx_at(w, in->a);
    uint32_t out[PTX_LANES] = {0};
    uint32_t ready = gathered(w, in, mask, member);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        uint32_t group = member[i] & ready;
        if (!(ready >> i & 1)) continue;
        unsigned first = (unsigned)__builtin_ctz(group);
        uint64_t sum = a[first];
        for (unsigned j = first + 1; j < PTX_LANES; j++)
            if (group >> j & 1) sum = in->fn.reduce->one(sum, a[j]);
        out[i] = (uint32_t)sum;
    }
    store(w, in->d, out, ready);
}

void ptx_sync_elect(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    const uint32_t *member = ptx_at(w, in->v[0]);
    uint32_t out[PTX_LANES] = {0}, bits = 0;
    uint32_t ready = gathered(w, in, mask, member);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        uint32_t group = member[i] & ready;
        if (!(ready >> i & 1)) continue;
        out[i] = (uint32_t)__builtin_ctz(group);
        bits |= (uint32_t)(out[i] == i) << i;
    }
    store(w, in->d, out, ready);
    ptx_alu_set_predicate(w, in->d2, bits, ready);
}

void ptx_sync_activemask(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint32_t out[PTX_LANES];
    for (unsigned i = 0; i < PTX_LANES; i++)
        out[i] = mask;
    store(w, in->d, out, mask);
}

/* ---- bar.warp.sync: pairs lanes across program counters ---- */

/* Lets the lanes that wait with this member mask go on, once all that live have come. */
static void release_members(struct ptx_warp *w, uint32_t member)
{
    uint32_t waiting = 0;
    for (unsigned i = 0; i < w->strands; i++)
        if (w->strand[i].state == STRAND_AT_BAR_WARP && w->strand[i].member == member)
            waiting |= w->strand[i].mask;
    if (member & w->alive & ~waiting) return;
    for (unsigned i = 0; i < w->strands; i++) {
        struct ptx_strand *s = &w->strand[i];
        if (s->state != STRAND_AT_BAR_WARP || s->member != member) continue;
        s->state = STRAND_RUNS;
        s->pc++;
    }
}

void ptx_sync_recheck(struct ptx_warp *w)
{
    for (unsigned i = 0; i < w->strands; i++)
        if (w->strand[i].state == STRAND_AT_BAR_WARP) release_members(w, w->strand[i].member);
}

void ptx_sync_bar_warp(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    const uint32_t *member = ptx_at(w, in->v[0]);
    while (mask) {
        unsigned first = (unsigned)__builtin_ctz(mask);
        uint32_t group = 0;
        for (unsigned i = first; i < PTX_LANES; i++)
            if (mask >> i & 1 && member[i] == member[first]) group |= 1u << i;
        if (group & ~member[first]) {
            ptx_machine_fail(w, in, PTX_TRAP, "lanes 0x%x are not all in their member mask 0x%x",
                             group, member[first]);
            return;
        }
        ptx_warp_wait(w, group, STRAND_AT_BAR_WARP)->member = member[first];
        release_members(w, member[first]);
        mask &= ~group;
    }
}
