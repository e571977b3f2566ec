/* The reference of all_reduce_twoshot_peer. Not for other orders of the sum. */
#include "ref.h"

static void reduce_floats(const struct ref_call *call, void *bits_out)
{
    float scale = 1.0f / (float)call->ranks;
    for (size_t i = 0; i < call->count; i++) {
        float sum = ref_load(call->dtype, call->inputs[0], i);
        for (int rank = 1; rank < call->ranks; rank++)
            sum += ref_load(call->dtype, call->inputs[rank], i);
        ref_store(call->dtype, bits_out, i, call->op == SMFAR_AVG ? sum * scale : sum);
    }
}

/* Sums wrap; averages divide the wrapped sum, rounding to zero. */
static void reduce_i32(const struct ref_call *call, int32_t *out)
{
    for (size_t i = 0; i < call->count; i++) {
        uint32_t sum = 0;
        for (int rank = 0; rank < call->ranks; rank++)
            sum += ((const uint32_t *)call->inputs[rank])[i];
        out[i] = call->op == SMFAR_AVG ? (int32_t)sum / call->ranks : (int32_t)sum;
    }
}

static void reduce_i64(const struct ref_call *call, int64_t *out)
{
    for (size_t i = 0; i < call->count; i++) {
        uint64_t sum = 0;
        for (int rank = 0; rank < call->ranks; rank++)
            sum += ((const uint64_t *)call->inputs[rank])[i];
        out[i] = call->op == SMFAR_AVG ? (int64_t)sum / call->ranks : (int64_t)sum;
    }
}

void ref_all_reduce_twoshot_peer(const struct ref_call *call, void *bits_out)
{
    if (ref_is_float(call->dtype))
        reduce_floats(call, bits_out);
    else if (call->dtype == SMFAR_I32)
        reduce_i32(call, bits_out);
    else
        reduce_i64(call, bits_out);
}
