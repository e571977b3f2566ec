/* The reference of all_reduce_twoshot_mc: how far a sum made in an unknown order may be from the
 * exact one. Integers, and floats whose sums are exact, need no bound: they are compared with the
 * peer reference's bits.
 *
 * The bound. Let u = 2^-24 be the rounding of fp32 (2^-53 for f64, which is summed in f64, and
 * 2^-11 for e4m3, which is summed in f16, where sums of 16 neither overflow nor lose bits near
 * zero), v = 2^-precision that of the type (v = u for f32), h the type's smallest_half, S = sum
 * |x|, s = sum x, n the ranks, f what an average multiplies by.
 *   1. n - 1 additions, in any order, err by at most a = (n - 1) u S to first order.
 *   2. f16, bf16 and e4m3 are then rounded once: v (|s| + a) + h. For f64 that is what the exact
 *      sum loses here.
 *   3. An average is multiplied by fl(f), itself off by u, in fp32, off by u, and rounded once
 *      more: of what 1 and 2 gave the share |f|, and (2 u + v) |s f| + h.
 *   4. A sum of e4m3 past 448, the largest number, becomes that, and so does the exact one here,
 *      which brings the two no further apart.
 * Terms of second order, and sums that reached v |s| (1 + ...), are covered by the factor SLACK.
 */
#include <math.h>

#include "ref.h"

#define SLACK (1 + 0x1p-6)

static double bound_of(const struct ref_call *call, double sum, double sum_of_sizes)
{
    double u = call->dtype == SMFAR_F64       ? 0x1p-53
               : call->dtype == SMFAR_F8_E4M3 ? 0x1p-11
                                              : 0x1p-24;
    double v = ldexp(1, -ref_precision(call->dtype));
    double half = ref_smallest_half(call->dtype), share = fabs(call->scale);
    double added = (call->ranks - 1) * u * sum_of_sizes, bound = added;
    if (call->dtype != SMFAR_F32) bound += v * (fabs(sum) + added) + half;
    if (call->op == SMFAR_AVG) bound = bound * share + (2 * u + v) * fabs(sum) * share + half;
    return bound * SLACK;
}

void ref_all_reduce_twoshot_mc(const struct ref_call *call, double *exact_out, double *bound_out)
{
    for (size_t i = 0; i < call->count; i++) {
        long double sum = 0;
        double sum_of_sizes = 0;
        for (int rank = 0; rank < call->ranks; rank++) {
            double value = ref_load_double(call->dtype, call->inputs[rank], i);
            sum += value;
            sum_of_sizes += fabs(value);
        }
        exact_out[i] = (double)(call->op == SMFAR_AVG ? sum * call->scale : sum);
        if (call->dtype == SMFAR_F8_E4M3) exact_out[i] = fmax(-448, fmin(448, exact_out[i]));
        bound_out[i] = bound_of(call, (double)sum, sum_of_sizes);
    }
}
