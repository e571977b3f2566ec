/* Checked mode: memory as weak as the PTX model allows it to be, for what our kernels use. Stores
 * wait in buffers, loads may see what was there before, two mappings of one memory meet only at
 * fence.proxy.alias or at a kernel's end. docs/switch.md has the model in words. For the
 * interpreter's files alone; every function takes the one lock of checked memory. */
#ifndef SMFAR_SOFT_PTX_CHECKED_H
#define SMFAR_SOFT_PTX_CHECKED_H

#include "ptx_machine.h"

enum { CHECKED_PLAIN, CHECKED_MULTICAST };

/* At most 16 bytes that lie in one 16-byte granule. */
struct checked_access {
    uint64_t place;
    unsigned char *host;
    uint8_t bytes, element, alias;
};

/* An atomic that the caller makes itself, on memory, between before and after. */
struct checked_atom {
    struct checked_access at;
    unsigned char old[8];
};

/* ---- executors (ptx_checked_exec.c) ---- */

/* Loads and stores at checked addresses, one for each lane of `mask`. */
void ptx_checked_load(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask,
                      const uint64_t *address);
void ptx_checked_store(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask,
                       const uint64_t *address);
void ptx_checked_fence(struct ptx_warp *w, const struct ptx_insn *in);
void ptx_checked_fence_alias(struct ptx_warp *w, const struct ptx_insn *in);

/* Lane by lane through the switch: `bytes` at `address`, which `range` holds, from all copies into
 * rows, or from one row to all copies. The caller brackets an instruction with begin and end. */
void ptx_checked_begin(struct ptx_warp *w, const struct ptx_insn *in);
void ptx_checked_end(struct ptx_warp *w, const struct ptx_insn *in);
void ptx_checked_load_copies(struct ptx_warp *w, const struct ptx_insn *in,
                             const struct ptx_range *range, uint64_t address,
                             unsigned char (*rows_out)[16]);
void ptx_checked_store_copies(struct ptx_warp *w, const struct ptx_insn *in,
                              const struct ptx_range *range, uint64_t address, const void *bytes);
/* Prepares one element's atomic at `address`, or in one copy of it; ptx_checked_after ends it. */
void ptx_checked_atom(struct ptx_warp *w, const struct ptx_insn *in, uint64_t address,
                      struct checked_atom *atom_out);
void ptx_checked_red_copy(struct ptx_warp *w, const struct ptx_insn *in,
                          const struct ptx_range *range, uint64_t address, unsigned copy,
                          struct checked_atom *atom_out);

/* ---- memory (ptx_checked.c) ---- */

void ptx_checked_before(struct ptx_block *block, struct checked_atom *atom);
void ptx_checked_after(struct ptx_block *block, const struct checked_atom *atom);

void ptx_checked_lock(void);
void ptx_checked_unlock(void);

/* With the lock held. */
void ptx_checked_read(struct ptx_block *block, const struct checked_access *at, void *bytes_out);
void ptx_checked_write(struct ptx_block *block, const struct checked_access *at, const void *bytes);
void ptx_checked_acquire(struct ptx_block *block, unsigned scope);
void ptx_checked_release(struct ptx_block *block, unsigned scope);
void ptx_checked_bridge(struct ptx_block *block); /* fence.proxy.alias */

/* A launch's begin and end, and a block's begin, in memory's eyes. */
void ptx_checked_open(struct ptx_machine *m);
void ptx_checked_close(struct ptx_machine *m);
void ptx_checked_block(struct ptx_block *block);
/* Lets some buffered stores of the launch's GPU reach memory; called between turns. */
void ptx_checked_drain(struct ptx_machine *m);

/* The step for ptx_checked_last_steps. */
void ptx_checked_note(const struct ptx_warp *w, const struct ptx_insn *in);

#endif
