/* How fast the interpreter moves a two-shot all-reduce's payload: each of four ranks ld_reduces its
 * quarter of a buffer of four copies and multimem.sts it. Prints GB of one rank's tensor per
 * second: of processor time, the ranks one after the other; and of wall-clock time, with a process
 * each. Usage: bench_ptx [MiB] [repeats]. */
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ptx_harness.h"

enum { RANKS = 4 };
#define MULTICAST ((uint64_t)1 << 46)

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define LOAD(i, offset)                                                                            \
    "multimem.ld_reduce.relaxed.sys.global.add%s {%%r" #i "0,%%r" #i "1,%%r" #i "2,%%r" #i         \
    "3},[%%p+" #offset "];\n"
#define STORE(i, offset)                                                                           \
    "multimem.st.relaxed.sys.global.v4.f32 [%%p+" #offset "],{%%r" #i "0,%%r" #i "1,%%r" #i        \
    "2,%%r" #i "3};\n"

/* 512 threads, eight vectors each in flight: a block's step covers 64 KiB. */
static const char body[] =
    ".reg .b32 %%t, %%n; .reg .b32 %%r<84>; .reg .b64 %%p, %%end, %%o; .reg .pred %%q;\n"
    "ld.param.u64 %%p,[a]; ld.param.u64 %%end,[b]; mov.u32 %%t,%%tid.x; mov.u32 %%n,%%ctaid.x;\n"
    "mul.wide.u32 %%o,%%t,16; add.u64 %%p,%%p,%%o; mul.wide.u32 %%o,%%n,65536;\n"
    "add.u64 %%p,%%p,%%o; ld.param.u64 %%o,[c];\n"
    "LOOP: setp.ge.u64 %%q,%%p,%%end; @%%q bra DONE;\n" LOAD(1, 0) LOAD(2, 8192) LOAD(3, 16384)
        LOAD(4, 24576) LOAD(5, 32768) LOAD(6, 40960) LOAD(7, 49152) LOAD(8, 57344) STORE(1, 0)
            STORE(2, 8192) STORE(3, 16384) STORE(4, 24576) STORE(5, 32768) STORE(6, 40960)
                STORE(7, 49152) STORE(8, 57344) "add.u64 %%p,%%p,%%o; bra LOOP;\nDONE: ret;\n";

static void *copy_of(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at != MAP_FAILED) memset(at, 0, bytes);
    return at == MAP_FAILED ? NULL : at;
}

static int run_rank(struct harness *h, const struct ptx_kernel *kernel, unsigned rank, size_t bytes)
{
    h->param[0] = MULTICAST + rank * (bytes / RANKS);
    h->param[1] = h->param[0] + bytes / RANKS;
    h->param[2] = 65536 * h->grid;
    return harness_run_kernel(h, kernel) != PTX_DONE;
}

/* Every rank in a process of its own, all at once; seconds for one pass of each. */
static double run_processes(struct harness *h, const struct ptx_kernel *kernel, size_t bytes,
                            int repeats)
{
    int failed = 0, status;
    double start = seconds(CLOCK_MONOTONIC);
    for (unsigned rank = 0; rank < RANKS; rank++) {
        if (fork()) continue;
        for (int i = 0; i < repeats; i++)
            failed |= run_rank(h, kernel, rank, bytes);
        _exit(failed);
    }
    while (wait(&status) > 0)
        failed |= status;
    return failed ? -1 : (seconds(CLOCK_MONOTONIC) - start) / repeats;
}

static int measure(const char *name, const char *type, size_t bytes, int repeats)
{
    struct harness h = {.grid = 4, .block = 512, .ranges = 1};
    struct ptx_module *module = NULL;
    char filled[4096];
    snprintf(filled, sizeof filled, body, type, type, type, type, type, type, type, type);
    char *text = harness_text("", filled);
    if (ptx_module_parse(text, &module, h.error, sizeof h.error)) {
        fprintf(stderr, "%s\n", h.error);
        return 1;
    }
    const struct ptx_kernel *kernel = ptx_module_kernel(module, "t");
    h.range[0] = (struct ptx_range){.begin = MULTICAST,
                                    .end = MULTICAST + bytes,
                                    .kind = PTX_RANGE_MULTICAST,
                                    .writable = 1,
                                    .copies = RANKS};
    for (int k = 0; k < RANKS; k++)
        h.range[0].copy[k] = copy_of(bytes);
    double best = 1e9;
    for (int i = 0; i < repeats; i++) {
        double start = seconds(CLOCK_PROCESS_CPUTIME_ID);
        for (unsigned rank = 0; rank < RANKS; rank++)
            if (run_rank(&h, kernel, rank, bytes)) return 1;
        double took = seconds(CLOCK_PROCESS_CPUTIME_ID) - start;
        if (took < best) best = took;
    }
    double together = run_processes(&h, kernel, bytes, repeats);
    printf(
        "%-6s %zu MiB, %d copies: %.2f GB per second of one processor, %.2f GB/s in %d processes\n",
        name, bytes >> 20, RANKS, (double)bytes / best / 1e9, (double)bytes / together / 1e9,
        RANKS);
    for (int k = 0; k < RANKS; k++)
        munmap(h.range[0].copy[k], bytes);
    ptx_module_free(module);
    free(text);
    return together < 0;
}

int main(int argc, char **argv)
{
    size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 16) << 20;
    int repeats = argc > 2 ? atoi(argv[2]) : 10;
    return measure("f32", ".v4.f32", bytes, repeats) ||
           measure("bf16x2", ".acc::f32.v4.bf16x2", bytes, repeats) ||
           measure("f16x2", ".acc::f32.v4.f16x2", bytes, repeats);
}
