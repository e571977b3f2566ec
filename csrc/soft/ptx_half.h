/* f16 and bf16 in software: exact widening to f32, rounding to nearest even from f32 and f64.
 * A NaN stays a NaN and becomes the canonical one, as the hardware makes it. */
#ifndef SMFAR_SOFT_PTX_HALF_H
#define SMFAR_SOFT_PTX_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint32_t bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static inline double double_of_bits(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, 8);
    return d;
}

static inline uint64_t bits_of_double(double d)
{
    uint64_t bits;
    memcpy(&bits, &d, 8);
    return bits;
}

static inline float bf16_to_f32(uint16_t h) { return float_of_bits((uint32_t)h << 16); }

/* Choices are made with masks, which compilers vectorise where a conditional stays a jump. */
static inline uint32_t choose(int condition, uint32_t yes, uint32_t no)
{
    uint32_t mask = 0 - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline uint32_t bf16_bits_of_f32(float f)
{
    uint32_t bits = bits_of_float(f);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return choose((bits & 0x7fffffffu) > 0x7f800000u, 0x7fff, rounded);
}

static inline uint16_t bf16_of_f32(float f) { return (uint16_t)bf16_bits_of_f32(f); }

/* Shifts the exponent by a multiplication, so that subnormals need no branch. */
static inline float f16_to_f32(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    uint32_t bits = bits_of_float(float_of_bits(magnitude) * 0x1p112f);
    bits |= magnitude >= 0x0f800000u ? 0x7f800000u : 0; /* infinity and NaN */
    return float_of_bits(bits | (uint32_t)(h & 0x8000) << 16);
}

/* Adding a power of two 13 bits above the result's last place makes the f32 addition do the
 * rounding; a floor on that power covers f16 subnormals. */
static inline uint32_t f16_bits_of_f32(float f)
{
    uint32_t bits = bits_of_float(f), sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffffu, exponent = bits & 0x7f800000u;
    exponent = choose(exponent < 0x38800000u, 0x38800000u, exponent);
    float base = float_of_bits(exponent + 0x06800000u);
    uint32_t sum = bits_of_float(float_of_bits(magnitude) + base);
    uint32_t half = ((exponent - 0x38800000u) >> 13) + (sum & 0xfff);
    /* half: exponent - 1 in place, mantissa with its hidden bit carrying into it */
    uint32_t result = choose(magnitude >= 0x477ff000u, 0x7c00, half) | sign; /* 65520 and up */
    return choose(magnitude > 0x7f800000u, 0x7fff, result);
}

static inline uint16_t f16_of_f32(float f) { return (uint16_t)f16_bits_of_f32(f); }

/* x + y with the last bit set when inexact (round to odd), so that a later rounding to at most 51
 * bits is the only one. */
static inline double sum_to_odd(double x, double y)
{
    double sum = x + y;
    double other = sum - x;
    double error = (x - (sum - other)) + (y - other);
    uint64_t bits = bits_of_double(sum);
    if (error == 0 || !isfinite(sum) || (bits & 1)) return sum;
    return double_of_bits((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

/* A double rounded to f32 to odd: the step between f64 and the halves. */
static inline float f32_to_odd(double d)
{
    float f = (float)d;
    uint32_t bits = bits_of_float(f);
    if ((double)f == d || f != f || (bits & 1)) return f;
    if (isinf(f)) return d == f ? f : copysignf(0x1.fffffep127f, f);
    if (f == 0) return copysignf(0x1p-149f, (float)copysign(1, d));
    return float_of_bits(fabs(d) > fabs((double)f) ? bits + 1 : bits - 1);
}

static inline uint16_t f16_of_f64(double d) { return f16_of_f32(f32_to_odd(d)); }

static inline uint16_t bf16_of_f64(double d) { return bf16_of_f32(f32_to_odd(d)); }

#endif
