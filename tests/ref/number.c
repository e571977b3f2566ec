/* The arithmetic of the element types: sizes, precision, loads and stores, and conversions of f16
 * and bf16 written bit by bit, so that they do not depend on a compiler's support for either. */
#include <math.h>
#include <string.h>

#include "ref.h"

size_t ref_bytes(enum smfar_dtype dtype)
{
    switch (dtype) {
    case SMFAR_U8:
    case SMFAR_I8:
        return 1;
    case SMFAR_I16:
    case SMFAR_F16:
    case SMFAR_BF16:
        return 2;
    case SMFAR_I64:
    case SMFAR_F64:
        return 8;
    default:
        return 4;
    }
}

int ref_is_float(enum smfar_dtype dtype)
{
    return dtype == SMFAR_F16 || dtype == SMFAR_BF16 || dtype == SMFAR_F32 || dtype == SMFAR_F64;
}

int ref_precision(enum smfar_dtype dtype)
{
    return dtype == SMFAR_F16 ? 11 : dtype == SMFAR_BF16 ? 8 : dtype == SMFAR_F64 ? 53 : 24;
}

double ref_smallest_half(enum smfar_dtype dtype)
{
    if (dtype == SMFAR_F64) return 0; /* no input comes near */
    return ldexp(1, dtype == SMFAR_F16 ? -25 : dtype == SMFAR_BF16 ? -134 : -150);
}

static float f16_to_float(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexpf((float)fraction, -24);
    return sign * ldexpf((float)(fraction + 1024), exponent - 25);
}

static uint16_t float_to_f16(float value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    float size = fabsf(value);
    if (isnan(value)) return 0x7fff;
    if (size >= 65520.0f) return sign | 0x7c00; /* half way to the next power rounds to infinity */
    if (size < 0x1p-14f) return sign | (uint16_t)nearbyintf(ldexpf(size, 24));
    int exponent;
    float fraction = frexpf(size, &exponent); /* size = fraction * 2^exponent, fraction >= 1/2 */
    int rounded = (int)nearbyintf(ldexpf(fraction, 11)); /* 1024 … 2048: a carry moves on below */
    return sign | (uint16_t)(((exponent + 13) << 10) + rounded);
}

static float bf16_to_float(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t float_to_bf16(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    if (isnan(value)) return 0x7fff;
    return (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

float ref_load(enum smfar_dtype dtype, const void *data, size_t index)
{
    if (dtype == SMFAR_F32) return ((const float *)data)[index];
    uint16_t bits = ((const uint16_t *)data)[index];
    return dtype == SMFAR_F16 ? f16_to_float(bits) : bf16_to_float(bits);
}

double ref_load_double(enum smfar_dtype dtype, const void *data, size_t index)
{
    return dtype == SMFAR_F64 ? ((const double *)data)[index]
                              : (double)ref_load(dtype, data, index);
}

/* No caller has a double that rounding it twice would round differently. */
void ref_store(enum smfar_dtype dtype, void *data, size_t index, double value)
{
    if (dtype == SMFAR_F64)
        ((double *)data)[index] = value;
    else if (dtype == SMFAR_F32)
        ((float *)data)[index] = (float)value;
    else
        ((uint16_t *)data)[index] =
            dtype == SMFAR_F16 ? float_to_f16((float)value) : float_to_bf16((float)value);
}

int64_t ref_load_integer(enum smfar_dtype dtype, const void *data, size_t index)
{
    switch (dtype) {
    case SMFAR_U8:
        return ((const uint8_t *)data)[index];
    case SMFAR_I8:
        return ((const int8_t *)data)[index];
    case SMFAR_I16:
        return ((const int16_t *)data)[index];
    case SMFAR_I32:
        return ((const int32_t *)data)[index];
    default:
        return ((const int64_t *)data)[index];
    }
}

void ref_store_integer(enum smfar_dtype dtype, void *data, size_t index, int64_t value)
{
    size_t bytes = ref_bytes(dtype); /* of which the low ones come first */
    memcpy((char *)data + index * bytes, &value, bytes);
}

int ref_number_faults(void)
{
    int faults = 0;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float half = f16_to_float((uint16_t)bits), brain = bf16_to_float((uint16_t)bits);
        faults += !isnan(half) && float_to_f16(half) != bits;
        faults += !isnan(brain) && float_to_bf16(brain) != bits;
    }
    return faults;
}
