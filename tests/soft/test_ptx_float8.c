/* Floats of 8 bits: every code there and back, floats around every rounding boundary, what the
 * switch makes of them, and which targets and forms have them. */
#include <math.h>

#include "../../csrc/soft/ptx_float8.h"
#include "ptx_harness.h"

enum { COPIES = 4, BYTES = 512 };
#define MULTICAST ((uint64_t)1 << 46)

static uint8_t copy[COPIES][BYTES] __attribute__((aligned(64)));

/* A type: fraction bits, bias, and the codes of its largest number and of its first NaN. */
struct kind {
    const char *name;
    unsigned fraction;
    int bias;
    unsigned top, nan;
    float (*widen)(uint8_t);
    uint8_t (*narrow)(float);
};
static const struct kind e4m3 = {"e4m3", 3, 7, 0x7e, 0x7f, e4m3_to_f32, e4m3_of_f32};
static const struct kind e5m2 = {"e5m2", 2, 15, 0x7b, 0x7d, e5m2_to_f32, e5m2_of_f32};

/* ---- conversions ---- */

static double value_of(const struct kind *kind, unsigned code)
{
    unsigned exponent = code >> kind->fraction, fraction = code & ((1u << kind->fraction) - 1);
    int last = 1 - kind->bias - (int)kind->fraction;
    if (!exponent) return ldexp(fraction, last);
    return ldexp(fraction | 1u << kind->fraction, last + (int)exponent - 1);
}

static void check_codes(const struct kind *kind)
{
    for (unsigned code = 0; code <= kind->top; code++) {
        float value = kind->widen((uint8_t)code);
        EXPECT(value == (float)value_of(kind, code), "%s %x: %g", kind->name, code, value);
        EXPECT_EQ(kind->narrow(value), code);
        EXPECT_EQ(kind->narrow(-value), code | 0x80);
        EXPECT(kind->widen((uint8_t)(code | 0x80)) == -value, "%s -%x", kind->name, code);
    }
    for (unsigned code = kind->nan; code < 0x80; code++)
        EXPECT(isnan(kind->widen((uint8_t)code)) && isnan(kind->widen((uint8_t)(code | 0x80))),
               "%s %x is no NaN", kind->name, code);
    EXPECT_EQ(kind->narrow(NAN), 0x7f);
}

/* Between neighbours the tie goes to the even one; past the largest nothing is larger. */
static void check_rounding(const struct kind *kind)
{
    for (unsigned low = 0; low < kind->top; low++) {
        float below = (float)value_of(kind, low), above = (float)value_of(kind, low + 1);
        float middle = (below + above) / 2;
        EXPECT_EQ(kind->narrow(middle), low + (low & 1));
        EXPECT_EQ(kind->narrow(nextafterf(middle, 0)), low);
        EXPECT_EQ(kind->narrow(nextafterf(middle, INFINITY)), low + 1);
        EXPECT_EQ(kind->narrow(-middle), (low + (low & 1)) | 0x80);
    }
    float large[] = {1.06f * (float)value_of(kind, kind->top), 65536, 0x1p100f, 0x1.fffffep127f,
                     INFINITY};
    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(kind->narrow(large[i]), kind->top);
        EXPECT_EQ(kind->narrow(-large[i]), kind->top | 0x80);
    }
    EXPECT_EQ(kind->narrow(0x1p-40f), 0);
    EXPECT_EQ(kind->narrow(-0x1p-140f), 0x80);
}

/* ---- sums ---- */

#define HEAD                                                                                       \
    ".reg .b64 %m,%o,%i; .reg .b32 %t,%r<4>; .reg .b16 %h<8>; .reg .b8 %b<8>; .reg .pred %p;"      \
    "ld.param.u64 %m,[a]; ld.param.u64 %o,[b]; mov.u32 %t,%tid.x;"

/* 16 bytes a lane of the first 512 of the copies, by `form` between ld_reduce and v4. */
static void reduce(const char *form, const char *type, const char *guard, uint64_t seed,
                   uint8_t *out)
{
    char body[1024];
    struct harness h = {.ranges = 1, .seed = seed, .param = {MULTICAST, (uintptr_t)out}};
    h.range[0] = (struct ptx_range){.begin = MULTICAST,
                                    .end = MULTICAST + BYTES,
                                    .kind = PTX_RANGE_MULTICAST,
                                    .writable = 1,
                                    .copies = COPIES};
    for (unsigned k = 0; k < COPIES; k++)
        h.range[0].copy[k] = copy[k];
    snprintf(body, sizeof body,
             "%s setp.ne.u32 %%p,%%t,7; mul.wide.u32 %%i,%%t,16; add.u64 %%m,%%m,%%i;"
             "add.u64 %%o,%%o,%%i;"
             "%s multimem.ld_reduce.relaxed.sys.global.%s.v4.%sx4 {%%r0,%%r1,%%r2,%%r3},[%%m];"
             "%s st.global.v4.b32 [%%o],{%%r0,%%r1,%%r2,%%r3};",
             HEAD, guard, form, type, guard);
    harness_ok(&h, "", body);
}

