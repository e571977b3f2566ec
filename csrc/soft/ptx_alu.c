/* Executors of arithmetic: how a function over 32 lanes meets a mask, a rounding mode, .ftz, .sat,
 * predicates and selections. The arithmetic itself is in ptx_int.c and ptx_float.c. */
#include <fenv.h>

#include "ptx_lanes.h"
#include "ptx_machine.h"

static const uint32_t lane_bit[PTX_LANES] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
    1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15,
    1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21, 1u << 22, 1u << 23,
    1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

#define BLEND(type)                                                                                \
    do {                                                                                           \
        type *to = d;                                                                              \
        const type *from = s;                                                                      \
        LANE_LOOP(PTX_LANES) to[i] = mask & lane_bit[i] ? from[i] : to[i];                         \
    } while (0)

void ptx_alu_blend(void *d, const void *s, uint32_t mask, unsigned size)
{
    if (size == 4)
        BLEND(uint32_t);
    else if (size == 8)
        BLEND(uint64_t);
    else if (size == 2)
        BLEND(uint16_t);
    else
        BLEND(uint8_t);
}

void ptx_alu_plain(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    void *d = ptx_at(w, in->d);
    if (mask == PTX_ALL_LANES) {
        in->fn.alu(d, ptx_at(w, in->a), ptx_at(w, in->b), ptx_at(w, in->c));
        return;
    }
    in->fn.alu(w->scratch, ptx_at(w, in->a), ptx_at(w, in->b), ptx_at(w, in->c));
    ptx_alu_blend(d, w->scratch, mask, in->d.size);
}

static int is_half(unsigned type) { return type == T_f16 || type == T_f16x2; }

/* Subnormals become zeros of their sign. */
static void flush(void *d, unsigned type)
{
    if (type == T_f32) {
        uint32_t *x = d;
        for (unsigned i = 0; i < PTX_LANES; i++)
            x[i] = x[i] & 0x7f800000u ? x[i] : x[i] & 0x80000000u;
    } else if (is_half(type)) {
        uint16_t *x = d;
        unsigned n = type == T_f16x2 ? 2 * PTX_LANES : PTX_LANES;
        for (unsigned i = 0; i < n; i++)
            x[i] = (uint16_t)(x[i] & 0x7c00 ? x[i] : x[i] & 0x8000);
    }
}

/* Clamps to [0, 1]; a NaN becomes +0. */
static void clamp(void *d, unsigned type)
{
    if (type == T_f32) {
        float *x = d;
        for (unsigned i = 0; i < PTX_LANES; i++)
            x[i] = x[i] > 0 ? (x[i] < 1 ? x[i] : 1) : 0;
    } else if (is_half(type)) {
        uint16_t *x = d;
        unsigned n = type == T_f16x2 ? 2 * PTX_LANES : PTX_LANES;
        for (unsigned i = 0; i < n; i++) {
            float f = f16_to_f32(x[i]);
            x[i] = f16_of_f32(f > 0 ? (f < 1 ? f : 1) : 0);
        }
    }
}

/* The operand's lanes: where they lie, or in `copy` with subnormals flushed. */
static const void *source(struct ptx_warp *w, const struct ptx_insn *in, struct ptx_ref ref,
                          unsigned type, uint64_t *copy)
{
    const void *at = ptx_at(w, ref);
    if (!(in->flags & FLAG_FTZ)) return at;
    memcpy(copy, at, (size_t)PTX_LANES * ref.size);
    flush(copy, type);
    return copy;
}

static int fenv_rounding(unsigned rounding)
{
    switch (rounding) {
    case ROUND_RZ:
        return FE_TOWARDZERO;
    case ROUND_RM:
        return FE_DOWNWARD;
    case ROUND_RP:
        return FE_UPWARD;
    default:
        return FE_TONEAREST;
    }
}

void ptx_alu_flags(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint64_t a[PTX_LANES], b[PTX_LANES], c[PTX_LANES];
    const void *x = source(w, in, in->a, in->type, a);
    const void *y = source(w, in, in->b, in->type, b);
    const void *z = source(w, in, in->c, in->type, c);
    int rounding = fenv_rounding(in->rounding);
    if (rounding != FE_TONEAREST) fesetround(rounding);
    in->fn.alu(w->scratch, x, y, z);
    if (rounding != FE_TONEAREST) fesetround(FE_TONEAREST);
    if (in->flags & FLAG_SAT) clamp(w->scratch, in->type);
    if (in->flags & FLAG_FTZ) flush(w->scratch, in->type);
    ptx_alu_blend(ptx_at(w, in->d), w->scratch, mask, in->d.size);
}

/* ---- predicates ---- */

void ptx_alu_set_predicate(struct ptx_warp *w, struct ptx_ref ref, uint32_t bits, uint32_t mask)
{
    if (ref.base == BASE_NONE) return;
    uint32_t *p = ptx_at(w, ref);
    *p = (*p & ~mask) | (bits & mask);
}

static uint32_t combine(unsigned boolean, uint32_t x, uint32_t y)
{
    switch (boolean) {
    case BOOL_AND:
        return x & y;
    case BOOL_OR:
        return x | y;
    case BOOL_XOR:
        return x ^ y;
    case BOOL_NOT:
        return ~x;
    default:
        return x;
    }
}

static uint32_t compare(struct ptx_warp *w, const struct ptx_insn *in)
{
    uint64_t a[PTX_LANES], b[PTX_LANES];
    return in->fn.compare(source(w, in, in->a, in->source_type, a),
                          source(w, in, in->b, in->source_type, b));
}

