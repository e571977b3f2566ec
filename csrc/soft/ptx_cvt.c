/* cvt between any two types, in any rounding mode: each lane goes through the widest type of its
 * kind (64-bit integer or double), which holds every source exactly, and is rounded once. */
#include "ptx_lanes.h"
#include "ptx_machine.h"

static int is_float(unsigned type) { return ptx_types[type].class == CLASS_FLOAT; }

static uint64_t load_lane(const void *at, unsigned lane, unsigned size)
{
    uint64_t value = 0;
    memcpy(&value, (const char *)at + (size_t)lane * size, size);
    return value;
}

/* The value of a source lane of an integer type, sign- or zero-extended from the type's width. */
static int64_t integer_of(uint64_t raw, unsigned type)
{
    unsigned spare = 64 - 8 * ptx_types[type].size;
    if (ptx_types[type].is_signed) return (int64_t)(raw << spare) >> spare;
    return (int64_t)(raw << spare >> spare);
}

static double float_of(uint64_t raw, unsigned type)
{
    switch (type) {
    case T_f64:
        return double_of_bits(raw);
    case T_f32:
        return float_of_bits((uint32_t)raw);
    case T_f16:
        return f16_to_f32((uint16_t)raw);
    default:
        return bf16_to_f32((uint16_t)raw);
    }
}

/* `bits` is the nearest of a format of sign and magnitude, `nearest` its value; moves it by one
 * step where the mode wants the other neighbour of `exact`. */
static uint64_t direct(uint64_t bits, long double nearest, long double exact, unsigned mode,
                       unsigned width)
{
    uint64_t sign = (uint64_t)1 << (width - 1);
    if (nearest == exact || nearest != nearest) return bits;
    int up = nearest < exact; /* the other neighbour is above */
    int wanted_up = mode == ROUND_RP || (mode == ROUND_RZ && exact < 0);
    int wanted_down = mode == ROUND_RM || (mode == ROUND_RZ && exact > 0);
    if (!(up ? wanted_up : wanted_down)) return bits;
    if ((bits & (sign - 1)) == 0) return up ? 1 : sign | 1;
    int negative = (bits & sign) != 0;
    return up != negative ? bits + 1 : bits - 1;
}

static uint64_t round_float(long double exact, double nearest, unsigned type, unsigned mode)
{
    uint64_t bits;
    switch (type) {
    case T_f64:
        bits = bits_of_double(nearest);
        return direct(bits, nearest, exact, mode, 64);
    case T_f32:
        bits = bits_of_float(canonical_f32((float)exact));
        return direct(bits, float_of_bits((uint32_t)bits), exact, mode, 32);
    case T_f16:
        bits = f16_of_f64(nearest);
        return direct(bits, f16_to_f32((uint16_t)bits), exact, mode, 16);
    default:
        bits = bf16_of_f64(nearest);
        return direct(bits, bf16_to_f32((uint16_t)bits), exact, mode, 16);
    }
}

static uint64_t integer_to_float(int64_t value, int is_signed, unsigned type, unsigned mode)
{
    uint64_t magnitude = is_signed && value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    /* the low bits only matter as "not zero" for a format of at most 24 bits */
    uint64_t sticky = magnitude >> 50 ? (magnitude & ~(uint64_t)0xfff) |
                                            (uint64_t)((magnitude & 0xfff) != 0) << 11
                                      : magnitude;
    long double exact = is_signed ? (long double)value : (long double)(uint64_t)value;
    double nearest = type == T_f64 ? (is_signed ? (double)value : (double)(uint64_t)value)
                     : exact < 0   ? -(double)sticky
                                   : (double)sticky;
    return round_float(exact, nearest, type, mode);
}

static double to_integral(double x, unsigned mode)
{
    switch (mode) {
    case ROUND_RNI:
        return nearbyint(x);
    case ROUND_RMI:
        return floor(x);
    case ROUND_RPI:
        return ceil(x);
    case ROUND_RZI:
        return trunc(x);
    default:
        return x;
    }
}