static uint8_t pick(unsigned copies, unsigned i)
{
    return (uint8_t)(i * 151 + copies * 89 + i / 7);
}

/* Any order of additions, each rounded to f16, of four numbers. */
static int is_a_sum(const struct kind *kind, const float *x, uint8_t got)
{
    for (unsigned order = 0; order < COPIES * COPIES * COPIES * COPIES; order++) {
        unsigned at[COPIES] = {order % 4, order / 4 % 4, order / 16 % 4, order / 64}, seen = 0;
        float sum = x[at[0]];
        for (unsigned k = 0; k < COPIES; k++)
            seen |= 1u << at[k];
        if (seen != 15) continue;
        for (unsigned k = 1; k < COPIES; k++)
            sum = f16_to_f32(f16_of_f32(sum + x[at[k]]));
        if (kind->narrow(sum) == got) return 1;
    }
    return 0;
}

static void check_sums(const struct kind *kind, const char *guard, uint64_t seed)
{
    uint8_t out[BYTES] __attribute__((aligned(16)));
    memset(out, 0x55, sizeof out);
    for (unsigned k = 0; k < COPIES; k++)
        for (unsigned i = 0; i < BYTES; i++)
            copy[k][i] = pick(k, i);
    reduce("add.acc::f16", kind->name, guard, seed, out);
    for (unsigned i = 0; i < BYTES; i++) {
        float x[COPIES];
        for (unsigned k = 0; k < COPIES; k++)
            x[k] = kind->widen(copy[k][i]);
        if (*guard && i / 16 == 7)
            EXPECT_EQ(out[i], 0x55);
        else
            EXPECT(is_a_sum(kind, x, out[i]), "%s, byte %u: %x of %g %g %g %g", kind->name, i,
                   out[i], x[0], x[1], x[2], x[3]);
    }
}

/* All bytes of copy k hold codes[k]. */
static uint8_t sum_of(const char *form, const char *type, const uint8_t codes[COPIES],
                      uint64_t seed)
{
    uint8_t out[BYTES] __attribute__((aligned(16))) = {0};
    for (unsigned k = 0; k < COPIES; k++)
        memset(copy[k], codes[k], BYTES);
    reduce(form, type, "", seed, out);
    for (unsigned i = 1; i < BYTES; i++)
        EXPECT(out[i] == out[0], "byte %u: %x, not %x", i, out[i], out[0]);
    return out[0];
}

static void test_rounding(void)
{
    static const uint8_t sixteen[] = {0x58, 0x38, 0x38, 0x38}, most[] = {0x7e, 0x7e, 0x7e, 0xfe};
    static const uint8_t nan[] = {0x38, 0x7f, 0x38, 0x38}, nothing[] = {0x80, 0x80, 0x80, 0x80};
    EXPECT_EQ(sum_of("add.acc::f16", "e4m3", sixteen, 1), 0x5a); /* 19, a tie: to 20 */
    EXPECT_EQ(sum_of("add", "e4m3", sixteen, 5) & 0xf8, 0x58);   /* in its own type at each step */
    EXPECT_EQ(sum_of("add.acc::f16", "e4m3", most, 1), 0x7e);
    EXPECT_EQ(sum_of("add.acc::f16", "e4m3", nan, 1), 0x7f);
    EXPECT_EQ(sum_of("add.acc::f16", "e4m3", nothing, 1), 0x80);
    EXPECT_EQ(sum_of("max", "e4m3", most, 1), 0x7e);
    EXPECT_EQ(sum_of("min", "e4m3", most, 1), 0xfe);
    EXPECT_EQ(sum_of("max", "e4m3", nan, 1), 0x38);
}

/* 57344 is the largest e5m2, but two of them are more than f16 has. */
static void test_overflow_on_the_way(void)
{
    static const uint8_t codes[] = {0x7b, 0x7b, 0xfb, 0xfb};
    unsigned zeros = 0, others = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        uint8_t sum = sum_of("add.acc::f16", "e5m2", codes, seed);
        zeros += sum == 0;
        others += sum != 0;
    }
    EXPECT(zeros && others, "%u zeros, %u others", zeros, others);
}

/* ---- what the parser takes ---- */

static int parses(const char *insn, char *error)
{
    struct ptx_module *module = NULL;
    char body[512];
    snprintf(body, sizeof body, "%s%s", HEAD, insn);
    char *text = harness_text("", body);
    int failed = ptx_module_parse(text, &module, error, HARNESS_ERROR);
    if (!failed) ptx_module_free(module);
    free(text);
    return !failed;
}

