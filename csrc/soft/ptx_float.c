/* Floating-point arithmetic over 32 lanes: the functions behind ptx_float.def. Results are those
 * of IEEE 754 with one rounding; the .approx forms are as exact as the C library makes them. */
#include "ptx_lanes.h"

/* x * y + z of 8- or 11-bit significands, ready for its one rounding to them */
static inline float fma_half(float x, float y, float z)
{
    return f32_to_odd(sum_to_odd((double)x * (double)y, z));
}

#define OP1 LANES_OP1
#define OP2 LANES_OP2
#define OP3 LANES_OP3
#include "ptx_float.def"
#undef OP1
#undef OP2
#undef OP3

const struct ptx_row ptx_float_rows[] = {
#define OP1 ROW_OP1
#define OP2 ROW_OP2
#define OP3 ROW_OP3
#include "ptx_float.def"
};
const unsigned ptx_float_count = sizeof ptx_float_rows / sizeof *ptx_float_rows;
