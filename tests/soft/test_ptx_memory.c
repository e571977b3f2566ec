/* Memory in the PTX interpreter: widths, vectors, state spaces, parameters, atomics, address
 * forms, order, and faults. */
#include "ptx_harness.h"

#define HEAD                                                                                       \
    ".reg .b64 %a,%b,%i,%d,%e; .reg .b32 %t,%x,%y,%z,%w; .reg .b16 %h; .reg .pred %p;"             \
    "ld.param.u64 %a,[a]; ld.param.u64 %b,[b]; mov.u32 %t,%tid.x;"

static void run(struct harness *h, void *a, void *b, const char *before, const char *insn)
{
    char body[2048];
    h->param[0] = (uintptr_t)a;
    h->param[1] = (uintptr_t)b;
    snprintf(body, sizeof body, "%s%s", HEAD, insn);
    harness_run(h, before, body);
}

static void ok(void *a, void *b, const char *before, const char *insn)
{
    struct harness h = {0};
    run(&h, a, b, before, insn);
    EXPECT(h.outcome == PTX_DONE, "%s: %s", insn, h.error);
}

/* ---- loads and stores ---- */

static void test_widths(void)
{
    uint8_t in[64] __attribute__((aligned(16)));
    uint64_t out[32];
    for (unsigned i = 0; i < 64; i++)
        in[i] = (uint8_t)(0xf0 + i);
    ok(in, out, "",
       "ld.global.s8 %x,[%a+1]; st.global.u32 [%b],%x; ld.global.u8 %x,[%a+1];"
       "st.global.u32 [%b+4],%x; ld.global.s16 %d,[%a+2]; st.global.u64 [%b+8],%d;"
       "ld.b16 %h,[%a+4]; st.b16 [%b+16],%h; ld.global.nc.u64 %d,[%a+8];"
       "st.global.wt.u64 [%b+24],%d; st.global.u8 [%b+18],%x; st.u8 [%b+19],0;"
       "st.global.u32 [%b+20],-1;");
    EXPECT(out[0] == 0x000000f1fffffff1, "%llx", (unsigned long long)out[0]);
    EXPECT(out[1] == 0xfffffffffffff3f2, "%llx", (unsigned long long)out[1]);
    EXPECT(out[2] == 0xffffffff00f1f5f4, "%llx", (unsigned long long)out[2]);
    EXPECT(out[3] == 0xfffefdfcfbfaf9f8, "%llx", (unsigned long long)out[3]);
}

/* v4 of 32 bits and v2 of 64, in order and scattered, whole warps and single lanes */
static void test_vectors(void)
{
    static uint32_t in[256] __attribute__((aligned(64))), out[256] __attribute__((aligned(64)));
    for (unsigned i = 0; i < 256; i++)
        in[i] = i * 3, out[i] = 0;
    ok(in, out, "",
       "mul.wide.u32 %i,%t,16; add.u64 %a,%a,%i; add.u64 %b,%b,%i;"
       "ld.global.cs.L1::no_allocate.L2::128B.v4.u32 {%x,%y,_,%w},[%a]; mov.u32 %z,9;"
       "st.global.v4.b32 [%b],{%w,%z,%y,%x};"
       "setp.eq.u32 %p,%t,4; @%p ld.volatile.global.v2.u64 {%d,%e},[%a]; @%p st.global.v2.b64 "
       "[%b+512],{%e,%d};");
    for (unsigned i = 0; i < 128; i += 4)
        EXPECT(out[i] == in[i + 3] && out[i + 1] == 9 && out[i + 2] == in[i + 1] &&
                   out[i + 3] == in[i],
               "%u: %u %u %u %u", i, out[i], out[i + 1], out[i + 2], out[i + 3]);
    EXPECT(out[128 + 16] == in[18] && out[128 + 19] == in[17] && out[128 + 20] == 0, "single lane");
    ok(in, out, "",
       "xor.b32 %x,%t,5; mul.wide.u32 %i,%x,16; add.u64 %a,%a,%i; mul.wide.u32 %i,%t,16; add.u64 "
       "%b,%b,%i;"
       "ld.relaxed.sys.global.v4.u32 {%x,%y,%z,%w},[%a]; st.relaxed.sys.global.v4.u32 "
       "[%b],{%x,%y,%z,%w};");
    for (unsigned i = 0; i < 128; i++)
        EXPECT(out[i] == in[i ^ 20], "scattered %u: %u", i, out[i]);
}

