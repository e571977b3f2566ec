/* What the PTX parser accepts, what it refuses, and that it says where. */
#include "ptx_harness.h"

#define HEAD ".version 8.2\n.target sm_90\n.address_size 64\n"

static int parse(const char *text, char *error)
{
    struct ptx_module *module = NULL;
    int failed = ptx_module_parse(text, &module, error, HARNESS_ERROR);
    if (!failed) ptx_module_free(module);
    return failed;
}

/* The body of a kernel with some registers declared on line 5; the body begins on line 6. */
static void refused(const char *body, int line, const char *message)
{
    char text[2048], error[HARNESS_ERROR] = "", where[32];
    snprintf(
        text, sizeof text,
        HEAD
        ".entry t(.param .u64 a)\n{ .reg .b32 %%r<8>; .reg .b64 %%d<4>; .reg .f32 %%f<4>; .reg "
        ".pred %%p<4>; .reg .b16 %%h<4>; .shared .u32 s[4];\n%s\n}\n",
        body);
    snprintf(where, sizeof where, "line %d: ", line);
    int failed = parse(text, error);
    EXPECT(failed == -1 && !strncmp(error, where, strlen(where)) && strstr(error, message),
           "'%s': %d, \"%s\", due \"%s…%s\"", body, failed, error, where, message);
}

static void test_refused_instructions(void)
{
    refused("frobnicate.u32 %r0,%r1;", 6, "frobnicate.u32");
    refused("add.u32 %r0,%r1,%r2;\nadd.u33 %r0,%r1,%r2;", 7, "add.u33");
    refused("\n\nadd.u32 %r0,%r1;", 8, "2 operands");
    refused("add.u32 %r0,%r1,%r2,%r3;", 6, "4 operands");
    refused("add.u32 %r0,%r1,%x;", 6, "'%x' is not declared");
    refused("add.u32 %r0,%r1,%r8;", 6, "'%r8' is not declared");
    refused("add.u32 %r0,%r1,%r01;", 6, "%r01");
    refused("add.u32 %x,%r1,%r1;", 6, "not a declared register");
    refused("add.u32 %r0,%r1,%d1;", 6, "'%d1' is not a .u32");
    refused("add.u64 %r0,%d1,%d1;", 6, "'%r0' is not a .u64");
    refused("add.f32 %f0,%f1,1;", 6, "'1' is not a .f32");
    refused("add.u32 %f0,%f1,%f1;", 6, "'%f1' is not a .u32");
    refused("add.u32 %r0,%p1,%r1;", 6, "'%p1' is not a .u32");
    refused("add.u32 3,%r1,%r1;", 6, "not a declared register");
    refused("add.u32 %r0,%r1,0x1ffffffff;", 6, "does not fit");
    refused("add.u16 %h0,%h1,70000;", 6, "does not fit");
    refused("add.rn.u32 %r0,%r1,%r2;", 6, "add.rn.u32");
    refused("add.ftz.f64 %d0,%d1,%d1;", 6, "add.ftz.f64");
    refused("add.ftz.ftz.f32 %f0,%f1,%f1;", 6, "add.ftz.ftz.f32");
    refused("add.f32.rn %f0,%f1,%f1;", 6, "add.f32.rn");
    refused("fma.f32 %f0,%f1,%f1,%f1;", 6, "fma.f32");
    refused("fma.rz.bf16x2 %r0,%r1,%r1,%r1;", 6, "fma.rz.bf16x2");
    refused("div.f32 %f0,%f1,%f1;", 6, "div.f32");
    refused("mov.u32 %r0,%f0,%f1;", 6, "3 operands");
    refused("mov.b64 %d0,{%r0,%r1,%r2};", 6, "mov.b64");
    refused("mov.u32 %r0,!%r1;", 6, "'!'");
    refused("selp.b32 %r0,%r1,%r2,%r3;", 6, "'%r3' is not a .pred");
    refused("setp.foo.u32 %p0,%r1,%r2;", 6, "setp.foo.u32");
    refused("setp.lo.s32 %p0,%r1,%r2;", 6, "setp.lo.s32");
    refused("setp.eq.and.u32 %p0,%r1,%r2;", 6, "3 operands");
    refused("cvt.f32.s32 %f0,%r0;", 6, "cvt.f32.s32");
    refused("cvt.rn.s32.f32 %r0,%f0;", 6, "cvt.rn.s32.f32");
    refused("cvt.rn.f64.f32 %d0,%f0;", 6, "cvt.rn.f64.f32");
    refused("cvt.f32.f64 %f0,%d0;", 6, "cvt.f32.f64");
    refused("cvt.rn.bf16x2.f32 %r0,%f0;", 6, "2 operands");
    refused("lop3.b32 %r0,%r1,%r2,%r3,%r4;", 6, "must be a number");
}

