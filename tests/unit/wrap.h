/* Sets the numbers that count up for ever, so that tests see them run past their ends. Both must be
 * called for every rank while all stand still. */
#ifndef SMFAR_TESTS_WRAP_H
#define SMFAR_TESTS_WRAP_H

#include "../../csrc/comm/comm.h"

/* As if the kernels' barriers had come to phase `epoch`. */
static inline void wrap_set_epoch(smfar_comm *comm, uint32_t epoch)
{
    struct signals *signals = (struct signals *)(uintptr_t)comm->window->peer[comm->rank];
    signals->epoch[0] = epoch;
    for (int parity = 0; parity < 2; parity++)
        for (int r = 0; r < comm->ranks; r++)
            signals->arrive[parity][r] = (uint64_t)epoch << 32;
}

/* As if so many collectives had gone before. */
static inline void wrap_set_sequence(smfar_comm *comm, uint64_t sequence)
{
    atomic_store(&comm->sequence, sequence);
    atomic_store(&comm->page.host->words[comm->rank].done, sequence);
}

#endif
