/* Decoding of cvt: which rounding, saturation and flushing a pair of types may or must have. */
#include <string.h>

#include "ptx_parse.h"

static int is_float(enum ptx_type type) { return ptx_types[type].class == CLASS_FLOAT; }

/* significand bits, to tell conversions that round from those that do not */
static unsigned precision(enum ptx_type type)
{
    return type == T_f64 ? 53 : type == T_f32 ? 24 : type == T_f16 ? 11 : 8;
}

static int integral(unsigned rounding) { return rounding >= ROUND_RNI && rounding <= ROUND_RPI; }

static int rounding_is_right(enum ptx_type to, enum ptx_type from, unsigned rounding)
{
    int direct = rounding >= ROUND_RN && rounding <= ROUND_RP;
    if (!is_float(to)) return is_float(from) ? integral(rounding) : rounding == ROUND_NONE;
    if (!is_float(from)) return direct;
    if (to == from) return rounding == ROUND_NONE || integral(rounding);
    /* neither of f16 and bf16 holds the other */
    int narrows = precision(to) < precision(from) || (to == T_f16 && from == T_bf16);
    return narrows ? direct : rounding == ROUND_NONE;
}

static int number(enum ptx_type type)
{
    const struct ptx_type_info *t = &ptx_types[type];
    return t->class == CLASS_INT ? type != T_u16x2 && type != T_s16x2
                                 : is_float(type) && type != T_f16x2 && type != T_bf16x2;
}

/* cvt.{rn,rz}.{f16x2,bf16x2}.f32 d, a, b */
static void decode_pair(struct ptx_parser *p, enum ptx_type from)
{
    unsigned rounding = p->insn.rounding;
    if (from != T_f32 || p->insn.flags || (rounding != ROUND_RN && rounding != ROUND_RZ))
        ptx_decode_bad(p);
    ptx_operand_count(p, 3, 3);
    p->insn.a = ptx_operand_in(p, 1, T_f32);
    p->insn.b = ptx_operand_in(p, 2, T_f32);
    p->insn.d = ptx_operand_out(p, 0, T_b32);
}

static void decode_one(struct ptx_parser *p, enum ptx_type to, enum ptx_type from)
{
    if (!number(to) || !number(from) || !rounding_is_right(to, from, p->insn.rounding))
        ptx_decode_bad(p);
    if (p->insn.flags & FLAG_FTZ && to != T_f32 && from != T_f32) ptx_decode_bad(p);
    ptx_operand_count(p, 2, 2);
    p->insn.a = ptx_operand_source(p, ptx_operand_atom(p, 1), from, !is_float(from));
    p->insn.d = ptx_operand_dest(p, ptx_operand_atom(p, 0), to, !is_float(to));
    if (p->insn.d.base == BASE_NONE) ptx_decode_bad(p);
}

void ptx_decode_cvt(struct ptx_parser *p)
{
    static const char *const modes[] = {"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", NULL};
    int mode = ptx_decode_choose(p, modes);
    p->insn.rounding = (uint8_t)(mode < 0 ? ROUND_NONE : ROUND_RN + mode);
    if (ptx_decode_take(p, "ftz")) p->insn.flags |= FLAG_FTZ;
    if (ptx_decode_take(p, "sat")) p->insn.flags |= FLAG_SAT;
    enum ptx_type to = ptx_decode_type(p), from = ptx_decode_type(p);
    ptx_decode_end(p);
    p->insn.exec = ptx_cvt_exec;
    p->insn.type = to;
    p->insn.source_type = from;
    if (to == T_f16x2 || to == T_bf16x2)
        decode_pair(p, from);
    else
        decode_one(p, to, from);
    const struct ptx_row *row = ptx_decode_find_row(p->opcode);
    if (row && p->insn.a.size == ptx_types[row->a].size &&
        p->insn.d.size == ptx_types[row->d].size) {
        p->insn.exec = ptx_alu_plain;
        p->insn.fn.alu = row->alu;
    }
}
