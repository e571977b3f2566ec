/* The reference of all_reduce_twoshot_peer. Not for other orders of the sum. */
#include <math.h>

#include "ref.h"

/* NaN where either is, and -0 below +0. */
static double order_floats(enum smfar_op op, double a, double b)
{
    if (isnan(a) || isnan(b)) return NAN;
    int below = a < b || (a == b && signbit(a));
    return below == (op == SMFAR_MIN) ? a : b;
}

static float next_float(enum smfar_op op, float a, float b)
{
    if (op == SMFAR_PRODUCT) return a * b;
    return op == SMFAR_SUM || op == SMFAR_AVG ? a + b : (float)order_floats(op, a, b);
}

static void reduce_floats(const struct ref_call *call, void *bits_out)
{
    for (size_t i = 0; i < call->count; i++) {
        float acc = ref_load(call->dtype, call->inputs[0], i);
        for (int rank = 1; rank < call->ranks; rank++)
            acc = next_float(call->op, acc, ref_load(call->dtype, call->inputs[rank], i));
        ref_store(call->dtype, bits_out, i, call->op == SMFAR_AVG ? acc * (float)call->scale : acc);
    }
}

static double next_double(enum smfar_op op, double a, double b)
{
    if (op == SMFAR_PRODUCT) return a * b;
    return op == SMFAR_SUM || op == SMFAR_AVG ? a + b : order_floats(op, a, b);
}

static void reduce_doubles(const struct ref_call *call, double *out)
{
    for (size_t i = 0; i < call->count; i++) {
        double acc = ((const double *)call->inputs[0])[i];
        for (int rank = 1; rank < call->ranks; rank++)
            acc = next_double(call->op, acc, ((const double *)call->inputs[rank])[i]);
        out[i] = call->op == SMFAR_AVG ? acc * call->scale : acc;
    }
}

/* As in 64 bits; whoever stores the result cuts it to the type. */
static int64_t next_integer(enum smfar_op op, int64_t a, int64_t b)
{
    switch (op) {
    case SMFAR_PRODUCT:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case SMFAR_MIN:
        return a < b ? a : b;
    case SMFAR_MAX:
        return a > b ? a : b;
    case SMFAR_BAND:
        return a & b;
    case SMFAR_BOR:
        return a | b;
    case SMFAR_BXOR:
        return a ^ b;
    default:
        return (int64_t)((uint64_t)a + (uint64_t)b);
    }
}

/* Averages divide the sum as it has wrapped, rounding to zero. */
static void reduce_integers(const struct ref_call *call, void *bits_out)
{
    for (size_t i = 0; i < call->count; i++) {
        int64_t acc = ref_load_integer(call->dtype, call->inputs[0], i);
        for (int rank = 1; rank < call->ranks; rank++)
            acc = next_integer(call->op, acc, ref_load_integer(call->dtype, call->inputs[rank], i));
        ref_store_integer(call->dtype, bits_out, i, acc);
        if (call->op != SMFAR_AVG) continue;
        int64_t sum = ref_load_integer(call->dtype, bits_out, i);
        ref_store_integer(call->dtype, bits_out, i, sum / call->ranks);
    }
}

void ref_all_reduce_twoshot_peer(const struct ref_call *call, void *bits_out)
{
    if (call->dtype == SMFAR_F64)
        reduce_doubles(call, bits_out);
    else if (ref_is_float(call->dtype))
        reduce_floats(call, bits_out);
    else
        reduce_integers(call, bits_out);
}
