/* The arithmetic of the element types: sizes, precision, and conversions of f16 and bf16 written
 * bit by bit, so that they do not depend on a compiler's support for either. */
#include <math.h>
#include <string.h>

#include "ref.h"

size_t ref_bytes(enum smfar_dtype dtype)
{
    switch (dtype) {
    case SMFAR_F16:
    case SMFAR_BF16:
        return 2;
    case SMFAR_I64:
        return 8;
    default:
        return 4;
    }
}

int ref_is_float(enum smfar_dtype dtype)
{
    return dtype == SMFAR_F16 || dtype == SMFAR_BF16 || dtype == SMFAR_F32;
}

int ref_precision(enum smfar_dtype dtype)
{
    return dtype == SMFAR_F16 ? 11 : dtype == SMFAR_BF16 ? 8 : 24;
}

double ref_smallest_half(enum smfar_dtype dtype)
{
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

void ref_store(enum smfar_dtype dtype, void *data, size_t index, float value)
{
    if (dtype == SMFAR_F32) {
        ((float *)data)[index] = value;
        return;
    }
    ((uint16_t *)data)[index] = dtype == SMFAR_F16 ? float_to_f16(value) : float_to_bf16(value);
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
