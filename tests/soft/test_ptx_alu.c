/* Arithmetic of the PTX interpreter, one instruction a case, against results worked out by hand
 * from the instruction set's definition; every case runs with all lanes, and again with odd lanes
 * alone, where even lanes must keep what they had. */
#include "ptx_harness.h"

struct alu_case {
    const char *insn; /* on %a, %b, %c and %d; %p and %q are predicates */
    int dbits, sbits;
    uint64_t a, b, c, expect;
};

static uint32_t F(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static uint64_t D(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}

#define W32(insn, a, b, c, expect)                                                                 \
    {insn, 32, 32, (uint32_t)(a), (uint32_t)(b), (uint32_t)(c), (uint32_t)(expect)}
#define W64(insn, a, b, c, expect)                                                                 \
    {insn, 64, 64, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), (uint64_t)(expect)}
#define W16(insn, a, b, c, expect)                                                                 \
    {insn, 16, 16, (uint16_t)(a), (uint16_t)(b), (uint16_t)(c), (uint16_t)(expect)}
#define F32(insn, a, b, c, expect) {insn, 32, 32, F(a), F(b), F(c), F(expect)}
#define F64(insn, a, b, c, expect) {insn, 64, 64, D(a), D(b), D(c), D(expect)}
#define SET "selp.b32 %d,1,0,%p;"

static void run_case(const struct alu_case *c, int odd_only)
{
    char body[1024];
    uint64_t out[32];
    struct harness h = {.param = {(uintptr_t)out, c->a, c->b, c->c}};
    snprintf(body, sizeof body,
             ".reg .b%d %%d; .reg .b%d %%a,%%b,%%c; .reg .pred %%p,%%q,%%odd; .reg .b64 %%o,%%i;"
             ".reg .b32 %%t; ld.param.b64 %%o,[a]; ld.param.b%d %%a,[b]; ld.param.b%d %%b,[c];"
             "ld.param.b%d %%c,[d]; mov.u32 %%t,%%laneid; mul.wide.u32 %%i,%%t,8;"
             "add.u64 %%o,%%o,%%i; st.global.u64 [%%o],0; and.b32 %%t,%%t,1;"
             "setp.ge.u32 %%odd,%%t,%d; mov.b%d %%d,77;\n"
             "@!%%odd bra DONE;\n %s\nDONE: st.global.b%d [%%o],%%d;",
             c->dbits, c->sbits, c->sbits, c->sbits, c->sbits, odd_only, c->dbits, c->insn,
             c->dbits);
    harness_ok(&h, "", body);
    for (unsigned i = 0; i < 32; i++) {
        uint64_t expect = odd_only && i % 2 == 0 ? 77 : c->expect;
        EXPECT(out[i] == expect, "lane %u: %s a=%llx b=%llx c=%llx: %llx, not %llx", i, c->insn,
               (unsigned long long)c->a, (unsigned long long)c->b, (unsigned long long)c->c,
               (unsigned long long)out[i], (unsigned long long)expect);
        if (out[i] != expect) break;
    }
}

static void run_cases(const struct alu_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (int odd_only = 0; odd_only < 2; odd_only++)
            run_case(&cases[i], odd_only);
}

