/* The reference of rms_norm_peer and rms_norm_mc: rows summed over ranks, a residual added, divided
 * by the root of their mean square, times a weight.
 *
 * What the sums are is exact for the peer kernel, and for the switch's within a bound; the rest is
 * made in fp32 in an order that is nobody's business, so it has a bound. Let u = 2^-24, v =
 * 2^-precision of the type (0 for f32, where nothing is rounded after), h its smallest_half.
 *   1. The squares' sum: a thread adds up at most DEPTH(hidden) of them, then lanes and warps
 * follow; all are positive, so the sum errs by the share DEPTH u. The root halves that.
 *   2. Mean, eps, root, reciprocal, two products, and a weight of f64 made fp32: 8 u.
 *   3. The result is rounded: v |y| + h.
 *   4. An error of b[i] in the sums: b[i] / |h[i]| of that element's share, and of the root half
 * the share sum 2 |h[i]| b[i] / sum h[i]^2. Terms of second order are covered by the factor SLACK.
 */
#include <math.h>

#include "ref.h"

#define SLACK (1 + 0x1p-4)
#define DEPTH(hidden) ((double)(hidden) / 32 + 128)
#define U 0x1p-24

/* One element: in rank order, rounded; then with the residual, rounded. */
static void store_sum(const struct ref_norm *call, size_t i, void *bits_out)
{
    float sum = ref_load(call->dtype, call->inputs[0], i);
    for (int rank = 1; rank < call->ranks; rank++)
        sum += ref_load(call->dtype, call->inputs[rank], i);
    ref_store(call->dtype, bits_out, i, sum);
    if (!call->residual) return;
    sum = ref_load(call->dtype, bits_out, i) + ref_load(call->dtype, call->residual, i);
    ref_store(call->dtype, bits_out, i, sum);
}

void ref_rms_norm_sums(const struct ref_norm *call, void *bits_out)
{
    for (size_t i = 0; i < call->rows * call->hidden; i++)
        store_sum(call, i, bits_out);
}

void ref_rms_norm_sums_bound(const struct ref_norm *call, double *exact_out, double *bound_out)
{
    struct ref_call sum = {
        SMFAR_SUM, call->dtype, call->ranks, call->rows * call->hidden, call->inputs, 1};
    double v = ldexp(1, -ref_precision(call->dtype)), half = ref_smallest_half(call->dtype);
    ref_all_reduce_twoshot_mc(&sum, exact_out, bound_out);
    for (size_t i = 0; call->residual && i < sum.count; i++) {
        exact_out[i] += ref_load_double(call->dtype, call->residual, i);
        bound_out[i] = (bound_out[i] + v * fabs(exact_out[i]) + half) * SLACK;
    }
}

static void norm_row(const struct ref_norm *call, const double *sums, const double *sums_bound,
                     double *exact_out, double *bound_out)
{
    double v = call->dtype == SMFAR_F32 ? 0 : ldexp(1, -ref_precision(call->dtype));
    double half = ref_smallest_half(call->dtype), squares = 0, errors = 0;
    for (size_t i = 0; i < call->hidden; i++) {
        squares += sums[i] * sums[i];
        if (sums_bound) errors += (2 * fabs(sums[i]) + sums_bound[i]) * sums_bound[i];
    }
    double n = (double)call->hidden, inverse = 1 / sqrt(squares / n + call->eps);
    double share = (DEPTH(call->hidden) / 2 + 8) * U + errors / (squares + n * call->eps) / 2;
    for (size_t i = 0; i < call->hidden; i++) {
        double weight = call->weight ? call->weight[i] : 1, size = fabs(sums[i] * inverse * weight);
        double error = sums_bound ? sums_bound[i] * inverse * fabs(weight) : 0;
        exact_out[i] = sums[i] * inverse * weight;
        bound_out[i] = (share * size + error + v * size + half) * SLACK;
    }
}

void ref_rms_norm(const struct ref_norm *call, const double *sums, const double *sums_bound,
                  double *exact_out, double *bound_out)
{
    for (size_t row = 0; row < call->rows; row++) {
        size_t at = row * call->hidden;
        norm_row(call, sums + at, sums_bound ? sums_bound + at : NULL, exact_out + at,
                 bound_out + at);
    }
}
