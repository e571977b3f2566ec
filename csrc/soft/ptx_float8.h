/* Floats of 8 bits in software: exact widening to f32, and rounding to the nearest, ties to even,
 * with saturation, as cvt.rn.satfinite does it: what is too large, infinity too, becomes the
 * largest number. e4m3 has no infinity; any NaN becomes the one of all ones. */
#ifndef SMFAR_SOFT_PTX_FLOAT8_H
#define SMFAR_SOFT_PTX_FLOAT8_H

#include "ptx_half.h"

/* The upper byte of an f16. */
static inline float e5m2_to_f32(uint8_t code) { return f16_to_f32((uint16_t)(code << 8)); }

/* Shifts the exponent by a multiplication, so that subnormals need no branch. */
static inline float e4m3_to_f32(uint8_t code)
{
    uint32_t magnitude = (uint32_t)(code & 0x7f) << 20;
    uint32_t bits = bits_of_float(float_of_bits(magnitude) * 0x1p120f);
    bits = choose((code & 0x7f) == 0x7f, 0x7fffffff, bits);
    return float_of_bits(bits | (uint32_t)(code & 0x80) << 24);
}

/* As f16_bits_of_f32, with so many bits of fraction; `least` is the smallest normal number as f32
 * has it, `top` the largest number's code. */
static inline uint8_t float8_of_f32(float f, unsigned fraction, uint32_t least, uint32_t top)
{
    unsigned less = 23 - fraction;
    uint32_t bits = bits_of_float(f), sign = bits >> 24 & 0x80;
    uint32_t magnitude = bits & 0x7fffffffu, exponent = bits & 0x7f800000u;
    exponent = choose(exponent < least, least, exponent);
    uint32_t large = choose(exponent > 0x48000000u, 0x48000000u, exponent); /* 2^17: too large */
    float base = float_of_bits(large + (less << 23));
    uint32_t sum = bits_of_float(float_of_bits(magnitude) + base);
    uint32_t code = ((large - least) >> less) + (sum & ((4u << fraction) - 1));
    code = choose(code > top || exponent > large, top, code);
    return (uint8_t)choose(magnitude > 0x7f800000u, 0x7f, code | sign);
}

static inline uint8_t e4m3_of_f32(float f) { return float8_of_f32(f, 3, 0x3c800000, 0x7e); }

static inline uint8_t e5m2_of_f32(float f) { return float8_of_f32(f, 2, 0x38800000, 0x7b); }

#endif