static void test_address_forms(void)
{
    uint32_t words[8] = {10, 11, 12, 13, 14, 15, 16, 17}, out[4];
    ok(words, out, "",
       "add.u64 %a,%a,16; ld.global.u32 %x,[%a+-8]; ld.global.u32 %y,[%a]; ld.global.u32 "
       "%z,[%a+0x4];"
       "st.global.u32 [%b],%x; st.global.u32 [%b+4],%y; st.global.u32 [%b+8],%z;");
    EXPECT(out[0] == 12 && out[1] == 14 && out[2] == 15, "%u %u %u", out[0], out[1], out[2]);
}

/* ---- state spaces ---- */

static void test_params(void)
{
    static const char text[] =
        ".version 7.0 .target sm_80 .address_size 64\n"
        ".visible .entry k(.param .u32 first, .param .align 8 .b8 args[64], .param .f32 last)"
        " .maxntid 64, 2 .minnctapersm 1 { .reg .b64 %p,%v,%o,%i; .reg .b32 %x,%t; .reg .f32 %f;"
        " ld.param.u64 %o,[args+8]; mov.b64 %p, args; ld.param.u64 %v,[%p+16];"
        " mov.u32 %t,%tid.x; and.b32 %x,%t,3; mul.wide.u32 %i,%x,8; add.u64 %p,%p,%i;"
        " ld.param.u64 %v,[%p+16]; mul.wide.u32 %i,%t,8; add.u64 %o,%o,%i; ld.param.u32 %x,[first];"
        " ld.param.f32 %f,[last]; st.global.u64 [%o],%v; st.global.u32 [%o+4],%x; ret; }";
    struct ptx_module *module = NULL;
    char error[HARNESS_ERROR];
    int failed = ptx_module_parse(text, &module, error, sizeof error);
    EXPECT(!failed, "%s", error);
    if (failed) return;
    const struct ptx_kernel_info *info = ptx_kernel_info(ptx_module_kernel(module, "k"));
    EXPECT(info->params == 3 && info->param_offset[1] == 8 && info->param_size[1] == 64, "layout");
    EXPECT(info->param_offset[2] == 72 && info->param_bytes == 76 && info->max_threads == 128,
           "layout");
    uint64_t out[32] = {0}, block[10] = {7, 0, (uintptr_t)out, 100, 101, 102, 103};
    struct harness h = {0};
    struct ptx_launch launch = {.kernel = ptx_module_kernel(module, "k"),
                                .grid = {1, 1, 1},
                                .block = {32, 1, 1},
                                .params = block,
                                .multiprocessors = 1,
                                .threads_per_multiprocessor = 64,
                                .memory = {&h, harness_range}};
    EXPECT(ptx_run(&launch, NULL, error, sizeof error) == PTX_DONE, "%s", error);
    for (unsigned i = 0; i < 32; i++)
        EXPECT(out[i] == (7ull << 32 | (100 + i % 4)), "%u: %llx", i, (unsigned long long)out[i]);
    EXPECT(!ptx_module_kernel(module, "other"), "a kernel that is not there");
    ptx_module_free(module);
}

