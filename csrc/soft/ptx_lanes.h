/* How a row "operation on a type" becomes a function over 32 lanes: the C type that holds a PTX
 * type, how many there are in a register of 32 lanes (more for packed ones), and the conversion
 * to the C type that expressions are written in. */
#ifndef SMFAR_SOFT_PTX_LANES_H
#define SMFAR_SOFT_PTX_LANES_H

#include "ptx_code.h"
#include "ptx_float8.h"

#define CT_b16 uint16_t
#define CT_u16 uint16_t
#define CT_s16 int16_t
#define CT_f16 uint16_t
#define CT_bf16 uint16_t
#define CT_b32 uint32_t
#define CT_u32 uint32_t
#define CT_s32 int32_t
#define CT_f32 float
#define CT_f16x2 uint16_t
#define CT_bf16x2 uint16_t
#define CT_u16x2 uint16_t
#define CT_s16x2 int16_t
#define CT_b64 uint64_t
#define CT_u64 uint64_t
#define CT_s64 int64_t
#define CT_f64 double
#define CT_e4m3 uint8_t
#define CT_e5m2 uint8_t
#define CT_e4m3x2 uint8_t
#define CT_e5m2x2 uint8_t
#define CT_e4m3x4 uint8_t
#define CT_e5m2x4 uint8_t

/* elements in a register; f16x2 and its like hold two per lane, e4m3x4 four */
#define LANES_b16 32
#define LANES_u16 32
#define LANES_s16 32
#define LANES_f16 32
#define LANES_bf16 32
#define LANES_b32 32
#define LANES_u32 32
#define LANES_s32 32
#define LANES_f32 32
#define LANES_f16x2 64
#define LANES_bf16x2 64
#define LANES_u16x2 64
#define LANES_s16x2 64
#define LANES_b64 32
#define LANES_u64 32
#define LANES_s64 32
#define LANES_f64 32
#define LANES_e4m3 32
#define LANES_e5m2 32
#define LANES_e4m3x2 64
#define LANES_e5m2x2 64
#define LANES_e4m3x4 128
#define LANES_e5m2x4 128

#define IN_b16(x) (x)
#define IN_u16(x) (x)
#define IN_s16(x) (x)
#define IN_f16(x) f16_to_f32(x)
#define IN_bf16(x) bf16_to_f32(x)
#define IN_b32(x) (x)
#define IN_u32(x) (x)
#define IN_s32(x) (x)
#define IN_f32(x) (x)
#define IN_f16x2(x) f16_to_f32(x)
#define IN_bf16x2(x) bf16_to_f32(x)
#define IN_u16x2(x) (x)
#define IN_s16x2(x) (x)
#define IN_b64(x) (x)
#define IN_u64(x) (x)
#define IN_s64(x) (x)
#define IN_f64(x) (x)
#define IN_e4m3(x) e4m3_to_f32(x)
#define IN_e5m2(x) e5m2_to_f32(x)
#define IN_e4m3x2(x) e4m3_to_f32(x)
#define IN_e5m2x2(x) e5m2_to_f32(x)
#define IN_e4m3x4(x) e4m3_to_f32(x)
#define IN_e5m2x4(x) e5m2_to_f32(x)

#define OUT_b16(x) (uint16_t)(x)
#define OUT_u16(x) (uint16_t)(x)
#define OUT_s16(x) (int16_t)(x)
#define OUT_f16(x) f16_of_f32(x)
#define OUT_bf16(x) bf16_of_f32(x)
#define OUT_b32(x) (uint32_t)(x)
#define OUT_u32(x) (uint32_t)(x)
#define OUT_s32(x) (int32_t)(x)
#define OUT_f32(x) canonical_f32(x)
#define OUT_f16x2(x) f16_of_f32(x)
#define OUT_bf16x2(x) bf16_of_f32(x)
#define OUT_u16x2(x) (uint16_t)(x)
#define OUT_s16x2(x) (int16_t)(x)
#define OUT_b64(x) (uint64_t)(x)
#define OUT_u64(x) (uint64_t)(x)
#define OUT_s64(x) (int64_t)(x)
#define OUT_f64(x) (x)
#define OUT_e4m3(x) e4m3_of_f32(x)
#define OUT_e5m2(x) e5m2_of_f32(x)
#define OUT_e4m3x2(x) e4m3_of_f32(x)
#define OUT_e5m2x2(x) e5m2_of_f32(x)
#define OUT_e4m3x4(x) e4m3_of_f32(x)
#define OUT_e5m2x4(x) e5m2_of_f32(x)

