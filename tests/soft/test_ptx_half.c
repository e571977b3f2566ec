/* f16 and bf16 conversions: every half there and back, and floats around every rounding boundary
 * against a rounding made in doubles, step by step. */
#include <math.h>

#include "../../csrc/soft/ptx_half.h"
#include "../unit/unit.h"

/* The value of a finite half of `mantissa` bits. */
static double value_of(unsigned half, unsigned mantissa, int bias)
{
    unsigned exponent = (half & 0x7fff) >> mantissa, fraction = half & ((1u << mantissa) - 1);
    double magnitude =
        exponent ? ldexp((double)(fraction | 1u << mantissa), (int)exponent - bias - (int)mantissa)
                 : ldexp((double)fraction, 1 - bias - (int)mantissa);
    return half & 0x8000 ? -magnitude : magnitude;
}

/* Between neighbours `low` and the next half the tie goes to the even one. */
static void check_between(unsigned low, unsigned mantissa, int bias, uint16_t (*cut)(float),
                          uint16_t (*cut_wide)(double))
{
    double below = value_of(low, mantissa, bias), above = value_of(low + 1, mantissa, bias);
    double middle = (below + above) / 2, step = (above - below) / 1024;
    uint16_t even = (uint16_t)(low & 1 ? low + 1 : low);
    EXPECT(cut((float)below) == low, "%x itself: %x", low, cut((float)below));
    EXPECT(cut((float)middle) == even, "%x: tie", low);
    EXPECT(cut((float)(middle - step)) == low, "%x: below the tie", low);
    EXPECT(cut((float)(middle + step)) == low + 1, "%x: above the tie", low);
    EXPECT(cut_wide(middle) == even, "%x: wide tie", low);
    EXPECT(cut_wide(nextafter(middle, 0)) == low, "%x: just below the tie", low);
    EXPECT(cut_wide(nextafter(middle, INFINITY)) == low + 1, "%x: just above the tie", low);
    EXPECT(cut_wide(-middle) == (even | 0x8000), "%x: negative tie", low);
}

int main(void)
{
    for (unsigned half = 0; half < 0x7c00; half++) {
        EXPECT(f16_to_f32((uint16_t)half) == (float)value_of(half, 10, 15), "f16 %x", half);
        EXPECT(f16_to_f32((uint16_t)(half | 0x8000)) == -f16_to_f32((uint16_t)half), "f16 -%x",
               half);
    }
    for (unsigned half = 0; half < 0x7bff; half++)
        check_between(half, 10, 15, f16_of_f32, f16_of_f64);
    for (unsigned half = 0x80; half < 0x7f7f; half++)
        check_between(half, 7, 127, bf16_of_f32, bf16_of_f64);
    EXPECT(isinf(f16_to_f32(0x7c00)) && isnan(f16_to_f32(0x7c01)) && isnan(f16_to_f32(0xfe00)),
           "f16");
    EXPECT(f16_of_f32(65519.99f) == 0x7bff && f16_of_f32(65520) == 0x7c00, "f16 overflow");
    EXPECT(f16_of_f32(INFINITY) == 0x7c00 && f16_of_f32(-INFINITY) == 0xfc00, "f16 infinity");
    EXPECT(bf16_of_f32(0x1.ffp127f) == 0x7f80 && bf16_of_f32(-INFINITY) == 0xff80, "bf16 overflow");
    EXPECT(f16_of_f32(NAN) == 0x7fff && bf16_of_f32(-NAN) == 0x7fff, "NaN");
    EXPECT(f16_of_f64(1e300) == 0x7c00 && f16_of_f64(-1e-300) == 0x8000, "f64");
    EXPECT(bf16_of_f64(1e-300) == 0 && bf16_of_f64(-1e300) == 0xff80, "f64");
    return unit_end();
}