static void test_spaces(void)
{
    uint32_t out[8];
    struct harness h = {.shared_bytes = 64};
    run(&h, out, out,
        ".global .align 8 .u32 table[4] = {5, 6, -7, 8}; .const .f32 half = 0.5; .global .u32 "
        "single = 3;"
        ".extern .shared .align 16 .b8 dynamic[];",
        ".shared .u32 fixed[4]; .local .align 8 .b8 mine[16]; setp.ne.u32 %p,%t,0;"
        "st.local.u32 [mine+4],%t; ld.local.u32 %x,[mine+4]; sub.u32 %x,%x,%t; @%p exit;"
        "st.global.u32 [%a],%x; mov.u64 %d,table; ld.global.u32 %x,[%d+8]; st.global.u32 [%a+4],%x;"
        "ld.global.u32 %x,[table+4]; ld.global.u32 %y,[single]; add.u32 %x,%x,%y; st.global.u32 "
        "[%a+8],%x;"
        "ld.const.b32 %x,[half]; st.global.u32 [%a+12],%x;"
        "st.shared.u32 [fixed+8],21; st.shared.u32 [dynamic+60],22; mov.u64 %d,fixed; "
        "cvta.shared.u64 %e,%d;"
        "ld.u32 %x,[%e+8]; isspacep.shared %p,%e; @%p add.u32 %x,%x,100; isspacep.global %p,%e; "
        "@%p add.u32 %x,%x,200;"
        "isspacep.global %p,%a; @%p add.u32 %x,%x,400; st.global.u32 [%a+16],%x;"
        "cvta.to.shared.u64 %e,%e; sub.u64 %e,%e,%d; cvt.u32.u64 %x,%e; st.global.u32 [%a+20],%x;"
        "mov.u32 %y,dynamic; ld.shared.u32 %x,[%y+60]; mov.u32 %z,fixed; sub.u32 %y,%y,%z; add.u32 "
        "%x,%x,%y;"
        "st.global.u32 [%a+24],%x; cvta.local.u64 %e,0; st.u32 [%e+8],9; ld.local.u32 %x,[mine+8]; "
        "st.u32 [%a+28],%x;");
    EXPECT(h.outcome == PTX_DONE, "%s", h.error);
    static const uint32_t expect[8] = {0, (uint32_t)-7, 9, 0x3f000000, 521, 0, 22 + 16, 9};
    for (unsigned i = 0; i < 8; i++)
        EXPECT(out[i] == expect[i], "%u: %x, not %x", i, out[i], expect[i]);
}

/* ---- atomics ---- */

/* 64 threads apply `insn` to the word at %a, with %t and %x = 3 at hand. */
static void atomic(const char *insn, uint64_t start, uint64_t expect)
{
    uint64_t word = start, out[64];
    struct harness h = {.block = 64};
    char body[512];
    snprintf(body, sizeof body, "mov.u32 %%x,3; mov.u64 %%d,3; mov.b16 %%h,0x3c00; %s", insn);
    run(&h, &word, out, "", body);
    EXPECT(h.outcome == PTX_DONE && word == expect, "%s: %llx, not %llx (%s)", insn,
           (unsigned long long)word, (unsigned long long)expect, h.error);
}

static void test_atomics(void)
{
    uint64_t out[1] = {0}, word = 40;
    atomic("red.relaxed.gpu.global.add.u32 [%a],%x;", 1, 193);
    atomic("atom.global.add.u64 %d,[%a],3;", 1, 193);
    atomic("atom.add.s32 %y,[%a],-1;", 64, 0);
    atomic("red.release.sys.global.add.u64 [%a],1;", 1ull << 32, (1ull << 32) + 64);
    atomic("atom.acq_rel.sys.global.inc.u32 %y,[%a],9;", 0, 4);
    atomic("red.global.dec.u32 [%a],9;", 0, 6);
    atomic("red.global.min.s32 [%a],-5;", 7, 0xfffffffb);
    atomic("red.global.max.u32 [%a],%t;", 7, 63);
    atomic("red.global.max.u64 [%a],%d;", 7, 7);
    atomic("red.global.and.b32 [%a],6;", 3, 2);
    atomic("red.global.or.b32 [%a],%t;", 0, 63);
    atomic("atom.xor.b64 %d,[%a],1;", 5, 5);
    atomic("atom.exch.b32 _,[%a],7;", 1, 7);
    atomic("red.global.add.f32 [%a],0f3F800000;", 0x3f800000, 0x42820000);
    atomic("red.global.add.f64 [%a],0d3FF0000000000000;", 0, 0x4050000000000000);
    atomic("mov.b32 %x,0x3c000000; red.global.add.noftz.f16x2 [%a],%x;", 0x00003c00, 0x54003c00);
    atomic("mov.b32 %x,0x3f803f80; atom.global.add.noftz.bf16x2 %y,[%a],%x;", 0, 0x42804280);
    atomic("atom.add.noftz.f16 %h,[%a+2],%h;", 0, 0x54000000);
    atomic("L: ld.relaxed.gpu.u32 %y,[%a]; add.u32 %z,%y,1; atom.cas.b32 %w,[%a],%y,%z;"
           "setp.ne.u32 %p,%w,%y; @%p bra L;",
           0, 64);
    ok(&word, out, "",
       "setp.eq.u32 %p,%t,7; @%p atom.acquire.sys.global.cas.b64 %d,[%a],40,41;"
       "@%p st.global.u64 [%b],%d;");
    EXPECT(word == 41 && out[0] == 40, "cas: %llu %llu", (unsigned long long)word,
           (unsigned long long)out[0]);
}