void ptx_alu_setp(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint32_t bits = compare(w, in);
    uint32_t other = in->choice == BOOL_NONE ? 0 : ptx_predicate(w, in->c);
    ptx_alu_set_predicate(w, in->d, combine(in->choice, bits, other), mask);
    ptx_alu_set_predicate(w, in->d2, combine(in->choice, ~bits, other), mask);
}

void ptx_alu_set(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint32_t bits = compare(w, in), yes = in->type == T_f32 ? 0x3f800000u : 0xffffffffu;
    if (in->choice != BOOL_NONE) bits = combine(in->choice, bits, ptx_predicate(w, in->c));
    uint32_t *d = ptx_at(w, in->d);
    for (unsigned i = 0; i < PTX_LANES; i++)
        if (mask >> i & 1) d[i] = bits >> i & 1 ? yes : 0;
}

void ptx_alu_pred_logic(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint32_t y = in->b.base == BASE_NONE ? 0 : ptx_predicate(w, in->b);
    ptx_alu_set_predicate(w, in->d, combine(in->choice, ptx_predicate(w, in->a), y), mask);
}

void ptx_alu_testp(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint32_t bits = 0;
    for (unsigned i = 0; i < PTX_LANES; i++) {
        int class = in->source_type == T_f64 ? fpclassify(((const double *)ptx_at(w, in->a))[i])
                                             : fpclassify(((const float *)ptx_at(w, in->a))[i]);
        int yes = in->choice == TESTP_FINITE       ? class != FP_NAN && class != FP_INFINITE
                  : in->choice == TESTP_INFINITE   ? class == FP_INFINITE
                  : in->choice == TESTP_NUMBER     ? class != FP_NAN
                  : in->choice == TESTP_NOTANUMBER ? class == FP_NAN
                  : in->choice == TESTP_NORMAL     ? class == FP_NORMAL
                                                   : class == FP_SUBNORMAL;
        bits |= (uint32_t)yes << i;
    }
    ptx_alu_set_predicate(w, in->d, bits, mask);
}

/* ---- selections and moves ---- */

void ptx_alu_selp(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    memcpy(w->scratch, ptx_at(w, in->b), (size_t)PTX_LANES * in->d.size);
    ptx_alu_blend(w->scratch, ptx_at(w, in->a), ptx_predicate(w, in->c), in->d.size);
    ptx_alu_blend(ptx_at(w, in->d), w->scratch, mask, in->d.size);
}

/* slct: a where c >= 0, else b; a NaN counts as negative */
void ptx_alu_slct(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    uint32_t bits = 0;
    for (unsigned i = 0; i < PTX_LANES; i++) {
        int yes = in->source_type == T_f32 ? ((const float *)ptx_at(w, in->c))[i] >= 0
                                           : ((const int32_t *)ptx_at(w, in->c))[i] >= 0;
        bits |= (uint32_t)yes << i;
    }
    memcpy(w->scratch, ptx_at(w, in->b), (size_t)PTX_LANES * in->d.size);
    ptx_alu_blend(w->scratch, ptx_at(w, in->a), bits, in->d.size);
    ptx_alu_blend(ptx_at(w, in->d), w->scratch, mask, in->d.size);
}

void ptx_alu_mov(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    if (mask == PTX_ALL_LANES)
        memmove(ptx_at(w, in->d), ptx_at(w, in->a), (size_t)PTX_LANES * in->d.size);
    else
        ptx_alu_blend(ptx_at(w, in->d), ptx_at(w, in->a), mask, in->d.size);
}

/* ---- four operands ---- */

void ptx_alu_lop3(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    const uint32_t *a = ptx_at(w, in->a), *b = ptx_at(w, in->b), *c = ptx_at(w, in->c);
    uint32_t out[PTX_LANES] = {0};
    for (unsigned row = 0; row < 8; row++) {
        if (!(in->target >> row & 1)) continue;
        uint32_t x = row & 4 ? 0 : ~0u, y = row & 2 ? 0 : ~0u, z = row & 1 ? 0 : ~0u;
        for (unsigned i = 0; i < PTX_LANES; i++)
            out[i] |= (a[i] ^ x) & (b[i] ^ y) & (c[i] ^ z);
    }
    ptx_alu_blend(ptx_at(w, in->d), out, mask, 4);
}

static uint64_t lane_value(const void *at, unsigned lane, unsigned size)
{
    return size == 8 ? ((const uint64_t *)at)[lane] : ((const uint32_t *)at)[lane];
}

/* bfi: bits of a put into b at a position (c) for a length (v[0]), both modulo 256 */
void ptx_alu_bfi(struct ptx_warp *w, const struct ptx_insn *in, uint32_t mask)
{
    unsigned size = in->d.size, width = 8 * size;
    const uint32_t *position = ptx_at(w, in->c), *length = ptx_at(w, in->v[0]);
    for (unsigned i = 0; i < PTX_LANES; i++) {
        uint64_t a = lane_value(ptx_at(w, in->a), i, size);
        uint64_t b = lane_value(ptx_at(w, in->b), i, size);
        unsigned p = position[i] & 0xff, n = length[i] & 0xff;
        uint64_t ones = n >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1;
        if (p < width) b = (b & ~(ones << p)) | (a & ones) << p;
        if (size == 8)
            w->scratch[i] = b;
        else
            ((uint32_t *)w->scratch)[i] = (uint32_t)b;
    }
    ptx_alu_blend(ptx_at(w, in->d), w->scratch, mask, size);
}