static void test_refused_memory(void)
{
    refused("ld.global.u32 %r0,%d0;", 6, "not an [address]");
    refused("ld.global.u32 %r0,[%r1];", 6, "'%r1' is not a .u64");
    refused("ld.global.u64 %r0,[%d1];", 6, "'%r0' is not a .u64");
    refused("ld.acquire.global.u32 %r0,[%d1];", 6, "ld.acquire.global.u32");
    refused("ld.release.sys.global.u32 %r0,[%d1];", 6, "ld.release");
    refused("ld.global.v4.u64 {%d0,%d1,%d2,%d3},[%d1];", 6, "ld.global.v4.u64");
    refused("ld.global.v2.u32 %r0,[%d1];", 6, "not a vector of 2");
    refused("ld.global.v2.u32 {%r0,%r1,%r2},[%d1];", 6, "not a vector of 2");
    refused("ld.global.u32 %r0,[a];", 6, "not in this state space");
    refused("ld.global.u32 %r0,[nothing];", 6, "'nothing' is not declared");
    refused("ld.global.u32 %r0,[%d0 - 4];", 6, "']' is due");
    refused("ld.param.u64 %d0,[a+8];", 6, "outside the parameters");
    refused("ld.global.sometimes.u32 %r0,[%d1];", 6, "sometimes");
    refused("st.const.u32 [%d1],%r0;", 6, "st.const.u32");
    refused("st.param.u64 [a],%d0;", 6, "st.param.u64");
    refused("st.global.u32 [%d1],{%r0,%r1};", 6, "not a vector of 1");
    refused("atom.global.add.b32 %r0,[%d1],1;", 6, "atom.global.add.b32");
    refused("atom.global.cas.u32 %r0,[%d1],1,2;", 6, "atom.global.cas.u32");
    refused("atom.global.cas.b32 %r0,[%d1],1;", 6, "3 operands");
    refused("atom.add.f16 %h0,[%d1],%h1;", 6, "atom.add.f16");
    refused("red.global.exch.b32 [%d1],1;", 6, "red.global.exch");
    refused("red.acquire.sys.global.add.u32 [%d1],1;", 6, "red.acquire");
    refused("red.async.release.global.gpu.add.u32 [%d1],1;", 6, "red.async");
    refused("fence.sc;", 6, "fence.sc");
    refused("fence.proxy.tensormap;", 6, "fence.proxy.tensormap");
    refused("cp.async.bulk.global.shared::cta.bulk_group [%d0],[s],16;", 6, "cp.async.bulk");
    refused("mbarrier.init.shared.b64 [s],1;", 6, "mbarrier");
    refused("barrier.cluster.arrive;", 6, "barrier.cluster");
}

