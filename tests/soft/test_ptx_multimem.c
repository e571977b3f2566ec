/* multimem: sums, their order and rounding, stores to every copy, atomics on every copy, masks,
 * and the combinations that the parser must accept or refuse. */
#include "ptx_harness.h"

enum { COPIES = 4, WORDS = 1024 };
#define MULTICAST ((uint64_t)1 << 46)

static uint32_t copy[COPIES][WORDS] __attribute__((aligned(64)));

static struct harness switched(unsigned copies)
{
    struct harness h = {.ranges = 1};
    h.range[0] = (struct ptx_range){.begin = MULTICAST,
                                    .end = MULTICAST + sizeof copy[0],
                                    .kind = PTX_RANGE_MULTICAST,
                                    .writable = 1,
                                    .copies = copies};
    for (unsigned k = 0; k < copies; k++)
        h.range[0].copy[k] = (unsigned char *)copy[k];
    h.param[0] = MULTICAST;
    return h;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

#define HEAD                                                                                       \
    ".reg .b64 %m,%o,%i,%d,%e; .reg .b32 %t,%r0,%r1,%r2,%r3; .reg .f32 %f0,%f1,%f2,%f3;"           \
    ".reg .b16 %h<8>; .reg .pred %p; ld.param.u64 %m,[a]; ld.param.u64 %o,[b]; mov.u32 %t,%tid.x;"

/* ---- sums ---- */

static void test_f32_sum(unsigned copies, const char *guard, unsigned modulus)
{
    float out[128];
    char body[1024];
    struct harness h = switched(copies);
    for (unsigned k = 0; k < COPIES; k++)
        for (unsigned i = 0; i < WORDS; i++)
            copy[k][i] = bits_of((float)(i * 10 + k));
    for (unsigned i = 0; i < 128; i++)
        out[i] = -1;
    h.param[1] = (uintptr_t)out;
    snprintf(body, sizeof body,
             "%s mul.wide.u32 %%i,%%t,16; add.u64 %%m,%%m,%%i; add.u64 %%o,%%o,%%i;"
             "rem.u32 %%t,%%t,%u; setp.ne.u32 %%p,%%t,0;"
             "%s multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%%f0,%%r1,%%f2,%%r3},[%%m+32];"
             "%s st.global.v4.b32 [%%o],{%%f0,%%r1,%%f2,%%r3};",
             HEAD, modulus, guard, guard);
    harness_ok(&h, "", body);
    for (unsigned i = 0; i < 128; i++) {
        float expect = (float)(copies * (i + 8) * 10 + copies * (copies - 1) / 2);
        if (*guard && i / 4 % modulus == 0) expect = -1;
        EXPECT(out[i] == expect, "%u copies, '%s', element %u: %g, not %g", copies, guard, i,
               out[i], expect);
    }
    EXPECT(h.counts.multimem_bytes == 16 * h.counts.multimem_loads, "bytes");
}

/* One large and many small numbers: the order of the additions shows. */
static uint32_t ordered_sum(uint64_t seed)
{
    uint32_t out[32] = {0};
    struct harness h = switched(4);
    h.seed = seed;
    h.param[1] = (uintptr_t)out;
    for (unsigned i = 0; i < 32; i++) {
        copy[0][i] = bits_of(0x1p24f);
        copy[1][i] = bits_of(1);
        copy[2][i] = bits_of(1);
        copy[3][i] = bits_of(-0x1p24f);
    }
    harness_ok(&h, "",
               HEAD
               "mul.wide.u32 %i,%t,4; add.u64 %m,%m,%i; add.u64 %o,%o,%i;"
               "multimem.ld_reduce.relaxed.sys.global.add.f32 %f0,[%m]; st.global.f32 [%o],%f0;");
    return out[0];
}

static void test_order_follows_the_seed(void)
{
    unsigned distinct = 0, last = ~0u;
    for (uint64_t seed = 0; seed < 20; seed++) {
        uint32_t first = ordered_sum(seed);
        EXPECT(first == ordered_sum(seed), "seed %u gives two sums", (unsigned)seed);
        float value = float_of(first);
        EXPECT(value == 0 || value == 1 || value == 2, "%g", value);
        distinct += first != last;
        last = first;
    }
    EXPECT(distinct > 2, "the order never changes");
}

/* 256 + 1 + 1 + … in bf16: lost one by one, kept with .acc::f32 and rounded once. */
static uint32_t half_sum(const char *type, uint32_t large, uint32_t small)
{
    uint32_t out[32] = {0};
    char body[1024];
    struct harness h = switched(4);
    h.param[1] = (uintptr_t)out;
    for (unsigned i = 0; i < 32; i++) {
        for (unsigned k = 0; k < 4; k++)
            copy[k][i] = small | small << 16;
        copy[0][i] = large | large << 16;
    }
    snprintf(body, sizeof body,
             "%s mul.wide.u32 %%i,%%t,4; add.u64 %%m,%%m,%%i; add.u64 %%o,%%o,%%i;"
             "multimem.ld_reduce.relaxed.sys.global.add%s %%r0,[%%m]; st.global.b32 [%%o],%%r0;",
             HEAD, type);
    harness_ok(&h, "", body);
    for (unsigned i = 1; i < 32; i++)
        EXPECT(out[i] == out[0], "lane %u", i);
    return out[0];
}

static void test_half_rounding(void)
{
    uint32_t once = half_sum(".acc::f32.bf16x2", 0x4380, 0x3f80);
    EXPECT(once == 0x43824382, "256 + 3 in f32, rounded once: %x", once);
    once = half_sum(".acc::f32.f16x2", 0x6800, 0x3c00);
    EXPECT(once == 0x68026802, "2048 + 3 in f32, rounded once: %x", once);
    uint32_t each = half_sum(".bf16x2", 0x4380, 0x3f80);
    EXPECT(each == 0x43804380 || each == 0x43814381 || each == 0x43824382, "%x", each);
    EXPECT(half_sum(".acc::f32.bf16x2", 0x7fc0, 0x3f80) == 0x7fff7fff, "NaN");
    EXPECT(half_sum(".acc::f32.f16x2", 0x8000, 0x8000) == 0x80008000, "-0");
}

/* An integer reduction of the words 0xf0 + k, at lanes of odd number alone. */
static void test_word(const char *op, uint64_t expect, int wide)
{
    uint64_t out[32] = {0};
    char body[1024];
    struct harness h = switched(4);
    h.param[1] = (uintptr_t)out;
    memset(copy, 0, sizeof copy);
    for (unsigned k = 0; k < 4; k++)
        for (unsigned i = 0; i < 32; i++)
            copy[k][wide ? 2 * i : i] = 0xf0 + k;
    snprintf(body, sizeof body,
             "%s mul.wide.u32 %%i,%%t,%d; add.u64 %%m,%%m,%%i; mul.wide.u32 %%i,%%t,8;"
             "add.u64 %%o,%%o,%%i; and.b32 %%t,%%t,1; setp.ne.u32 %%p,%%t,0;"
             "@%%p multimem.ld_reduce.acquire.gpu.%s %%%s,[%%m];"
             "@%%p st.global.b%d [%%o],%%%s;",
             HEAD, wide ? 8 : 4, op, wide ? "d" : "r0", wide ? 64 : 32, wide ? "d" : "r0");
    harness_ok(&h, "", body);
    for (unsigned i = 0; i < 32; i++)
        EXPECT(out[i] == (i & 1 ? expect : 0), "%s, lane %u: %llx", op, i,
               (unsigned long long)out[i]);
}

/* ---- stores and atomics ---- */

static void test_store(void)
{
    struct harness h = switched(3);
    memset(copy, 0, sizeof copy);
    harness_ok(&h, "",
               HEAD "mul.wide.u32 %i,%t,16; add.u64 %m,%m,%i; mov.u32 %r0,5;"
                    "multimem.st.relaxed.sys.global.v4.f32 [%m],{%t,%r0,%t,%r0};"
                    "setp.eq.u32 %p,%t,3; @%p multimem.st.release.sys.u64 [%m+1024],77;"
                    "@%p multimem.st.weak.v2.f16x2 [%m+2048],{%t,%r0};");
    for (unsigned k = 0; k < COPIES; k++)
        for (unsigned i = 0; i < 128; i++) {
            uint32_t expect = k == 3 ? 0 : i & 1 ? 5 : i / 4;
            EXPECT(copy[k][i] == expect, "copy %u, word %u: %u", k, i, copy[k][i]);
        }
    EXPECT(copy[2][256 + 12] == 77 && copy[2][512 + 12] == 3 && copy[1][513 + 12] == 5,
           "single lanes");
    EXPECT(copy[2][256 + 16] == 0 && copy[3][256 + 12] == 0, "no others");
    EXPECT(h.counts.multimem_stores == 34 && h.counts.multimem_bytes == 32 * 16 + 8 + 8, "counts");
}

static void test_red(void)
{
    struct harness h = switched(4);
    h.grid = 3;
    memset(copy, 0, sizeof copy);
    for (unsigned k = 0; k < COPIES; k++)
        copy[k][2] = 0x3f803f80;
    harness_ok(&h, "",
               HEAD "multimem.red.release.sys.global.add.u32 [%m],%t; mov.u32 %r0,0x3f803f80;"
                    "multimem.red.relaxed.gpu.global.max.u64 [%m+16],0x123456789a;"
                    "setp.eq.u32 %p,%t,0; @%p multimem.red.relaxed.sys.add.bf16x2 [%m+8],%r0;"
                    "@%p multimem.red.add.v4.f32 [%m+32],{%r0,%r0,%r0,%r0};");
    for (unsigned k = 0; k < COPIES; k++) {
        EXPECT(copy[k][0] == 3 * 496, "copy %u: %u", k, copy[k][0]);
        EXPECT(copy[k][2] == 0x40804080, "copy %u: %x", k, copy[k][2]);
        EXPECT(copy[k][4] == 0x3456789a && copy[k][5] == 0x12, "copy %u: %x", k, copy[k][4]);
        EXPECT(float_of(copy[k][11]) == 3 * float_of(0x3f803f80), "copy %u", k);
    }
    EXPECT(h.counts.multimem_reds == 3 * (32 + 32 + 1 + 1), "counts");
}

/* ---- what the parser takes ---- */

static int parses(const char *insn)
{
    struct ptx_module *module = NULL;
    char error[HARNESS_ERROR], body[512];
    snprintf(body, sizeof body, "%s%s", HEAD, insn);
    char *text = harness_text("", body);
    int failed = ptx_module_parse(text, &module, error, sizeof error);
    if (!failed) ptx_module_free(module);
    free(text);
    return !failed;
}

static void test_accepted(void)
{
    static const char *const forms[] = {
        "multimem.ld_reduce.add.f32 %f0,[%m];",
        "multimem.ld_reduce.weak.add.f32 %f0,[%m];",
        "multimem.ld_reduce.relaxed.sys.add.v4.f32 {%f0,%f1,%f2,%f3},[%m+-4096];",
        "multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%f0,_,%f2,%f3},[%m];",
        "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%r0,%r1,%r2,%r3},[%m];",
        "multimem.ld_reduce.relaxed.sys.global.add.v4.acc::f32.bf16x2 {%r0,%r1,%r2,%r3},[%m];",
        "multimem.ld_reduce.acquire.cta.add.f64 %d,[%m];",
        "multimem.ld_reduce.min.s64 %d,[%m];",
        "multimem.ld_reduce.min.v8.f16 {%h0,%h1,%h2,%h3,%h4,%h5,%h6,%h7},[%m];",
        "multimem.red.relaxed.sys.global.add.v4.f16x2 [%m],{%r0,%r1,%r2,%r3};",
        "multimem.red.max.v2.bf16x2 [%m],{%r0,%r1};",
        "multimem.st.relaxed.sys.global.u32 [%m],7;",
        "multimem.st.b64 [%m],%d;",
        "@!%p multimem.ld_reduce.relaxed.sys.global.add.u32 %r0,[%m];"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        EXPECT(parses(forms[i]), "%s", forms[i]);
}

static void test_refused(void)
{
    static const char *const forms[] = {
        "multimem.ld_reduce.add.v8.f32 {%f0,%f1,%f2,%f3,%f0,%f1,%f2,%f3},[%m];",
        "multimem.ld_reduce.min.f32 %f0,[%m];",
        "multimem.ld_reduce.add.s64 %d,[%m];",
        "multimem.ld_reduce.add.b32 %r0,[%m];",
        "multimem.ld_reduce.and.u32 %r0,[%m];",
        "multimem.ld_reduce.add.v2.u32 {%r0,%r1},[%m];",
        "multimem.ld_reduce.add.f16 %h0,[%m];",
        "multimem.ld_reduce.min.acc::f32.bf16x2 %r0,[%m];",
        "multimem.ld_reduce.add.acc::f32.f32 %f0,[%m];",
        "multimem.ld_reduce.relaxed.add.f32 %f0,[%m];",
        "multimem.ld_reduce.release.sys.add.f32 %f0,[%m];",
        "multimem.ld_reduce.shared.add.f32 %f0,[%m];",
        "multimem.ld_reduce.add.v4.e4m3 {%r0,%r1,%r2,%r3},[%m];",
        "multimem.ld_reduce.add.e5m2x4 %r0,[%m];",
        "multimem.ld_reduce.mul.f32 %f0,[%m];",
        "multimem.ld_reduce.add.f32 %d,[%m];",
        "multimem.ld_reduce.add.u32 %d,[%m];",
        "multimem.ld_reduce.add.v4.f32 {%f0,%f1},[%m];",
        "multimem.red.weak.add.u32 [%m],1;",
        "multimem.red.max.bf16x2 [%m],%r0;",
        "multimem.red.min.f16x2 [%m],%r0;",
        "multimem.red.acquire.sys.add.u32 [%m],1;",
        "multimem.st.v2.b64 [%m],{%d,%e};",
        "multimem.st.acquire.sys.u32 [%m],1;",
        "multimem.st.u16 [%m],%h0;",
        "multimem.cp.async.bulk [%m],[%o],16;"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        EXPECT(!parses(forms[i]), "%s", forms[i]);
}

/* An operand of `lanes` registers of the type's width. */
static const char *operand_of(const char *type, unsigned lanes)
{
    static char text[64];
    const char *name = strstr(type, "x2") || strstr(type, "32") || strchr(type, 'e') ? "r"
                       : strstr(type, "64")                                          ? "d"
                                                                                     : "h";
    unsigned used = 0;
    for (unsigned i = 0; i < lanes; i++)
        used += (unsigned)snprintf(text + used, sizeof text - used, "%s%%%s%s",
                                   i           ? ","
                                   : lanes > 1 ? "{"
                                               : "",
                                   name, *name == 'd' ? "" : "0");
    snprintf(text + used, sizeof text - used, lanes > 1 ? "}" : "");
    return text;
}

/* How many of all combinations of operation, .acc, vector and type one instruction takes. */
static unsigned count_forms(const char *inst, const char *const *ops)
{
    static const char *const types[] = {"b32",   "u32",    "s32",  "f32",  "b64", "u64",
                                        "s64",   "f64",    "f16",  "bf16", "u16", "b16",
                                        "f16x2", "bf16x2", "e4m3", "e5m2", NULL};
    unsigned taken = 0;
    char text[256];
    int is_load = !strcmp(inst, "ld_reduce");
    for (; *ops; ops++)
        for (unsigned form = 0; form < 16 * 8; form++) {
            unsigned lanes = 1u << form % 4;
            const char *type = types[form / 8], *value = operand_of(type, lanes);
            char vector[8] = "";
            if (lanes > 1) snprintf(vector, sizeof vector, ".v%u", lanes);
            snprintf(text, sizeof text, "multimem.%s.relaxed.sys%s%s%s.%s %s,%s;", inst, *ops,
                     form / 4 % 2 ? ".acc::f32" : "", vector, type, is_load ? value : "[%m]",
                     is_load ? "[%m]" : value);
            taken += (unsigned)parses(text);
        }
    return taken;
}

static void test_every_combination(void)
{
    static const char *const ops[] = {".add", ".min", ".max",  ".and", ".or",
                                      ".xor", ".inc", ".exch", ".mul", NULL};
    static const char *const none[] = {"", NULL};
    unsigned loads = count_forms("ld_reduce", ops), reds = count_forms("red", ops);
    unsigned stores = count_forms("st", none);
    EXPECT(loads == 69 && reds == 53 && stores == 22, "%u %u %u", loads, reds, stores);
}

/* ---- faults ---- */

static void expect_fault(const char *insn, enum ptx_outcome outcome, const char *message)
{
    struct harness h = switched(4);
    h.param[1] = (uintptr_t)copy;
    char body[512];
    snprintf(body, sizeof body, "%s%s", HEAD, insn);
    harness_run(&h, "", body);
    EXPECT(h.outcome == outcome && strstr(h.error, message) && strstr(h.error, "t, line "),
           "%s: outcome %d, %s", insn, (int)h.outcome, h.error);
}

static void test_faults(void)
{
    expect_fault("multimem.ld_reduce.add.f32 %f0,[%o];", PTX_BAD_ADDRESS, "not a multicast");
    expect_fault("multimem.st.f32 [%o],%f0;", PTX_BAD_ADDRESS, "not a multicast");
    expect_fault("multimem.red.add.u32 [%o],1;", PTX_BAD_ADDRESS, "not a multicast");
    expect_fault("ld.global.u32 %r0,[%m];", PTX_BAD_ADDRESS, "multicast");
    expect_fault("st.global.u32 [%m],1;", PTX_BAD_ADDRESS, "multicast");
    expect_fault("atom.global.add.u32 %r0,[%m],1;", PTX_BAD_ADDRESS, "multicast");
    expect_fault("multimem.st.v4.f32 [%m+8],{%f0,%f1,%f2,%f3};", PTX_MISALIGNED, "16");
    expect_fault("multimem.ld_reduce.add.u64 %d,[%m+4];", PTX_MISALIGNED, "8");
    expect_fault("mul.wide.u32 %i,%t,16; add.u64 %m,%m,%i;"
                 "multimem.st.v4.f32 [%m+3600],{%f0,%f1,%f2,%f3};",
                 PTX_BAD_ADDRESS, "end of its range");
}

int main(void)
{
    test_f32_sum(4, "", 1);
    test_f32_sum(2, "", 1);
    test_f32_sum(1, "", 1);
    test_f32_sum(3, "@%p", 2);
    test_f32_sum(4, "@%p", 5);
    test_order_follows_the_seed();
    test_half_rounding();
    test_word("add.u32", 4 * 0xf0 + 6, 0);
    test_word("min.s32", 0xf0, 0);
    test_word("global.max.u32", 0xf3, 0);
    test_word("and.b32", 0xf0, 0);
    test_word("or.b32", 0xf3, 0);
    test_word("xor.b32", 0, 0);
    test_word("add.u64", 4 * 0xf0 + 6, 1);
    test_word("max.s64", 0xf3, 1);
    test_store();
    test_red();
    test_accepted();
    test_refused();
    test_every_combination();
    test_faults();
    return unit_end();
}