static void test_shared_atomics(void)
{
    uint32_t out = 0;
    struct harness h = {.block = 128};
    run(&h, &out, &out, "",
        ".shared .u32 n; setp.eq.u32 %p,%t,0; @%p st.shared.u32 [n],5; bar.sync 0;"
        "atom.shared.add.u32 %x,[n],2; bar.sync 0; @!%p exit; ld.shared.u32 %x,[n]; st.global.u32 "
        "[%a],%x;");
    EXPECT(h.outcome == PTX_DONE && out == 261, "%u %s", out, h.error);
}

/* Fences and hints are taken for what they are. */
static void test_fences(void)
{
    uint32_t word = 0;
    ok(&word, &word, "",
       "fence.acq_rel.sys; fence.sc.sys; fence.release.sys; fence.acquire.gpu; fence.sc.cta;"
       "fence.proxy.alias; fence.proxy.async.global; fence.proxy.async; membar.gl; membar.sys; "
       "membar.cta;"
       "prefetch.global.L2 [%a]; prefetchu.L1 [%a]; griddepcontrol.wait; "
       "griddepcontrol.launch_dependents;"
       "nanosleep.u32 20; st.global.u32 [%a],1;");
    EXPECT(word == 1, "%u", word);
}

/* ---- faults ---- */

static void expect(const char *insn, enum ptx_outcome outcome, const char *message)
{
    uint32_t words[64] __attribute__((aligned(64))) = {0};
    struct harness h = {.ranges = 2};
    h.range[0] =
        (struct ptx_range){.begin = 1ull << 40, .end = 1ull << 41, .kind = PTX_RANGE_FAULT};
    h.range[1] = (struct ptx_range){
        .begin = (uintptr_t)&words[32], .end = (uintptr_t)&words[64], .kind = PTX_RANGE_PLAIN};
    run(&h, words, words, "", insn);
    EXPECT(h.outcome == outcome && strstr(h.error, message), "%s: outcome %d, %s", insn,
           (int)h.outcome, h.error);
}

static void test_faults(void)
{
    expect("ld.global.u32 %x,[%a+2];", PTX_MISALIGNED, "4");
    expect("ld.global.v4.u32 {%x,%y,%z,%w},[%a+4];", PTX_MISALIGNED, "16");
    expect("atom.global.add.u64 %d,[%a+4],1;", PTX_MISALIGNED, "8");
    expect("mov.u64 %d,0x10000000000; ld.global.u32 %x,[%d];", PTX_BAD_ADDRESS, "not accessible");
    expect("mov.u64 %d,0x10000000000; setp.eq.u32 %p,%t,9; @%p st.global.u32 [%d],1;",
           PTX_BAD_ADDRESS, "0x10000000000");
    expect("ld.global.u32 %x,[%a+128];", PTX_DONE, "");
    expect("st.global.u32 [%a+128],1;", PTX_BAD_ADDRESS, "read-only");
    expect("mul.wide.u32 %i,%t,4; add.u64 %a,%a,%i; st.global.u32 [%a+4],1;", PTX_BAD_ADDRESS,
           "read-only");
    expect("mov.u64 %d,16; ld.u32 %x,[%d];", PTX_BAD_ADDRESS, "null");
    expect(".shared .u32 s[4]; ld.shared.u32 %x,[s+16];", PTX_BAD_ADDRESS, "past");
    expect(".local .u32 l[4]; mov.u32 %x,-4; st.local.u32 [%x],1;", PTX_BAD_ADDRESS, "past");
    expect(".shared .u32 s[4]; ld.shared.u32 %x,[s+2];", PTX_MISALIGNED, "4");
    expect("mov.u64 %d,4096; ld.param.u32 %x,[%d];", PTX_BAD_ADDRESS, "past");
}

int main(void)
{
    test_widths();
    test_vectors();
    test_address_forms();
    test_params();
    test_spaces();
    test_atomics();
    test_shared_atomics();
    test_fences();
    test_faults();
    return unit_end();
}