static void test_refused_statements(void)
{
    refused("bra NOWHERE;", 6, "no label 'NOWHERE'");
    refused("bra L; { L: }", 6, "no label 'L'");
    refused("L: ret; L: ret;", 6, "stands twice");
    refused("@%r0 ret;", 6, "not a declared predicate");
    refused(".reg .b32 %r<3>;", 6, "declared twice");
    refused(".reg .b99 %q;", 6, "no type '.b99'");
    refused("{ .reg .b32 %in; } mov.u32 %in,1;", 6, "'%in' is not a declared");
    refused("ret", 7, "an operand is due");
    refused("/* no end", 6, "comment without an end");
    refused("mov.f32 %f0,0f3F80;", 6, "8 hexadecimal digits");
    refused("shfl.bfly.b32 %r0,%r1,1,31;", 6, "shfl.bfly");
    refused("vote.sync.all.b32 %r0,%p0,-1;", 6, "vote.sync.all");
    refused("bar.sync;", 6, "0 operands");
    refused("bar.arrive 1;", 6, "1 operands");
    refused("add.u32 %r0,%r1,%laneid.x;", 6, "%laneid.x");
    refused("mov.u64 %d0,%tid.x;", 6, "'%tid.x' is not a .u64");
    refused("call f;", 6, "call");
}

static void module_refused(const char *text, const char *message)
{
    char error[HARNESS_ERROR] = "";
    int failed = parse(text, error);
    EXPECT(failed == -1 && strstr(error, message), "'%s': %d, \"%s\"", text, failed, error);
}

static void test_refused_modules(void)
{
    module_refused("", "line 1: '.version' is due");
    module_refused(".version 8.2\n.target sm_90\n.address_size 32\n", "64-bit");
    module_refused(HEAD "\n.func f() { ret; }", "line 5: functions");
    module_refused(HEAD ".visible .func f() { ret; }", "functions");
    module_refused(HEAD ".entry t() { ret; ", "'}' is due");
    module_refused(HEAD ".entry t() { ret; }\n.entry t() { ret; }",
                   "line 5: kernel 't' stands twice");
    module_refused(HEAD ".entry t() .maxntid 32 .reqntid 32 { ret; }", "exclude");
    module_refused(HEAD ".entry t() .maxntid 2048 { ret; }", "threads");
    module_refused(HEAD ".entry t() .cluster 2 { ret; }", "unknown directive");
    module_refused(HEAD ".entry t(.reg .u32 x) { ret; }", "'.param' is due");
    module_refused(HEAD ".global .u32 x[2] = {1,2,3};", "more values");
    module_refused(HEAD ".texref x;", "unknown directive");
    module_refused(".version 8.2 .target sm_80 .address_size 64 .entry t() { .reg .b64 %m;\n"
                   "multimem.st.u32 [%m],1; }",
                   "line 2: multimem.st.u32 needs .target sm_90");
    module_refused(
        ".version 8.1 .target sm_90 .address_size 64 .entry t() { .reg .b64 %m; .reg .b32 %r;\n"
        "multimem.ld_reduce.add.acc::f32.bf16x2 %r,[%m]; }",
        ".version 8.2");
    module_refused(".version 7.1 .target sm_80 .address_size 64 .entry t() { .reg .b32 %r;\n"
                   "add.bf16x2 %r,%r,%r; }",
                   "sm_90");
}

/* The text that a preprocessor leaves: many statements on a line, comments, odd spacing. */
static void test_accepted(void)
{
    char error[HARNESS_ERROR] = "";
    EXPECT(!parse(HEAD "// nothing but a comment\n/* and\nanother */", error), "%s", error);
    EXPECT(!parse(HEAD ".visible .entry $a_b(){ret;}.entry c(.param .u64 .ptr .global .align 16 p)"
                       ".maxntid 1024,1,1\n.minnctapersm 1{.reg .pred p;.reg.b32 %mc,b;L:\n"
                       ".pragma \"nounroll\";mov.u32 b,%tid.x;setp.eq.u32 p,b,0;@!p bra.uni L;"
                       "{.reg .b32 b;L:mov.u32 b,1;@p bra L;}@p exit;trap;}",
                  error),
           "%s", error);
    EXPECT(!parse(HEAD ".entry k(){ { { bra OUT; } OUT: } { bra END; } END: ret; }", error), "%s",
           error);
    EXPECT(ptx_opcode_count() > 400, "%u forms", ptx_opcode_count());
}

int main(void)
{
    test_refused_instructions();
    test_refused_memory();
    test_refused_statements();
    test_refused_modules();
    test_accepted();
    return unit_end();
}
