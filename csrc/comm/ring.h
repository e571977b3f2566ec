/* The rings in the host page: what each rank has enqueued last, compared before anything is
 * launched. So a mismatch is found where no kernel looks, and while a rank's stream is still late.
 *
 * A ring holds the last PAGE_RING entries. A rank further ahead than that cannot be compared call
 * by call; but every entry's chain covers all calls before it, so that the difference shows once
 * the other has come nearer. Makes no driver call. */
#ifndef SMFAR_COMM_RING_H
#define SMFAR_COMM_RING_H

#include "comm.h"

/* The chain of entry number `sequence` of this rank: its `hash` and all those before. */
uint32_t ring_chain(const struct smfar_comm *comm, uint64_t sequence, uint32_t hash);

/* Compares my entry `sequence` with every rank that has announced it, and vice versa: of two ranks
 * that announce it at once at least one sees the other's. Returns 0, or the number of the first
 * collective that differs (`sequence` itself when that one is no longer in the rings). */
uint64_t ring_difference(const struct smfar_comm *comm, uint64_t sequence);

/* "all_reduce(sum, f32, 1024 elements, …)" */
void ring_describe_entry(const struct page_entry *entry, char *text, size_t size);

/* 1 when the rank has announced number `sequence`, and all that I have before: where it wants what
 * others copy to it (page_entry.place). */
int ring_place(const struct smfar_comm *comm, int rank, uint64_t sequence, uint64_t *place_out);

/* 1 when the rank has announced number `sequence`. */
int ring_has_reached(const struct smfar_comm *comm, int rank, uint64_t sequence);

/* The same: what a rank has enqueued under this number. */
void ring_describe(const struct smfar_comm *comm, int rank, uint64_t sequence, char *text,
                   size_t size);

/* The same of every rank: "rank 0, rank 2 called barrier(…); rank 1 called all_reduce(…)". */
void ring_describe_all(const struct smfar_comm *comm, uint64_t sequence, char *text, size_t size);

#endif
