/* Checked mode's loads, stores, atomics and fences: what an instruction asks of ptx_checked.c. */
#include "ptx_checked.h"

enum { YIELD_EVERY = 8, TEAR_EVERY = 4 };

static int releases(unsigned semantics)
{
    return semantics == SEM_RELEASE || semantics == SEM_ACQ_REL;
}

static int acquires(unsigned semantics)
{
    return semantics == SEM_ACQUIRE || semantics == SEM_ACQ_REL;
}

/* What a release has to make visible is what came before it. */
void ptx_checked_begin(struct ptx_warp *w, const struct ptx_insn *in)
{
    ptx_checked_lock();
    ptx_checked_note(w, in);
    if (releases(in->semantics)) ptx_checked_release(w->block, in->scope);
}

/* Now and then other warps go first. */
void ptx_checked_end(struct ptx_warp *w, const struct ptx_insn *in)
{
    if (acquires(in->semantics)) ptx_checked_acquire(w->block, in->scope);
    ptx_checked_unlock();
    if (ptx_machine_random(w->machine) >> 32 < UINT32_MAX / YIELD_EVERY) w->yield = 1;
}

/* A block's own memory, reached by a generic address, is nobody else's. */
static int is_own(const struct ptx_block *block, uint64_t address)
{
    return address - (uintptr_t)block->memory < block->memory_bytes;
}

static struct checked_access access_at(struct ptx_warp *w, const struct ptx_insn *in,
                                       uint64_t address)
{
    const struct ptx_range *range = ptx_memory_range(w, address);
    unsigned element = ptx_types[in->type].size;
    return (struct checked_access){.place = range->place + (address - range->begin),
                                   .host = (unsigned char *)(uintptr_t)address,
                                   .bytes = (uint8_t)(in->vector * element),
                                   .element = (uint8_t)element,
                                   .alias = CHECKED_PLAIN};
}

/* A vector is as many accesses as it has elements, in no order; mostly they happen at once. */
static unsigned draw_pieces(struct ptx_warp *w, const struct ptx_insn *in)
{
    if (in->vector == 1 || ptx_machine_random(w->machine) >> 32 >= UINT32_MAX / TEAR_EVERY)
        return 1;
    return in->vector;
}

static struct checked_access piece_of(const struct checked_access *whole, unsigned pieces,
                                      unsigned piece)
{
    struct checked_access at = *whole;
    at.bytes = (uint8_t)(whole->bytes / pieces);
    at.place += (uint64_t)piece * at.bytes;
    at.host += (size_t)piece * at.bytes;
    return at;
}

void ptx_checked_load(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask,
                      const uint64_t *address)
{
    unsigned char bytes[16];
    ptx_checked_begin(w, in);
    unsigned pieces = draw_pieces(w, in);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        if (!(mask >> i & 1)) continue;
        struct checked_access whole = access_at(w, in, address[i]);
        int own = is_own(w->block, address[i]);
        if (own) memcpy(bytes, whole.host, whole.bytes);
        for (unsigned piece = 0; piece < pieces && !own; piece++) {
            struct checked_access at = piece_of(&whole, pieces, piece);
            ptx_checked_read(w->block, &at, bytes + piece * at.bytes);
        }
        ptx_memory_scatter(w, in, i, bytes);
    }
    ptx_checked_end(w, in);
}

void ptx_checked_store(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask,
                       const uint64_t *address)
{
    unsigned char bytes[16];
    ptx_checked_begin(w, in);
    unsigned pieces = draw_pieces(w, in);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        if (!(mask >> i & 1)) continue;
        struct checked_access whole = access_at(w, in, address[i]);
        int own = is_own(w->block, address[i]);
        ptx_memory_gather(w, in, i, bytes);
        if (own) memcpy(whole.host, bytes, whole.bytes);
        for (unsigned piece = 0; piece < pieces && !own; piece++) {
            struct checked_access at = piece_of(&whole, pieces, piece);
            ptx_checked_write(w->block, &at, bytes + piece * at.bytes);
        }
    }
    ptx_checked_end(w, in);
}

void ptx_checked_atom(struct ptx_warp *w, const struct ptx_insn *in, uint64_t address,
                      struct checked_atom *atom_out)
{
    atom_out->at = access_at(w, in, address);
    atom_out->at.bytes = atom_out->at.element;
    ptx_checked_before(w->block, atom_out);
}

/* ---- the switch ---- */

static struct checked_access access_copy(const struct ptx_insn *in, const struct ptx_range *range,
                                         uint64_t address, unsigned copy)
{
    unsigned element = ptx_types[in->type].size;
    return (struct checked_access){.place = range->copy_place[copy] + (address - range->begin),
                                   .host = range->copy[copy] + (address - range->begin),
                                   .bytes = (uint8_t)(in->vector * element),
                                   .element = (uint8_t)element,
                                   .alias = CHECKED_MULTICAST};
}

void ptx_checked_load_copies(struct ptx_warp *w, const struct ptx_insn *in,
                             const struct ptx_range *range, uint64_t address,
                             unsigned char (*rows_out)[16])
{
    for (unsigned k = 0; k < range->copies; k++) {
        struct checked_access at = access_copy(in, range, address, k);
        ptx_checked_read(w->block, &at, rows_out[k]);
    }
}

void ptx_checked_store_copies(struct ptx_warp *w, const struct ptx_insn *in,
                              const struct ptx_range *range, uint64_t address, const void *bytes)
{
    for (unsigned k = 0; k < range->copies; k++) {
        struct checked_access at = access_copy(in, range, address, k);
        ptx_checked_write(w->block, &at, bytes);
    }
}

void ptx_checked_red_copy(struct ptx_warp *w, const struct ptx_insn *in,
                          const struct ptx_range *range, uint64_t address, unsigned copy,
                          struct checked_atom *atom_out)
{
    atom_out->at = access_copy(in, range, address, copy);
    atom_out->at.bytes = atom_out->at.element;
    ptx_checked_before(w->block, atom_out);
}

/* ---- fences ---- */

void ptx_checked_fence(struct ptx_warp *w, const struct ptx_insn *in)
{
    ptx_checked_lock();
    ptx_checked_note(w, in);
    ptx_checked_release(w->block, in->scope);
    ptx_checked_acquire(w->block, in->scope);
    ptx_checked_unlock();
}

void ptx_checked_fence_alias(struct ptx_warp *w, const struct ptx_insn *in)
{
    ptx_checked_lock();
    ptx_checked_note(w, in);
    ptx_checked_bridge(w->block);
    ptx_checked_unlock();
}
