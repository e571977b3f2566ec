/* The arithmetic of the element types: sizes, precision, loads and stores, and conversions of f16,
 * bf16 and the floats of 8 bits written bit by bit, so that they do not depend on a compiler's
 * support for either. */
#include <math.h>
#include <string.h>

#include "ref.h"

size_t ref_bytes(enum smfar_dtype dtype)
{
    switch (dtype) {
    case SMFAR_U8:
    case SMFAR_I8:
    case SMFAR_F8_E4M3:
    case SMFAR_F8_E5M2:
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

static int is_float8(enum smfar_dtype dtype)
{
    return dtype == SMFAR_F8_E4M3 || dtype == SMFAR_F8_E5M2;
}

int ref_is_float(enum smfar_dtype dtype)
{
    return dtype == SMFAR_F16 || dtype == SMFAR_BF16 || dtype == SMFAR_F32 || dtype == SMFAR_F64 ||
           is_float8(dtype);
}

int ref_precision(enum smfar_dtype dtype)
{
    if (is_float8(dtype)) return dtype == SMFAR_F8_E4M3 ? 4 : 3;
    return dtype == SMFAR_F16 ? 11 : dtype == SMFAR_BF16 ? 8 : dtype == SMFAR_F64 ? 53 : 24;
}

double ref_smallest_half(enum smfar_dtype dtype)
{
    if (dtype == SMFAR_F64) return 0; /* no input comes near */
    if (is_float8(dtype)) return dtype == SMFAR_F8_E4M3 ? 0x1p-10 : 0x1p-17;
    return ldexp(1, dtype == SMFAR_F16 ? -25 : dtype == SMFAR_BF16 ? -134 : -150);
}

/* The smallest positive float of 8 bits is 2^lowest; `top` is the code of infinity or, where there
 * is none, of the largest number. */
struct float8 {
    int precision, lowest, top;
};

static struct float8 float8_of(enum smfar_dtype dtype)
{
    return dtype == SMFAR_F8_E4M3 ? (struct float8){4, -9, 0x7e} : (struct float8){3, -16, 0x7c};
}

static float float8_to_float(enum smfar_dtype dtype, uint8_t bits)
{
    struct float8 type = float8_of(dtype);
    int code = bits & 0x7f, ones = 1 << (type.precision - 1);
    int exponent = code / ones, fraction = code % ones;
    float sign = bits & 0x80 ? -1.0f : 1.0f;
    if (code > type.top) return NAN;
    if (dtype == SMFAR_F8_E5M2 && code == type.top) return sign * INFINITY;
    if (exponent == 0) return sign * ldexpf((float)fraction, type.lowest);
    return sign * ldexpf((float)(fraction + ones), type.lowest + exponent - 1);
}

/* What is too large becomes infinity, or the largest number where there is none. */
static uint8_t float_to_float8(enum smfar_dtype dtype, float value)
{
    struct float8 type = float8_of(dtype);
    uint8_t sign = signbit(value) ? 0x80 : 0;
    float size = fabsf(value);
    int exponent;
    if (isnan(value)) return 0x7f;
    if (size >= 65536.0f) return sign | (uint8_t)type.top;
    frexpf(size, &exponent);              /* size < 2^exponent */
    int last = exponent - type.precision; /* of the last place */
    if (last < type.lowest || size == 0) last = type.lowest;
    int code = (int)nearbyintf(ldexpf(size, -last)); /* a carry moves on into the exponent */
    code += (last - type.lowest) << (type.precision - 1);
    return sign | (uint8_t)(code < type.top ? code : type.top);
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
    if (is_float8(dtype)) return float8_to_float(dtype, ((const uint8_t *)data)[index]);
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
    else if (is_float8(dtype))
        ((uint8_t *)data)[index] = float_to_float8(dtype, (float)value);
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
    for (int dtype = SMFAR_F8_E4M3; dtype <= SMFAR_F8_E5M2; dtype++) {
        for (uint32_t bits = 0; bits < 0x100; bits++) {
            float value = float8_to_float((enum smfar_dtype)dtype, (uint8_t)bits);
            uint8_t back = float_to_float8((enum smfar_dtype)dtype, value);
            faults += !isnan(value) && back != bits;
        }
    }
    return faults;
}