static void test_integers(void)
{
    const struct alu_case cases[] = {
        W32("add.u32 %d,%a,%b;", 7, -9, 0, -2),
        W32("add.s32 %d,%a,%b;", 0x7fffffff, 1, 0, 0x80000000),
        W32("add.sat.s32 %d,%a,%b;", 0x7fffffff, 1, 0, 0x7fffffff),
        W32("sub.sat.s32 %d,%a,%b;", 0x80000000, 1, 0, 0x80000000),
        W16("add.u16 %d,%a,%b;", 0xffff, 2, 0, 1),
        W64("add.u64 %d,%a,%b;", 0xffffffff, 1, 0, 0x100000000),
        W64("sub.s64 %d,%a,%b;", 3, 5, 0, -2),
        W32("add.u16x2 %d,%a,%b;", 0xffff0001, 0x00010001, 0, 0x00000002),
        W32("max.s16x2 %d,%a,%b;", 0xffff0001, 0x0001ffff, 0, 0x00010001),
        W32("mul.lo.s32 %d,%a,%b;", -3, 7, 0, -21),
        W16("mul.lo.u16 %d,%a,%b;", 0xffff, 0xffff, 0, 1),
        W32("mul.hi.u32 %d,%a,%b;", 0xffffffff, 0xffffffff, 0, 0xfffffffe),
        W32("mul.hi.s32 %d,%a,%b;", -1, 5, 0, -1),
        W64("mul.hi.u64 %d,%a,%b;", -1, -1, 0, -2),
        W64("mul.hi.s64 %d,%a,%b;", -1, 5, 0, -1),
        {"mul.wide.u32 %d,%a,%b;", 64, 32, 0xffffffff, 2, 0, 0x1fffffffe},
        {"mul.wide.s32 %d,%a,%b;", 64, 32, 0xffffffff, 2, 0, (uint64_t)-2},
        {"mul.wide.s16 %d,%a,%b;", 32, 16, 0xffff, 3, 0, 0xfffffffd},
        W32("mad.lo.u32 %d,%a,%b,%c;", 5, 6, 7, 37),
        W32("mad.hi.u32 %d,%a,%b,%c;", 0x80000000, 4, 7, 9),
        W32("mul24.lo.u32 %d,%a,%b;", 0xff000003, 5, 0, 15),
        W32("sad.s32 %d,%a,%b,%c;", -5, 6, 7, 18),
        W32("div.u32 %d,%a,%b;", 100, 7, 0, 14),
        W32("div.s32 %d,%a,%b;", -100, 7, 0, -14),
        W32("div.s32 %d,%a,%b;", 0x80000000, -1, 0, 0x80000000),
        W32("div.u32 %d,%a,%b;", 5, 0, 0, 0xffffffff),
        W64("div.s64 %d,%a,%b;", INT64_MIN, -1, 0, INT64_MIN),
        W32("rem.s32 %d,%a,%b;", -100, 7, 0, -2),
        W32("rem.u32 %d,%a,%b;", 100, 0, 0, 100),
        W32("min.s32 %d,%a,%b;", -1, 1, 0, -1),
        W32("min.u32 %d,%a,%b;", -1, 1, 0, 1),
        W64("max.s64 %d,%a,%b;", -1, 1, 0, 1),
        W32("abs.s32 %d,%a;", -7, 0, 0, 7),
        W32("neg.s32 %d,%a;", 0x80000000, 0, 0, 0x80000000),
        W32("and.b32 %d,%a,%b;", 0xff00ff, 0xf0f0f0, 0, 0xf000f0),
        W32("or.b32 %d,%a,%b;", 0xff00ff, 0xf0f0f0, 0, 0xfff0ff),
        W64("xor.b64 %d,%a,%b;", -1, 0xff, 0, ~0xffull),
        W16("not.b16 %d,%a;", 0x00ff, 0, 0, 0xff00),
        W32("cnot.b32 %d,%a;", 0, 0, 0, 1),
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

static void test_bits(void)
{
    const struct alu_case cases[] = {
        W32("shl.b32 %d,%a,%b;", 3, 31, 0, 0x80000000),
        W32("shl.b32 %d,%a,%b;", 3, 32, 0, 0),
        W32("shr.u32 %d,%a,%b;", 0x80000000, 31, 0, 1),
        W32("shr.u32 %d,%a,%b;", 0x80000000, 99, 0, 0),
        W32("shr.s32 %d,%a,%b;", 0x80000000, 99, 0, -1),
        W64("shl.b64 %d,%a,63;", 1, 0, 0, 0x8000000000000000),
        W64("shr.s64 %d,%a,60;", INT64_MIN, 0, 0, -8),
        W32("shf.l.wrap.b32 %d,%a,%b,%c;", 0x80000000, 1, 33, 3),
        W32("shf.r.clamp.b32 %d,%a,%b,%c;", 0x80000000, 1, 40, 1),
        W32("bfe.u32 %d,%a,%b,%c;", 0xabcd1234, 8, 12, 0xd12),
        W32("bfe.s32 %d,%a,%b,%c;", 0x00000800, 8, 4, -8),
        W32("bfe.s32 %d,%a,%b,%c;", 0x80000000, 28, 12, -8),
        W32("bfe.u32 %d,%a,%b,%c;", 0xabcd1234, 8, 0, 0),
        {"{.reg .b32 x,y; mov.b32 x,60; mov.b32 y,4; bfe.u64 %d,%a,x,y;}", 64, 64,
         0xf000000000000000, 0, 0, 0xf},
        W32("bfi.b32 %d,%a,%b,%c,4;", 0xff, 0, 8, 0xf00),
        W32("bfi.b32 %d,%a,%b,%c,40;", 0xff, 1, 8, 0xff01),
        W32("bfind.u32 %d,%a;", 0x00800000, 0, 0, 23),
        W32("bfind.u32 %d,%a;", 0, 0, 0, 0xffffffff),
        W32("bfind.s32 %d,%a;", 0xff7fffff, 0, 0, 23),
        W32("bfind.shiftamt.u32 %d,%a;", 0x00800000, 0, 0, 8),
        W32("popc.b32 %d,%a;", 0xf0f0f0f1, 0, 0, 17),
        {"popc.b64 %d,%a;", 32, 64, UINT64_MAX, 0, 0, 64},
        W32("clz.b32 %d,%a;", 0x00800000, 0, 0, 8),
        W32("clz.b32 %d,%a;", 0, 0, 0, 32),
        W32("brev.b32 %d,%a;", 0x00000013, 0, 0, 0xc8000000),
        W64("brev.b64 %d,%a;", 1, 0, 0, 0x8000000000000000),
        W32("prmt.b32 %d,%a,%b,%c;", 0x33221100, 0x77665544, 0x7632, 0x77663322),
        W32("prmt.b32 %d,%a,%b,%c;", 0x80221100, 0, 0xb, 0xff),
        W32("prmt.b32.b4e %d,%a,%b,%c;", 0x33221100, 0x77665544, 1, 0x66770011),
        W32("prmt.b32.f4e %d,%a,%b,%c;", 0x33221100, 0x77665544, 1, 0x44332211),
        W32("prmt.b32.rc16 %d,%a,%b,%c;", 0x33221100, 0, 1, 0x33223322),
        W32("lop3.b32 %d,%a,%b,%c,0x96;", 0xf0, 0xcc, 0xaa, 0x96),
        W32("lop3.b32 %d,%a,%b,%c,0xe8;", 0xf0, 0xcc, 0xaa, 0xe8),
        W32("dp4a.u32.u32 %d,%a,%b,%c;", 0x01020304, 0x01010101, 100, 110),
        W32("dp4a.s32.s32 %d,%a,%b,%c;", 0xff020304, 0x01010101, 0, 8),
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

static void test_choices_and_moves(void)
{
    const struct alu_case cases[] = {
        W32("setp.lt.s32 %p,%a,%b;" SET, -1, 1, 0, 1),
        W32("setp.lt.u32 %p,%a,%b;" SET, -1, 1, 0, 0),
        W32("setp.lo.u32 %p,%a,%b;" SET, 1, -1, 0, 1),
        W32("setp.hs.u32 %p,%a,%b;" SET, 1, 1, 0, 1),
        W32("setp.eq.b32 %p|%q,%a,%b; selp.b32 %d,1,0,%q;", 1, 2, 0, 1),
        W32("setp.ne.u32 %q,%a,%a; setp.eq.or.s32 %p,%a,%b,!%q;" SET, 1, 2, 0, 1),
        W32("setp.ne.u32 %q,%a,%a; setp.ne.and.s32 %p,%a,%b,%q;" SET, 1, 2, 0, 0),
        W32("setp.ne.u32 %q,%a,%b; setp.ne.xor.s32 %p,%a,%b,%q;" SET, 1, 2, 0, 0),
        W32("setp.eq.u32 %p,%a,1; not.pred %q,%p; and.pred %p,%p,%q;" SET, 1, 0, 0, 0),
        W32("setp.eq.u32 %p,%a,1; not.pred %q,%p; xor.pred %p,%p,%q;" SET, 1, 0, 0, 1),
        W32("setp.eq.u32 %q,%a,1; mov.pred %p,%q; or.pred %p,%p,%q;" SET, 1, 0, 0, 1),
        W32("set.gt.u32.u32 %d,%a,%b;", 2, 1, 0, 0xffffffff),
        W32("set.gt.f32.s32 %d,%a,%b;", -2, -3, 0, F(1.0f)),
        W32("slct.u32.s32 %d,%a,%b,%c;", 5, 6, -1, 6),
        W32("slct.b32.f32 %d,%a,%b,%c;", 5, 6, F(-0.0f), 5),
        {"mov.b64 %d,{%a,%b};", 64, 32, 0x11111111, 0x22222222, 0, 0x2222222211111111},
        {"{.reg .b32 x; mov.b64 {%d,x},%a;}", 32, 64, 0x2222222211111111, 0, 0, 0x11111111},
        {"mov.b64 {_,%d},%a;", 32, 64, 0x2222222211111111, 0, 0, 0x22222222},
        {"mov.b32 %d,{%a,%b};", 32, 16, 0x1111, 0x2222, 0, 0x22221111},
        {"{.reg .b16 x,y,z; mov.b64 {x,y,z,%d},%a;}", 16, 64, 0x4444333322221111, 0, 0, 0x4444},
        W32("{ .reg .u32 %a; mov.u32 %a, 0x10U; mov.u32 %d, %a; }", 5, 0, 0, 16),
        W32("mov.u32 %d, 0b101;", 0, 0, 0, 5),
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

static void test_floats(void)
{
    const struct alu_case cases[] = {
        F32("add.f32 %d,%a,%b;", 1.5f, 2.25f, 0, 3.75f),
        W32("add.f32 %d,%a,%b;", 0x7f800000, 0xff800000, 0, 0x7fffffff),
        W32("add.f32 %d,%a,%b;", 0xffc12345, F(1), 0, 0x7fffffff),
        W32("add.f32 %d,%a,%b;", 1, 2, 0, 3),
        W32("add.ftz.f32 %d,%a,%b;", 1, 2, 0, 0),
        W32("mul.ftz.f32 %d,%a,%b;", 0x00800000, F(-0.5f), 0, 0x80000000),
        F32("add.sat.f32 %d,%a,%b;", 0.75f, 0.75f, 0, 1),
        W32("add.sat.f32 %d,%a,%b;", 0x7fc00000, 0, 0, 0),
        W32("add.rz.f32 %d,%a,%b;", F(1), F(0x1.8p-24f), 0, F(1)),
        W32("add.rn.f32 %d,%a,%b;", F(1), F(0x1.8p-24f), 0, F(0x1.000002p0f)),
        W32("add.rm.f32 %d,%a,%b;", F(1), F(-0x1p-40f), 0, F(0x1.fffffep-1f)),
        W32("add.rp.f32 %d,%a,%b;", F(1), F(0x1p-40f), 0, F(0x1.000002p0f)),
        F32("sub.f32 %d,%a,%b;", 1, 3, 0, -2),
        F32("mul.rn.f32 %d,%a,%b;", 3, -4, 0, -12),
        F32("fma.rn.f32 %d,%a,%b,%c;", 0x1.000002p0f, 0x1.000002p0f, -0x1.000004p0f, 0x1p-46f),
        F32("fma.rz.f32 %d,%a,%b,%c;", 1, 1, -0x1p-40f, 0x1.fffffep-1f),
        F32("mad.rn.f32 %d,%a,%b,%c;", 2, 3, 4, 10),
        F32("div.rn.f32 %d,%a,%b;", 1, 3, 0, 1.0f / 3),
        F32("div.full.f32 %d,%a,%b;", 8, 2, 0, 4),
        F32("div.approx.ftz.f32 %d,%a,%b;", 8, 2, 0, 4),
        F32("rcp.rn.f32 %d,%a;", 4, 0, 0, 0.25f),
        F32("sqrt.rn.f32 %d,%a;", 9, 0, 0, 3),
        F32("rsqrt.approx.f32 %d,%a;", 4, 0, 0, 0.5f),
        F32("rsqrt.approx.ftz.f32 %d,%a;", 0.25f, 0, 0, 2),
        F32("abs.f32 %d,%a;", -4, 0, 0, 4),
        F32("neg.f32 %d,%a;", 4, 0, 0, -4),
        W32("min.f32 %d,%a,%b;", 0x7fc00000, F(2), 0, F(2)),
        W32("min.NaN.f32 %d,%a,%b;", 0x7fc00000, F(2), 0, 0x7fffffff),
        W32("min.f32 %d,%a,%b;", F(0.0f), F(-0.0f), 0, F(-0.0f)),
        W32("max.f32 %d,%a,%b;", F(-0.0f), F(0.0f), 0, F(0.0f)),
        W32("max.ftz.NaN.f32 %d,%a,%b;", F(3), F(5), 0, F(5)),
        F32("copysign.f32 %d,%a,%b;", -1, 5, 0, -5),
        F32("ex2.approx.f32 %d,%a;", 3, 0, 0, 8),
        F32("lg2.approx.ftz.f32 %d,%a;", 8, 0, 0, 3),
        F32("sin.approx.f32 %d,%a;", 0, 0, 0, 0),
        F32("cos.approx.f32 %d,%a;", 0, 0, 0, 1),
        F32("tanh.approx.f32 %d,%a;", 0, 0, 0, 0),
        F64("add.f64 %d,%a,%b;", 1, 0.5, 0, 1.5),
        F64("fma.rn.f64 %d,%a,%b,%c;", 3, 5, 7, 22),
        F64("div.rp.f64 %d,%a,%b;", 1, 4, 0, 0.25),
        F64("sqrt.rn.f64 %d,%a;", 2, 0, 0, 1.4142135623730951),
        F64("min.f64 %d,%a,%b;", -1, 2, 0, -1),
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

static void test_halves_and_predicates(void)
{
    const struct alu_case cases[] = {
        W16("add.f16 %d,%a,%b;", 0x3c00, 0x3c00, 0, 0x4000),
        W16("add.rn.f16 %d,%a,%b;", 0x7bff, 0x7bff, 0, 0x7c00),
        W16("mul.f16 %d,%a,%b;", 0x0001, 0x3800, 0, 0x0000),
        W16("fma.rn.f16 %d,%a,%b,%c;", 0x3c01, 0x3c01, 0xbc02, 0x0010),
        W16("add.f16 %d,%a,%b;", 0x7e01, 0x3c00, 0, 0x7fff),
        W32("add.f16x2 %d,%a,%b;", 0x3c003c00, 0x40003c00, 0, 0x42004000),
        W32("fma.rn.bf16x2 %d,%a,%b,%c;", 0x3f804000, 0x40003f80, 0x3f803f80, 0x40404040),
        W32("add.rn.bf16x2 %d,%a,%b;", 0x3f803f80, 0x3f803b80, 0, 0x40003f80),
        W16("add.bf16 %d,%a,%b;", 0x3f80, 0x3c40, 0, 0x3f82),
        W16("fma.rn.bf16 %d,%a,%b,%c;", 0x3f81, 0x3f81, 0x0001, 0x3f82),
        W32("max.NaN.bf16x2 %d,%a,%b;", 0x7fc03f80, 0x3f804000, 0, 0x7fff4000),
        W32("neg.bf16x2 %d,%a;", 0x3f80bf80, 0, 0, 0xbf803f80),
        W32("setp.lt.f32 %p,%a,%b;" SET, F(1), F(2), 0, 1),
        W32("setp.lt.f32 %p,%a,%b;" SET, F(1), 0x7fc00000, 0, 0),
        W32("setp.ltu.f32 %p,%a,%b;" SET, F(1), 0x7fc00000, 0, 1),
        W32("setp.ne.f32 %p,%a,%b;" SET, F(1), 0x7fc00000, 0, 0),
        W32("setp.neu.f32 %p,%a,%b;" SET, F(1), 0x7fc00000, 0, 1),
        W32("setp.num.f32 %p,%a,%b;" SET, F(1), F(1), 0, 1),
        W32("setp.nan.f32 %p,%a,%b;" SET, F(1), F(1), 0, 0),
        W32("setp.eq.ftz.f32 %p,%a,%b;" SET, 1, 0, 0, 1),
        W32("testp.infinite.f32 %p,%a;" SET, 0xff800000, 0, 0, 1),
        W32("testp.subnormal.f32 %p,%a;" SET, 5, 0, 0, 1),
        W32("testp.normal.f32 %p,%a;" SET, F(1), 0, 0, 1),
        W32("mov.f32 %d, 0f3F800000;", 0, 0, 0, F(1)),
        W32("mov.f32 %d, -2.5;", 0, 0, 0, F(-2.5f)),
        W64("mov.f64 %d, 0d3FF8000000000000;", 0, 0, 0, D(1.5)),
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

static void test_conversions(void)
{
    const struct alu_case cases[] = {
        {"cvt.u64.u32 %d,%a;", 64, 32, 0xffffffff, 0, 0, 0xffffffff},
        {"cvt.s64.s32 %d,%a;", 64, 32, 0xffffffff, 0, 0, UINT64_MAX},
        {"cvt.u32.u64 %d,%a;", 32, 64, 0x123456789a, 0, 0, 0x3456789a},
        W32("cvt.s32.s8 %d,%a;", 0x1280, 0, 0, 0xffffff80),
        W32("cvt.u32.u8 %d,%a;", 0x1280, 0, 0, 0x80),
        W32("cvt.sat.s8.s32 %d,%a;", 300, 0, 0, 127),
        W32("cvt.sat.u8.s32 %d,%a;", -300, 0, 0, 0),
        W32("cvt.sat.s32.u32 %d,%a;", -1, 0, 0, 0x7fffffff),
        W32("cvt.rn.f32.s32 %d,%a;", -3, 0, 0, F(-3)),
        W32("cvt.rn.f32.u32 %d,%a;", 0xffffffff, 0, 0, F(0x1p32f)),
        W32("cvt.rz.f32.u32 %d,%a;", 0xffffffff, 0, 0, F(0x1.fffffep31f)),
        {"cvt.rn.f32.u64 %d,%a;", 32, 64, 0x8000008000000001, 0, 0, F(0x1.000002p63f)},
        {"cvt.rm.f64.u64 %d,%a;", 64, 64, UINT64_MAX, 0, 0, D(0x1.fffffffffffffp63)},
        W32("cvt.rzi.s32.f32 %d,%a;", F(-2.7f), 0, 0, -2),
        W32("cvt.rni.s32.f32 %d,%a;", F(2.5f), 0, 0, 2),
        W32("cvt.rmi.s32.f32 %d,%a;", F(-2.5f), 0, 0, -3),
        W32("cvt.rpi.u32.f32 %d,%a;", F(2.1f), 0, 0, 3),
        W32("cvt.rzi.u32.f32 %d,%a;", F(-5), 0, 0, 0),
        W32("cvt.rzi.s32.f32 %d,%a;", F(1e20f), 0, 0, 0x7fffffff),
        W32("cvt.rzi.s32.f32 %d,%a;", 0x7fc00000, 0, 0, 0),
        {"cvt.rzi.u64.f64 %d,%a;", 64, 64, D(0x1.8p63), 0, 0, 0xc000000000000000},
        F32("cvt.rni.f32.f32 %d,%a;", 3.5f, 0, 0, 4),
        {"cvt.f64.f32 %d,%a;", 64, 32, F(1.5f), 0, 0, D(1.5)},
        {"cvt.rn.f32.f64 %d,%a;", 32, 64, D(1 + 0x1.8p-24), 0, 0, F(0x1.000002p0f)},
        {"cvt.rz.f32.f64 %d,%a;", 32, 64, D(1 + 0x1.8p-24), 0, 0, F(1)},
        {"cvt.rp.f32.f64 %d,%a;", 32, 64, D(0x1p-200), 0, 0, 1},
        {"cvt.rn.f16.f32 %d,%a;", 16, 32, F(1.0f + 0x1p-11f), 0, 0, 0x3c00},
        {"cvt.rn.f16.f32 %d,%a;", 16, 32, F(1.0f + 0x1.8p-10f), 0, 0, 0x3c02},
        {"cvt.rn.f16.f32 %d,%a;", 16, 32, F(65519.0f), 0, 0, 0x7bff},
        {"cvt.rn.f16.f32 %d,%a;", 16, 32, F(65520.0f), 0, 0, 0x7c00},
        {"cvt.rz.f16.f32 %d,%a;", 16, 32, F(1e9f), 0, 0, 0x7bff},
        {"cvt.rn.f16.f32 %d,%a;", 16, 32, F(0x1p-25f), 0, 0, 0x0000},
        {"cvt.rn.f16.f32 %d,%a;", 16, 32, F(-0x1.8p-25f), 0, 0, 0x8001},
        {"cvt.rn.f16.f32 %d,%a;", 16, 32, 0xffc00001, 0, 0, 0x7fff},
        {"cvt.f32.f16 %d,%a;", 32, 16, 0x0001, 0, 0, F(0x1p-24f)},
        {"cvt.f32.f16 %d,%a;", 32, 16, 0xfc00, 0, 0, 0xff800000},
        {"cvt.f32.bf16 %d,%a;", 32, 16, 0xc040, 0, 0, F(-3)},
        {"cvt.rn.bf16.f32 %d,%a;", 16, 32, 0x3f808000, 0, 0, 0x3f80},
        {"cvt.rn.bf16.f32 %d,%a;", 16, 32, 0x3f818000, 0, 0, 0x3f82},
        {"cvt.rn.bf16.f32 %d,%a;", 16, 32, 0x7f800001, 0, 0, 0x7fff},
        {"cvt.rz.bf16.f32 %d,%a;", 16, 32, 0x3f81ffff, 0, 0, 0x3f81},
        W32("cvt.rn.bf16x2.f32 %d,%a,%b;", F(1), F(2), 0, 0x3f804000),
        W32("cvt.rn.f16x2.f32 %d,%a,%b;", F(1), F(2), 0, 0x3c004000),
        W32("cvt.rz.f16x2.f32 %d,%a,%b;", F(1), F(1e9f), 0, 0x3c007bff),
        {"cvt.rn.f16.f64 %d,%a;", 16, 64, D(1 + 0x1p-11 + 0x1p-40), 0, 0, 0x3c01},
        {"cvt.rn.bf16.f64 %d,%a;", 16, 64, D(1 + 0x1p-8 + 0x1p-50), 0, 0, 0x3f81},
        W32("cvt.ftz.f32.f32 %d,%a;", 5, 0, 0, 0),
        W32("cvt.sat.f32.f32 %d,%a;", F(-3), 0, 0, 0),
        {"cvt.rn.f16.s32 %d,%a;", 16, 32, 2049, 0, 0, 0x6800},
        {"cvt.rzi.s16.f16 %d,%a;", 16, 16, 0xc500, 0, 0, (uint16_t)-5},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

int main(void)
{
    test_integers();
    test_bits();
    test_choices_and_moves();
    test_floats();
    test_halves_and_predicates();
    test_conversions();
    return unit_end();
}