/* Floats out of an integer type's range become its nearest end, NaN becomes 0. */
static int64_t float_to_integer(double x, unsigned type, unsigned mode)
{
    unsigned bits = 8 * ptx_types[type].size;
    int is_signed = ptx_types[type].is_signed;
    double top = ldexp(1, (int)bits - is_signed), bottom = is_signed ? -top : 0;
    x = to_integral(x, mode);
    if (x != x) return 0;
    if (x >= top)
        return (int64_t)(is_signed ? ((uint64_t)1 << (bits - 1)) - 1 : ~(uint64_t)0 >> (64 - bits));
    if (x <= bottom) return is_signed ? (int64_t)(~(uint64_t)0 << (bits - 1)) : 0;
    return is_signed ? (int64_t)x : (int64_t)(uint64_t)x;
}

static int64_t saturate(int64_t value, unsigned from, unsigned to)
{
    unsigned bits = 8 * ptx_types[to].size;
    uint64_t top =
        ptx_types[to].is_signed ? ((uint64_t)1 << (bits - 1)) - 1 : ~(uint64_t)0 >> (64 - bits);
    if (ptx_types[from].is_signed && value < 0) {
        if (!ptx_types[to].is_signed) return 0;
        int64_t bottom = -(int64_t)top - 1;
        return value < bottom ? bottom : value;
    }
    return (uint64_t)value > top ? (int64_t)top : value;
}

static double flush(double x) { return fabs(x) < 0x1p-126 ? copysign(0, x) : x; }

static uint64_t convert_float(const struct ptx_insn *in, double x)
{
    if (in->flags & FLAG_FTZ && in->source_type == T_f32) x = flush(x);
    if (!is_float(in->type))
        return (uint64_t)integer_of((uint64_t)float_to_integer(x, in->type, in->rounding),
                                    in->type);
    x = to_integral(x, in->rounding);
    if (in->flags & FLAG_SAT) x = x > 0 ? (x < 1 ? x : 1) : 0;
    uint64_t bits = round_float(x, x, in->type, in->rounding);
    if (in->flags & FLAG_FTZ && in->type == T_f32 && !(bits & 0x7f800000u)) bits &= 0x80000000u;
    return bits;
}

static uint64_t convert(const struct ptx_insn *in, uint64_t raw)
{
    if (is_float(in->source_type)) return convert_float(in, float_of(raw, in->source_type));
    int64_t value = integer_of(raw, in->source_type);
    int is_signed = ptx_types[in->source_type].is_signed;
    if (is_float(in->type)) return integer_to_float(value, is_signed, in->type, in->rounding);
    if (in->flags & FLAG_SAT) value = saturate(value, in->source_type, in->type);
    return (uint64_t)integer_of((uint64_t)value, in->type);
}

/* cvt.rn.f16x2.f32 d, a, b and its like: a becomes the upper half. */
static uint64_t convert_pair(const struct ptx_insn *in, float a, float b)
{
    unsigned half = in->type == T_f16x2 ? T_f16 : T_bf16;
    return round_float(a, a, half, in->rounding) << 16 | round_float(b, b, half, in->rounding);
}

void ptx_cvt_exec(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    const void *a = ptx_at(w, in->a), *b = ptx_at(w, in->b);
    int pair = in->type == T_f16x2 || in->type == T_bf16x2;
    for (unsigned i = 0; i < PTX_LANES; i++) {
        uint64_t out = pair ? convert_pair(in, ((const float *)a)[i], ((const float *)b)[i])
                            : convert(in, load_lane(a, i, in->a.size));
        memcpy((char *)w->scratch + (size_t)i * in->d.size, &out, in->d.size);
    }
    ptx_alu_blend(ptx_at(w, in->d), w->scratch, mask, in->d.size);
}
