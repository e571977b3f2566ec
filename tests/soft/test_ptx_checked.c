/* Litmus tests of checked mode: two kernels of one thread each, on one GPU or on two, stepped in a
 * random order. A weak outcome that PTX forbids must never be seen; one that it allows, and that a
 * missing order would lead to, must be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/soft/ptx.h"
#include "../unit/unit.h"

enum { RUNS = 3000, SEEN_AT_LEAST = 10 };

/* [a], [b]: two places; [m], [n]: the same through the switch; r1, r2 go to the thread's results.
 */
struct litmus {
    const char *name;
    const char *left, *right;
    int near; /* both on one GPU */
    /* results of left and right that are the weak outcome; -1: any */
    int left1, left2, right1, right2;
    int allowed;
};

static const struct litmus tests[] = {
    {"messages", "st.relaxed.sys.u32 [a], 1; st.release.sys.u32 [b], 1;",
     "ld.acquire.sys.u32 r1, [b]; ld.relaxed.sys.u32 r2, [a];", 0, -1, -1, 1, 0, 0},
    {"messages without .release", "st.relaxed.sys.u32 [a], 1; st.relaxed.sys.u32 [b], 1;",
     "ld.acquire.sys.u32 r1, [b]; ld.relaxed.sys.u32 r2, [a];", 0, -1, -1, 1, 0, 1},
    {"messages without .acquire", "st.relaxed.sys.u32 [a], 1; st.release.sys.u32 [b], 1;",
     "ld.relaxed.sys.u32 r1, [b]; ld.relaxed.sys.u32 r2, [a];", 0, -1, -1, 1, 0, 1},
    {"messages by fences", "st.u32 [a], 1; fence.acq_rel.sys; st.relaxed.sys.u32 [b], 1;",
     "ld.relaxed.sys.u32 r1, [b]; fence.acq_rel.sys; ld.u32 r2, [a];", 0, -1, -1, 1, 0, 0},
    {"messages to another GPU at .gpu",
     "st.relaxed.sys.u32 [a], 1; fence.acq_rel.gpu; st.relaxed.sys.u32 [b], 1;",
     "ld.acquire.sys.u32 r1, [b]; ld.relaxed.sys.u32 r2, [a];", 0, -1, -1, 1, 0, 1},
    {"messages from another GPU at .gpu", "st.relaxed.sys.u32 [a], 1; st.release.sys.u32 [b], 1;",
     "ld.acquire.gpu.u32 r1, [b]; ld.relaxed.sys.u32 r2, [a];", 0, -1, -1, 1, 0, 1},
    {"messages on one GPU at .gpu", "st.relaxed.gpu.u32 [a], 1; st.release.gpu.u32 [b], 1;",
     "ld.acquire.gpu.u32 r1, [b]; ld.relaxed.gpu.u32 r2, [a];", 1, -1, -1, 1, 0, 0},
    {"messages on one GPU at .cta", "st.relaxed.gpu.u32 [a], 1; st.release.cta.u32 [b], 1;",
     "ld.acquire.gpu.u32 r1, [b]; ld.relaxed.gpu.u32 r2, [a];", 1, -1, -1, 1, 0, 1},
    {"messages by atomics", "st.u32 [a], 1; atom.acq_rel.gpu.global.inc.u32 r1, [b], 9;",
     "atom.acq_rel.gpu.global.inc.u32 r1, [b], 9; ld.u32 r2, [a];", 1, -1, -1, 1, 0, 0},
    {"messages by atomics without order",
     "st.u32 [a], 1; atom.relaxed.gpu.global.inc.u32 r1, [b], 9;",
     "atom.relaxed.gpu.global.inc.u32 r1, [b], 9; ld.u32 r2, [a];", 1, -1, -1, 1, 0, 1},
    {"store buffers", "st.relaxed.sys.u32 [a], 1; ld.relaxed.sys.u32 r1, [b];",
     "st.relaxed.sys.u32 [b], 1; ld.relaxed.sys.u32 r1, [a];", 0, 0, -1, 0, -1, 1},
    {"store buffers with fence.sc",
     "st.relaxed.sys.u32 [a], 1; fence.sc.sys; ld.relaxed.sys.u32 r1, [b];",
     "st.relaxed.sys.u32 [b], 1; fence.sc.sys; ld.relaxed.sys.u32 r1, [a];", 0, 0, -1, 0, -1, 0},
    {"coherence of loads", "st.relaxed.sys.u32 [a], 1;",
     "ld.relaxed.sys.u32 r1, [a]; ld.relaxed.sys.u32 r2, [a];", 0, -1, -1, 1, 0, 0},
    {"a vector stored, its first half alone", "mov.u32 r1, 1; st.relaxed.sys.v2.u32 [a], {r1, r1};",
     "ld.relaxed.sys.v2.u32 {r1, r2}, [a];", 0, -1, -1, 1, 0, 1},
    {"a vector stored, its second half alone",
     "mov.u32 r1, 1; st.relaxed.sys.v2.u32 [a], {r1, r1};", "ld.relaxed.sys.v2.u32 {r1, r2}, [a];",
     0, -1, -1, 0, 1, 1},
    {"a vector's halves behind an acquire",
     "mov.u32 r1, 1; st.relaxed.sys.v2.u32 [a], {r1, r1}; st.release.sys.u32 [b], 1;",
     "ld.acquire.sys.u32 r1, [b]; setp.eq.u32 p, r1, 0; ld.relaxed.sys.v2.u32 {r1, r2}, [a]; "
     "@p mov.u32 r2, 1;",
     0, -1, -1, -1, 0, 0},
    {"a thread's own store", "st.relaxed.sys.u32 [a], 1; ld.relaxed.sys.u32 r1, [a];", "", 0, 0, -1,
     -1, -1, 0},
    {"aliases", "st.u32 [a], 1; fence.proxy.alias; st.release.sys.u32 [b], 1;",
     "ld.acquire.sys.u32 r1, [b]; multimem.ld_reduce.relaxed.sys.global.add.u32 r2, [m];", 0, -1,
     -1, 1, 0, 0},
    {"aliases without a fence", "st.u32 [a], 1; st.release.sys.u32 [b], 1;",
     "ld.acquire.sys.u32 r1, [b]; multimem.ld_reduce.relaxed.sys.global.add.u32 r2, [m];", 0, -1,
     -1, 1, 0, 1},
    {"aliases, the reader's fence", "st.u32 [a], 1; st.release.sys.u32 [b], 1;",
     "ld.acquire.sys.u32 r1, [b]; fence.proxy.alias; "
     "multimem.ld_reduce.relaxed.sys.global.add.u32 r2, [m];",
     0, -1, -1, 1, 0, 0},
    {"aliases, the reader's fence before its acquire", "st.u32 [a], 1; st.release.sys.u32 [b], 1;",
     "fence.proxy.alias; ld.acquire.sys.u32 r1, [b]; "
     "multimem.ld_reduce.relaxed.sys.global.add.u32 r2, [m];",
     0, -1, -1, 1, 0, 1},
    {"through the switch",
     "multimem.st.relaxed.sys.global.u32 [m], 1; fence.proxy.alias; "
     "multimem.st.release.sys.global.u32 [n], 1;",
     "ld.acquire.sys.u32 r1, [b]; ld.relaxed.sys.u32 r2, [a];", 0, -1, -1, 1, 0, 0},
    {"through the switch without .release",
     "multimem.st.relaxed.sys.global.u32 [m], 1; fence.proxy.alias; "
     "multimem.st.relaxed.sys.global.u32 [n], 1;",
     "ld.acquire.sys.u32 r1, [b]; ld.relaxed.sys.u32 r2, [a];", 0, -1, -1, 1, 0, 1},
};