/* x86 and PTX differ in NaN payloads and signs; PTX has one f32 NaN */
static inline float canonical_f32(float x) { return x != x ? float_of_bits(0x7fffffffu) : x; }

/* min and max: a NaN loses against a number, and -0 < +0 */
#define lesser(x, y)                                                                               \
    (x != x ? y : y != y ? x : x < y ? x : y < x ? y : __builtin_signbit(x) ? x : y)
#define greater(x, y)                                                                              \
    (x != x ? y : y != y ? x : x > y ? x : y > x ? y : __builtin_signbit(x) ? y : x)

/* Destination and sources are the same register or disjoint, so lanes never depend on lanes. */
#ifdef __clang__
#define LANES_APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define LANES_APART _Pragma("GCC ivdep")
#endif
#define LANE_LOOP(n) LANES_APART for (unsigned i = 0; i < (n); i++)

#define LANES_OP1(id, form, D, A, expr, flags)                                                     \
    static void id(void *dv, const void *av, const void *bv, const void *cv)                       \
    {                                                                                              \
        CT_##D *d = dv;                                                                            \
        const CT_##A *a = av;                                                                      \
        (void)bv, (void)cv;                                                                        \
        LANE_LOOP(LANES_##D)                                                                       \
        {                                                                                          \
            __auto_type x = IN_##A(a[i]);                                                          \
            d[i] = OUT_##D(expr);                                                                  \
        }                                                                                          \
    }

#define LANES_OP2(id, form, D, A, B, expr, flags)                                                  \
    static void id(void *dv, const void *av, const void *bv, const void *cv)                       \
    {                                                                                              \
        CT_##D *d = dv;                                                                            \
        const CT_##A *a = av;                                                                      \
        const CT_##B *b = bv;                                                                      \
        (void)cv;                                                                                  \
        LANE_LOOP(LANES_##D)                                                                       \
        {                                                                                          \
            __auto_type x = IN_##A(a[i]);                                                          \
            __auto_type y = IN_##B(b[i]);                                                          \
            d[i] = OUT_##D(expr);                                                                  \
        }                                                                                          \
    }

#define LANES_OP3(id, form, D, A, B, C, expr, flags)                                               \
    static void id(void *dv, const void *av, const void *bv, const void *cv)                       \
    {                                                                                              \
        CT_##D *d = dv;                                                                            \
        const CT_##A *a = av;                                                                      \
        const CT_##B *b = bv;                                                                      \
        const CT_##C *c = cv;                                                                      \
        LANE_LOOP(LANES_##D)                                                                       \
        {                                                                                          \
            __auto_type x = IN_##A(a[i]);                                                          \
            __auto_type y = IN_##B(b[i]);                                                          \
            __auto_type z = IN_##C(c[i]);                                                          \
            d[i] = OUT_##D(expr);                                                                  \
        }                                                                                          \
    }

#define ROW_OP1(id, form, D, A, expr, flags) {form, id, T_##D, T_##A, T_none, T_none, flags},
#define ROW_OP2(id, form, D, A, B, expr, flags) {form, id, T_##D, T_##A, T_##B, T_none, flags},
#define ROW_OP3(id, form, D, A, B, C, expr, flags) {form, id, T_##D, T_##A, T_##B, T_##C, flags},

#endif
