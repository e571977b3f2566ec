/* Moves that are more than a copy: packing and unpacking of vectors, special registers, address
 * conversions between state spaces. */
#include "ptx_machine.h"

/* mov.b64 d, {a, b} and its like: the parts of lane i lie side by side in lane i of d. */
void ptx_move_pack(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    unsigned part = in->d.size / in->vector;
    unsigned char *out = (unsigned char *)w->scratch;
    for (unsigned e = 0; e < in->vector; e++) {
        const unsigned char *from = ptx_at(w, in->v[e]);
        for (unsigned i = 0; i < PTX_LANES; i++)
            memcpy(out + i * in->d.size + e * part, from + i * part, part);
    }
    ptx_alu_blend(ptx_at(w, in->d), out, mask, in->d.size);
}

void ptx_move_unpack(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    unsigned part = in->a.size / in->vector;
    unsigned char copy[PTX_LANES * 8], out[PTX_LANES * 8];
    memcpy(copy, ptx_at(w, in->a), (size_t)PTX_LANES * in->a.size);
    for (unsigned e = 0; e < in->vector; e++) {
        if (in->v[e].base == BASE_NONE) continue;
        for (unsigned i = 0; i < PTX_LANES; i++)
            memcpy(out + i * part, copy + i * in->a.size + e * part, part);
        ptx_alu_blend(ptx_at(w, in->v[e]), out, mask, part);
    }
}

/* ---- special registers ---- */

static uint64_t thread_index(const struct ptx_warp *w, unsigned lane, unsigned axis)
{
    const unsigned *block = w->machine->launch->block;
    uint32_t linear = w->index * PTX_LANES + lane;
    if (axis == 0) return linear % block[0];
    if (axis == 1) return linear / block[0] % block[1];
    return linear / block[0] / block[1];
}

static uint64_t lane_mask(unsigned which, unsigned lane)
{
    uint64_t eq = (uint64_t)1 << lane;
    switch (which) {
    case SPECIAL_lanemask_eq:
        return eq;
    case SPECIAL_lanemask_le:
        return 2 * eq - 1;
    case SPECIAL_lanemask_lt:
        return eq - 1;
    case SPECIAL_lanemask_ge:
        return ~(eq - 1);
    default:
        return ~(2 * eq - 1);
    }
}

/* Those that are the same for every lane of a warp. */
static uint64_t uniform_special(const struct ptx_warp *w, unsigned which)
{
    const struct ptx_launch *l = w->machine->launch;
    switch (which) {
    case SPECIAL_warpid:
        return w->index;
    case SPECIAL_nwarpid:
        return l->threads_per_multiprocessor / PTX_LANES;
    case SPECIAL_clock:
    case SPECIAL_clock64:
    case SPECIAL_globaltimer:
    case SPECIAL_globaltimer_lo:
        return ptx_machine_clock(w->machine);
    case SPECIAL_clock_hi:
    case SPECIAL_globaltimer_hi:
        return ptx_machine_clock(w->machine) >> 32;
    case SPECIAL_smid:
        return w->block->smid;
    case SPECIAL_nsmid:
        return l->multiprocessors;
    case SPECIAL_gridid:
        return w->machine->grid_id;
    case SPECIAL_dynamic_smem_size:
        return l->shared_bytes;
    default:
        return l->shared_bytes + w->machine->kernel->info.shared_bytes;
    }
}

static uint64_t special(const struct ptx_warp *w, unsigned which, unsigned lane)
{
    const struct ptx_launch *l = w->machine->launch;
    if (which <= SPECIAL_tid_z) return thread_index(w, lane, which - SPECIAL_tid_x);
    if (which <= SPECIAL_ntid_z) return l->block[which - SPECIAL_ntid_x];
    if (which <= SPECIAL_ctaid_z) return w->block->ctaid[which - SPECIAL_ctaid_x];
    if (which <= SPECIAL_nctaid_z) return l->grid[which - SPECIAL_nctaid_x];
    if (which == SPECIAL_laneid) return lane;
    return lane_mask(which, lane);
}

void ptx_move_special(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    int varies = in->choice <= SPECIAL_laneid ||
                 (in->choice >= SPECIAL_lanemask_eq && in->choice <= SPECIAL_lanemask_gt);
    uint64_t uniform = varies ? 0 : uniform_special(w, in->choice);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        uint64_t value = varies ? special(w, in->choice, i) : uniform;
        if (in->d.size == 8)
            w->scratch[i] = value;
        else
            ((uint32_t *)w->scratch)[i] = (uint32_t)value;
    }
    ptx_alu_blend(ptx_at(w, in->d), w->scratch, mask, in->d.size);
}

/* ---- state spaces: a generic address is a host address ---- */

static uint64_t space_base(const struct ptx_warp *w, unsigned space, unsigned lane)
{
    switch (space) {
    case SPACE_SHARED:
        return (uintptr_t)w->block->shared;
    case SPACE_LOCAL:
        return (uintptr_t)w->local + lane * w->machine->kernel->info.local_bytes;
    case SPACE_PARAM:
        return (uintptr_t)w->machine->launch->params;
    default:
        return 0;
    }
}

/* choice: 1 for cvta.to */
void ptx_move_cvta(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    const uint64_t *a = ptx_at(w, in->a);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        uint64_t base = space_base(w, in->space, i);
        w->scratch[i] = in->choice ? a[i] - base : a[i] + base;
    }
    ptx_alu_blend(ptx_at(w, in->d), w->scratch, mask, 8);
}

static int lies_in(const struct ptx_warp *w, unsigned space, unsigned lane, uint64_t address)
{
    const struct ptx_machine *m = w->machine;
    uint64_t size = space == SPACE_SHARED  ? m->kernel->info.shared_bytes + m->launch->shared_bytes
                    : space == SPACE_LOCAL ? m->kernel->info.local_bytes
                    : space == SPACE_PARAM ? m->kernel->info.param_bytes
                                           : 0;
    return address - space_base(w, space, lane) < size;
}

void ptx_move_isspacep(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    const uint64_t *a = ptx_at(w, in->a);
    uint32_t bits = 0;
    for (unsigned i = 0; i < PTX_LANES; i++) {
        int yes = lies_in(w, in->space, i, a[i]);
        if (in->space == SPACE_GLOBAL)
            yes = !lies_in(w, SPACE_SHARED, i, a[i]) && !lies_in(w, SPACE_LOCAL, i, a[i]) &&
                  !lies_in(w, SPACE_PARAM, i, a[i]);
        bits |= (uint32_t)yes << i;
    }
    ptx_alu_set_predicate(w, in->d, bits, mask);
}
