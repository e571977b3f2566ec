/* Runs small PTX texts in the tests of the interpreter: one kernel named `t`, its parameters
 * 64-bit words, memory that is plain but for the ranges a test names. */
#ifndef SMFAR_TESTS_PTX_HARNESS_H
#define SMFAR_TESTS_PTX_HARNESS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../csrc/soft/ptx.h"
#include "../unit/unit.h"

enum { HARNESS_RANGES = 8, HARNESS_ERROR = 256 };

struct harness {
    unsigned grid, block, shared_bytes, processors;
    uint64_t seed;
    uint64_t param[8];
    struct ptx_range range[HARNESS_RANGES];   /* looked up before the plain rest */
    struct ptx_range gap[HARNESS_RANGES + 1]; /* filled as they are met */
    unsigned ranges;
    atomic_int stop;
    enum ptx_outcome outcome;
    struct ptx_counts counts;
    char error[HARNESS_ERROR];
};

/* The plain memory between two named ranges is a range of its own. */
static const struct ptx_range *harness_range(void *context, uint64_t address)
{
    struct harness *h = context;
    struct ptx_range gap = {.begin = 0, .end = UINT64_MAX, .kind = PTX_RANGE_PLAIN, .writable = 1};
    unsigned below = 0;
    for (unsigned i = 0; i < h->ranges; i++) {
        const struct ptx_range *r = &h->range[i];
        if (address >= r->begin && address < r->end) return r;
        if (r->begin > address && r->begin < gap.end) gap.end = r->begin;
        if (r->end <= address && r->end > gap.begin) gap.begin = r->end;
        below += r->end <= address;
    }
    h->gap[below] = gap;
    return &h->gap[below];
}

/* The first lines of every module. */
static const char *harness_target = ".version 8.2\n.target sm_90";

/* A whole module around the body of kernel `t`: parameters a, b, c, d, e, f. The caller frees. */
static inline char *harness_text(const char *before, const char *body)
{
    static const char head[] =
        "%s\n.address_size 64\n%s\n.visible .entry t(.param .u64 a, "
        ".param .u64 b, .param .u64 c, .param .u64 d, .param .u64 e, .param .u64 f)\n{\n%s\n}\n";
    size_t size = sizeof head + strlen(harness_target) + strlen(before) + strlen(body);
    char *text = malloc(size);
    if (text) snprintf(text, size, head, harness_target, before, body);
    return text;
}

static inline enum ptx_outcome harness_run_kernel(struct harness *h,
                                                  const struct ptx_kernel *kernel)
{
    struct ptx_launch launch = {.kernel = kernel,
                                .grid = {h->grid ? h->grid : 1, 1, 1},
                                .block = {h->block ? h->block : 32, 1, 1},
                                .shared_bytes = h->shared_bytes,
                                .params = h->param,
                                .multiprocessors = h->processors ? h->processors : 4,
                                .threads_per_multiprocessor = 2048,
                                .seed = h->seed,
                                .memory = {h, harness_range},
                                .stop = &h->stop};
    h->outcome = ptx_run(&launch, &h->counts, h->error, sizeof h->error);
    return h->outcome;
}

/* Parses and runs; a parse error is a failed check. */
static inline enum ptx_outcome harness_run(struct harness *h, const char *before, const char *body)
{
    struct ptx_module *module = NULL;
    char *text = harness_text(before, body);
    int parsed = ptx_module_parse(text, &module, h->error, sizeof h->error);
    EXPECT(parsed == 0, "%s\n%s", h->error, body);
    h->outcome = PTX_TRAP;
    if (parsed == 0) {
        harness_run_kernel(h, ptx_module_kernel(module, "t"));
        ptx_module_free(module);
    }
    free(text);
    return h->outcome;
}

static inline void harness_ok(struct harness *h, const char *before, const char *body)
{
    harness_run(h, before, body);
    EXPECT(h->outcome == PTX_DONE, "outcome %d: %s\n%s", (int)h->outcome, h->error, body);
}

#endif
