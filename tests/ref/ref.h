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
    double scale;              /* what averages of floats multiply the sum by */
};

/* The result in rank order, in fp32 for floats of 8 and 16 bits, rounded once at the end: the peer
 * kernels must give these very bits (or any NaN for NaN), the switch must whenever no step of a sum
 * rounds.
 */
void ref_all_reduce_twoshot_peer(const struct ref_call *call, void *bits_out);

/* Sums of floats only: what an exact one gives, and how far from it the switch's may be, whose
 * order is unknown. */
void ref_all_reduce_twoshot_mc(const struct ref_call *call, double *exact_out, double *bound_out);

/* `rows` of `hidden` elements, as torch.nn.functional.rms_norm sees them after an all-reduce. */
struct ref_norm {
    enum smfar_dtype dtype;
    int ranks;
    size_t rows, hidden;
    const void *const *inputs; /* one per rank */
    const void *residual;      /* added to the sums, or NULL */
    const double *weight;      /* `hidden` numbers, or NULL */
    double eps;
};

/* What is normalised: the peer kernel must give these bits, the switch must when no step rounds. */
void ref_rms_norm_sums(const struct ref_norm *call, void *bits_out);

/* The same for sums in an order that is not known. */
void ref_rms_norm_sums_bound(const struct ref_norm *call, double *exact_out, double *bound_out);

/* The results, and how far from them a kernel's may be, from sums that are exact (bound NULL) or
 * not. */
void ref_rms_norm(const struct ref_norm *call, const double *sums, const double *sums_bound,
                  double *exact_out, double *bound_out);

/* ---- number.c ---- */

size_t ref_bytes(enum smfar_dtype dtype);
int ref_is_float(enum smfar_dtype dtype);

/* Significant bits, the hidden one included: 24 for f32. Floats only. */
int ref_precision(enum smfar_dtype dtype);

/* Half the smallest positive number: the most that rounding adds near zero. Floats only. */
double ref_smallest_half(enum smfar_dtype dtype);

/* Element `index` of data of f8, f16, bf16 or f32; exact. */
float ref_load(enum smfar_dtype dtype, const void *data, size_t index);

/* The same of f64 data too. */
double ref_load_double(enum smfar_dtype dtype, const void *data, size_t index);

/* Rounds to the nearest, ties to even. Floats only. */
void ref_store(enum smfar_dtype dtype, void *data, size_t index, double value);

/* Integers: element `index`, and the low bits of `value` into it. */
int64_t ref_load_integer(enum smfar_dtype dtype, const void *data, size_t index);
void ref_store_integer(enum smfar_dtype dtype, void *data, size_t index, int64_t value);

/* Converts every f8, f16 and bf16 there and back; returns how many patterns changed. */
int ref_number_faults(void);

#endif
