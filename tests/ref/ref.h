/* References: what each kernel must compute, as plain loops that a reader can check by eye. No
 * blocks, no alignment, no barrier: the result of a collective does not depend on how it is split.
 * One file per kernel file, named after it; number.c has the arithmetic of the types. */
#ifndef SMFAR_TESTS_REF_H
#define SMFAR_TESTS_REF_H

#include <stddef.h>
#include <stdint.h>

#include "../../csrc/smfar.h"

struct ref_call {
    enum smfar_op op;
    enum smfar_dtype dtype;
    int ranks;
    size_t count;
    const void *const *inputs; /* one per rank, `count` elements each */
};

/* The sum in rank order, in fp32 for f16 and bf16, rounded once at the end: the peer kernels must
 * give these very bits, the switch must whenever no step of the sum rounds. */
void ref_all_reduce_twoshot_peer(const struct ref_call *call, void *bits_out);

/* Floats only: what an exact sum gives, and how far from it the switch's may be, whose order is
 * unknown. */
void ref_all_reduce_twoshot_mc(const struct ref_call *call, double *exact_out, double *bound_out);

/* ---- number.c ---- */

size_t ref_bytes(enum smfar_dtype dtype);
int ref_is_float(enum smfar_dtype dtype);

/* Significant bits, the hidden one included: 24 for f32. Floats only. */
int ref_precision(enum smfar_dtype dtype);

/* Half the smallest positive number: the most that rounding adds near zero. Floats only. */
double ref_smallest_half(enum smfar_dtype dtype);

/* Element `index` of f16, bf16 or f32 data; exact. */
float ref_load(enum smfar_dtype dtype, const void *data, size_t index);

/* Rounds to the nearest, ties to even. */
void ref_store(enum smfar_dtype dtype, void *data, size_t index, float value);

/* Converts every f16 and bf16 there and back; returns how many patterns changed. */
int ref_number_faults(void);

#endif