/* Named by plain addresses, and the one copy behind the multicast range. */
static _Alignas(4096) unsigned char memory[4096];
static struct ptx_range plain = {.end = 1ull << 50, .kind = PTX_RANGE_PLAIN, .writable = 1};
static struct ptx_range multicast = {.begin = 1ull << 50,
                                     .end = (1ull << 50) + 4096,
                                     .kind = PTX_RANGE_MULTICAST,
                                     .writable = 1,
                                     .copies = 1};

static const struct ptx_range *find_range(void *context, uint64_t address)
{
    (void)context;
    return address >= multicast.begin && address < multicast.end ? &multicast : &plain;
}

static struct ptx_module *parse(const char *body)
{
    static const char format[] =
        ".version 8.2\n.target sm_90\n.address_size 64\n"
        ".visible .entry t(.param .u64 pa, .param .u64 pb, .param .u64 pm, .param .u64 pn,\n"
        ".param .u64 pout)\n{\n.reg .u64 a, b, m, n, out; .reg .u32 r1, r2; .reg .pred p;\n"
        "ld.param.u64 a, [pa]; ld.param.u64 b, [pb]; ld.param.u64 m, [pm];\n"
        "ld.param.u64 n, [pn]; ld.param.u64 out, [pout];\n"
        "mov.u32 r1, 99; mov.u32 r2, 99;\n%s\nst.u32 [out], r1; st.u32 [out+4], r2; ret;\n}\n";
    char text[2048], error[256];
    struct ptx_module *module = NULL;
    snprintf(text, sizeof text, format, body);
    EXPECT(ptx_module_parse(text, &module, error, sizeof error) == 0, "%s: %s", error, body);
    return module;
}