/* The combinations of .acc, vector and type that one instruction takes. */
static unsigned count_forms(const char *head, const char *const *accs, int is_load)
{
    static const char *const sizes[] = {"", "x2", "x4"}, *const registers[] = {"b", "h", "r"};
    unsigned taken = 0;
    char text[256], error[HARNESS_ERROR];
    for (; *accs; accs++)
        for (unsigned form = 0; form < 2 * 3 * 4; form++) {
            unsigned lanes = 1u << form % 4, size = form / 4 % 3, used = 0;
            char value[64], vector[8] = "";
            if (lanes > 1) snprintf(vector, sizeof vector, ".v%u", lanes);
            for (unsigned i = 0; i < lanes; i++)
                used += (unsigned)snprintf(value + used, sizeof value - used, "%s%%%s0",
                                           i           ? ","
                                           : lanes > 1 ? "{"
                                                       : "",
                                           registers[size]);
            snprintf(value + used, sizeof value - used, lanes > 1 ? "}" : "");
            snprintf(text, sizeof text, "multimem.%s%s%s.%s%s %s,%s;", head, *accs, vector,
                     form / 12 ? "e4m3" : "e5m2", sizes[size], is_load ? value : "[%m]",
                     is_load ? "[%m]" : value);
            taken += (unsigned)parses(text, error);
        }
    return taken;
}

static void test_forms(void)
{
    static const char *const accs[] = {"", ".acc::f16", ".acc::f32", NULL};
    EXPECT_EQ(count_forms("ld_reduce.relaxed.sys.add", accs, 1), 32);
    EXPECT_EQ(count_forms("ld_reduce.acquire.gpu.global.min", accs, 1), 16);
    EXPECT_EQ(count_forms("ld_reduce.weak.max", accs, 1), 16);
    EXPECT_EQ(count_forms("st.release.sys", accs, 0), 16);
    EXPECT_EQ(count_forms("red.relaxed.sys.add", accs, 0), 0);
    char error[HARNESS_ERROR];
    EXPECT(!parses("multimem.ld_reduce.add.acc::f16.f16x2 %r0,[%m];", error), "f16 in f16");
    EXPECT(!parses("ld.global.e4m3x4 %r0,[%o];", error), "a load of e4m3x4");
    EXPECT(!parses(".reg .e5m2x4 %q;", error), "a register of e5m2x4");
}

static void test_targets(void)
{
    static const struct {
        const char *target;
        int has;
        unsigned runs_on, not_on; /* compute capabilities */
    } rows[] = {
        {".version 8.6\n.target sm_100a", 1, 100, 103},
        {".version 8.5\n.target sm_100a", 0, 0, 0},
        {".version 8.8\n.target sm_100f", 1, 103, 101},
        {".version 8.8\n.target sm_100f", 1, 100, 120},
        {".version 8.7\n.target sm_100f", 0, 0, 0},
        {".version 8.8\n.target sm_103a", 1, 103, 100},
        {".version 8.8\n.target sm_103f", 1, 103, 100},
        {".version 9.0\n.target sm_110f", 1, 110, 100},
        {".version 8.7\n.target sm_120a", 1, 120, 121},
        {".version 8.8\n.target sm_120f", 0, 0, 0},
        {".version 8.8\n.target sm_121a", 1, 121, 120},
        {".version 9.0\n.target sm_100", 0, 0, 0},
        {".version 8.8\n.target sm_90a", 0, 0, 0},
        {".version 8.8\n.target sm_100b", 0, 0, 0},
        {".version 8.8\n.target sm_100af", 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ptx_module *module = NULL;
        char error[HARNESS_ERROR] = "";
        harness_target = rows[i].target;
        char *text = harness_text("", HEAD "multimem.ld_reduce.add.acc::f16.e4m3x4 %r0,[%m]; ret;");
        int parsed = ptx_module_parse(text, &module, error, sizeof error) == 0;
        free(text);
        EXPECT(parsed == rows[i].has, "%s: %s", rows[i].target, error);
        if (!parsed) {
            EXPECT_HAS(error, strstr(rows[i].target, "sm_100b") || strstr(rows[i].target, "af")
                                  ? "target 'sm_100"
                                  : "needs .target sm_100a and .version 8.6");
            continue;
        }
        EXPECT(ptx_module_runs_on(module, rows[i].runs_on), "%s", rows[i].target);
        EXPECT(!ptx_module_runs_on(module, rows[i].not_on), "%s", rows[i].target);
        ptx_module_free(module);
    }
}

int main(void)
{
    check_codes(&e4m3);
    check_codes(&e5m2);
    check_rounding(&e4m3);
    check_rounding(&e5m2);
    test_targets();
    harness_target = ".version 8.6\n.target sm_100a";
    for (uint64_t seed = 0; seed < 8; seed++) {
        check_sums(&e4m3, seed & 1 ? "@%p" : "", seed);
        check_sums(&e5m2, seed & 1 ? "@%p" : "", seed);
    }
    test_rounding();
    test_overflow_on_the_way();
    test_forms();
    return unit_end();
}
