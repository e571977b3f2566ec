/* The cases: one kernel with one value of every parameter. A case follows from the kernel, the
 * levels of the parameters and a seed, and from nothing else. */
#ifndef SMFAR_TESTS_CASE_H
#define SMFAR_TESTS_CASE_H

#include <stdio.h>

#include "../../csrc/kernels/kernel.h"

/* Where the tensors lie. */
enum place {
    IN_WINDOW,       /* in place, at one offset on every rank */
    UNEQUAL,         /* in place, at an offset of each rank's own */
    STAGED,          /* from one plain buffer to another */
    STAGED_IN_PLACE, /* from a plain buffer and back into it */
    COPY_IN,         /* from a plain buffer into the window */
    COPY_OUT,        /* from the window into a plain buffer */
    PLACES
};

/* Has the kernel to bring the tensor into the window, or out of it? */
int place_is_staged(enum place place); /* both */
int place_has_input(enum place place);
int place_has_output(enum place place);

/* Of pulls: who reads, and from whom. */
enum pulled { OF_ALL, OF_ROOT, BY_ROOT, PULLS };

enum axis { RANKS, COUNT, OFFSET, PLACE, BLOCKS, THREADS, REAL, AXES };
extern const int axis_levels[AXES];

struct check_case {
    enum kernel_id id;
    uint64_t seed;
    int ranks;
    size_t count;
    int offset; /* elements past a 128-byte boundary */
    enum place place;
    int blocks, threads;
    int real;   /* random reals, whose sums round (2: without NaN and the like); else integers */
    int flags;  /* words 0 and 1 instead, which look like the flags of packets */
    int uneven; /* grids differ from rank to rank */
    int rooted; /* of reduce-scatters: a reduce to one rank */
    int parted; /* of pulls: a part for each rank instead of one input for all */
    enum pulled pulled;
    double scale; /* of averages of floats */
};

void case_make(enum kernel_id id, const unsigned char level[AXES], uint64_t seed,
               struct check_case *case_out);
/* 1 for kernels that read and write tensors where they lie, and use slots or boxes of their own. */
int case_has_own_slots(enum kernel_id id);

/* 1 for those whose slots are boxes for packets: RIG_BOXES. */
int case_is_push(enum kernel_id id);

/* 1 for those that reduce in rank order, whose results have no other bits than the reference's. */
int case_keeps_order(enum kernel_id id);

/* 1 for those whose results depend on rounding, and on the order of ranks, in a way of their own.
 */
int case_rounds(enum kernel_id id);

/* Of a box for the packets of so many bytes of data. */
size_t case_box_bytes(size_t bytes);

/* Blocks on this rank. */
int case_blocks(const struct check_case *c, int rank);

/* 1 for kernels without a barrier: whoever enqueues them has seen to it that the others are ready.
 */
int case_meets_nobody(enum kernel_id id);

/* 1 for those of them that copy or reduce. */
int case_is_alone(enum kernel_id id);

/* 1 for kernels that read a part of their own of every rank's input. */
int case_is_scatter(enum kernel_id id);

/* 1 for the kernel whose count is bytes, and whose argument is a struct move_kargs. */
int case_is_pull(enum kernel_id id);

/* Who reads what, of a pull. */
void case_draw_pull(uint64_t *state, struct check_case *c);

/* Does the rank then read what `of` has? */
int case_pulls(const struct check_case *c, int rank, int of);

/* By multiples of what chunks that lie apart are shifted: in half of the cases they lie alike
 * modulo 16 all the same, and then there are vectors. */
size_t case_shift(const struct check_case *c, size_t element);

/* 1 for kernels without any data: barriers, and the one that marks a collective done. */
int case_is_dataless(enum kernel_id id);

void case_print(const struct check_case *c, FILE *to);

/* Fills rank's input of `count` elements: different for every rank and seed. */
void case_input(const struct check_case *c, int rank, size_t count, void *data_out);

/* Rows of levels in which every pair of values of any two axes occurs; the caller frees. */
size_t sample_pairs(uint64_t seed, unsigned char (**rows_out)[AXES]);

/* A small generator; every use has a state of its own. */
static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static inline unsigned random_below(uint64_t *state, unsigned limit)
{
    return (unsigned)((random_next(state) >> 32) * limit >> 32);
}

#endif