struct params {
    uint64_t a, b, m, n, out;
};

static void begin(struct params *params, uint32_t *results)
{
    memset(memory, 0, sizeof memory);
    multicast.copy[0] = memory;
    multicast.copy_place[0] = (uintptr_t)memory;
    *params = (struct params){(uintptr_t)memory, (uintptr_t)memory + 256, multicast.begin,
                              multicast.begin + 256, (uintptr_t)results};
}

/* Runs both once; what each has left in its two results. */
static void run(const struct litmus *t, const struct ptx_kernel *const kernel[2], uint64_t seed,
                uint32_t results[2][2])
{
    struct params params[2];
    struct ptx_machine *machine[2];
    struct ptx_launch launch[2];
    char error[256];
    for (int i = 0; i < 2; i++) {
        begin(&params[i], results[i]);
        launch[i] = (struct ptx_launch){.kernel = kernel[i],
                                        .grid = {1, 1, 1},
                                        .block = {1, 1, 1},
                                        .params = &params[i],
                                        .multiprocessors = 1,
                                        .threads_per_multiprocessor = 32,
                                        .seed = seed * 2 + (uint64_t)i,
                                        .memory = {NULL, find_range},
                                        .checked = 1,
                                        .gpu = t->near ? 0 : (unsigned)i};
        machine[i] = ptx_open(&launch[i], error, sizeof error);
        if (!machine[i]) abort();
    }
    for (int running = 3; running;) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int i = (int)(seed >> 63);
        if (running >> i & 1 && ptx_step(machine[i]) == PTX_ENDED) running &= ~(1 << i);
    }
    for (int i = 0; i < 2; i++)
        EXPECT(ptx_close(machine[i], NULL) == PTX_DONE, "%s: %s", t->name, error);
}

static int is(uint32_t value, int wanted) { return wanted < 0 || value == (uint32_t)wanted; }

static void check(const struct litmus *t)
{
    struct ptx_module *module[2] = {parse(t->left), parse(t->right)};
    const struct ptx_kernel *kernel[2];
    int seen = 0;
    if (!module[0] || !module[1]) return;
    for (int i = 0; i < 2; i++)
        kernel[i] = ptx_module_kernel(module[i], "t");
    for (uint64_t seed = 1; seed <= RUNS && !unit_failures; seed++) {
        uint32_t r[2][2];
        run(t, kernel, seed, r);
        seen += is(r[0][0], t->left1) && is(r[0][1], t->left2) && is(r[1][0], t->right1) &&
                is(r[1][1], t->right2);
    }
    EXPECT(t->allowed ? seen >= SEEN_AT_LEAST : seen == 0, "%s: seen %d times in %d", t->name, seen,
           RUNS);
    for (int i = 0; i < 2; i++)
        ptx_module_free(module[i]);
}

int main(void)
{
    for (unsigned i = 0; i < sizeof tests / sizeof *tests; i++)
        check(&tests[i]);
    return unit_end();
}
