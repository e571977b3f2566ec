/* A launch: blocks take their turns on the virtual multiprocessors, warps of all resident blocks
 * run in turn, and the host's processor is given up while every one of them only waits. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ptx_checked.h"
#include "ptx_spare.h"

enum {
    /* sweeps over waiting warps before the launch sleeps instead of yielding */
    IDLE_YIELDS = 256,
    IDLE_NAP_NS = 20000,
    ALIGN = 64,
    /* unset registers and shared memory are seen for what they are */
    POISON = 0xa5
};

void ptx_machine_fail(struct ptx_warp *w, const struct ptx_insn *in, enum ptx_outcome outcome,
                      const char *format, ...)
{
    struct ptx_machine *m = w->machine;
    w->yield = 1;
    if (m->outcome != PTX_DONE) return;
    m->outcome = outcome;
    int used = snprintf(m->error, m->error_size, "%s, line %u: ", m->kernel->name, in->line);
    if (used < 0 || (size_t)used >= m->error_size) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(m->error + used, m->error_size - (size_t)used, format, arguments);
    va_end(arguments);
}

/* splitmix64 */
uint64_t ptx_machine_random(struct ptx_machine *m)
{
    uint64_t x = m->random += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t ptx_machine_clock(const struct ptx_machine *m)
{
    if (m->launch->clock) return *m->launch->clock;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- blocks ---- */

static size_t round_up(size_t bytes) { return (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1); }

static size_t registers_of(const struct ptx_kernel *kernel)
{
    /* an odd number of lines per warp, or all warps' registers would share a few cache sets */
    return round_up(kernel->register_bytes) | ALIGN;
}

static size_t shared_of(const struct ptx_machine *m)
{
    return round_up(m->kernel->info.shared_bytes + m->launch->shared_bytes);
}

static size_t local_of(const struct ptx_machine *m)
{
    return round_up(m->kernel->info.local_bytes * PTX_LANES);
}

static int allocate(struct ptx_machine *m, struct ptx_block *block)
{
    size_t warps = round_up(block->warps * sizeof *block->warp);
    size_t each = registers_of(m->kernel) + local_of(m);
    size_t bytes = warps + shared_of(m) + block->warps * each;
    if (block->memory) return 1;
    block->memory = ptx_spare_take(&bytes);
    if (!block->memory) return 0;
    block->memory_bytes = bytes;
    memset(block->memory + warps, POISON, shared_of(m));
    block->warp = (struct ptx_warp *)(void *)block->memory;
    block->shared = block->memory + warps;
    return 1;
}

static void start_warp(struct ptx_block *block, uint32_t index)
{
    struct ptx_machine *m = block->machine;
    struct ptx_warp *w = &block->warp[index];
    size_t registers = registers_of(m->kernel);
    uint32_t left = block->threads - index * PTX_LANES;
    memset(w, 0, sizeof *w);
    w->block = block;
    w->machine = m;
    w->index = index;
    w->base[BASE_REGISTERS] = block->shared + shared_of(m) + index * (registers + local_of(m));
    w->base[BASE_POOL] = m->kernel->pool;
    w->base[BASE_NONE] = (unsigned char *)w->scratch;
    w->local = w->base[BASE_REGISTERS] + registers;
    memset(w->base[BASE_REGISTERS], POISON, registers + local_of(m));
    ptx_warp_start(w, left >= PTX_LANES ? PTX_ALL_LANES : (1u << left) - 1);
}

static int start_block(struct ptx_machine *m, struct ptx_block *block)
{
    const struct ptx_launch *l = m->launch;
    uint64_t number = m->next_block++;
    block->machine = m;
    block->threads = block->alive = l->block[0] * l->block[1] * l->block[2];
    block->warps = (block->threads + PTX_LANES - 1) / PTX_LANES;
    block->ctaid[0] = (uint32_t)(number % l->grid[0]);
    block->ctaid[1] = (uint32_t)(number / l->grid[0] % l->grid[1]);
    block->ctaid[2] = (uint32_t)(number / l->grid[0] / l->grid[1]);
    memset(block->barrier, 0, sizeof block->barrier);
    if (!allocate(m, block)) return 0;
    for (uint32_t i = 0; i < block->warps; i++)
        start_warp(block, i);
    if (l->checked) ptx_checked_block(block);
    block->active = 1;
    return 1;
}

static int out_of_memory(struct ptx_machine *m)
{
    m->outcome = PTX_TRAP;
    snprintf(m->error, m->error_size, "%s: out of host memory for %u blocks", m->kernel->name,
             m->slots);
    return 0;
}

/* As many blocks as the multiprocessors hold, spread over them. */
static int open_slots(struct ptx_machine *m)
{
    const struct ptx_launch *l = m->launch;
    uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
    uint64_t each = threads && l->threads_per_multiprocessor > threads
                        ? l->threads_per_multiprocessor / threads
                        : 1;
    uint64_t processors = l->multiprocessors ? l->multiprocessors : 1, slots = each * processors;
    m->blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
    m->slots = (unsigned)(slots < m->blocks ? slots : m->blocks);
    m->slot = calloc(m->slots + 1, sizeof *m->slot);
    if (!m->slot) return out_of_memory(m);
    for (unsigned i = 0; i < m->slots; i++) {
        m->slot[i].smid = (uint32_t)(i % processors);
        if (!start_block(m, &m->slot[i])) return out_of_memory(m);
    }
    return 1;
}

static void close_slots(struct ptx_machine *m)
{
    for (unsigned i = 0; m->slot && i < m->slots; i++)
        ptx_spare_give(m->slot[i].memory, m->slot[i].memory_bytes);
    free(m->slot);
}

/* ---- turns ---- */

enum { SWEEP_RAN = 1, SWEEP_PROGRESSED = 2, SWEEP_SKIPPED = 4 };

/* Checked mode: one warp in SKIP_WARP does not come in its turn, one block in SKIP_BLOCK not for up
 * to SKIP_TURNS; but after QUIET sweeps in which none ran, all do. */
enum { SKIP_WARP = 4, SKIP_BLOCK = 12, SKIP_TURNS = 48, QUIET = 100 };

static unsigned below(struct ptx_machine *m, unsigned limit)
{
    return (unsigned)((ptx_machine_random(m) >> 32) * limit >> 32);
}

static int run_warp(struct ptx_warp *w)
{
    if (!w->alive || !ptx_warp_run(w)) return 0;
    return w->polled && !w->progressed ? SWEEP_RAN : SWEEP_RAN | SWEEP_PROGRESSED;
}

static int run_block(struct ptx_block *block)
{
    int seen = 0;
    for (uint32_t i = 0; i < block->warps && block->machine->outcome == PTX_DONE; i++)
        seen |= run_warp(&block->warp[i]);
    return seen;
}

static int run_block_checked(struct ptx_block *block)
{
    struct ptx_machine *m = block->machine;
    int seen = 0, all = m->still > QUIET;
    if (!all && !block->stall && below(m, SKIP_BLOCK) == 0) block->stall = below(m, SKIP_TURNS);
    if (!all && block->stall) {
        block->stall--;
        return SWEEP_SKIPPED;
    }
    uint32_t first = below(m, block->warps);
    for (uint32_t i = 0; i < block->warps && m->outcome == PTX_DONE; i++) {
        if (!all && below(m, SKIP_WARP) == 0)
            seen |= SWEEP_SKIPPED;
        else
            seen |= run_warp(&block->warp[(first + i) % block->warps]);
    }
    return seen;
}

static int sweep(struct ptx_machine *m)
{
    int seen = 0, checked = m->launch->checked;
    unsigned first = checked ? below(m, m->slots) : 0;
    for (unsigned i = 0; i < m->slots && m->outcome == PTX_DONE; i++) {
        struct ptx_block *block = &m->slot[(first + i) % m->slots];
        if (!block->active) continue;
        seen |= checked ? run_block_checked(block) : run_block(block);
        if (block->alive) continue;
        block->active = 0;
        m->ended++;
        if (m->next_block < m->blocks && !start_block(m, block)) out_of_memory(m);
    }
    if (checked) ptx_checked_drain(m);
    m->still = seen & SWEEP_RAN ? 0 : m->still + 1;
    return seen;
}

static void give_way(unsigned idle)
{
    if (idle < IDLE_YIELDS) {
        sched_yield();
    } else {
        struct timespec nap = {.tv_nsec = IDLE_NAP_NS};
        nanosleep(&nap, NULL);
    }
}

enum ptx_step ptx_step(struct ptx_machine *m)
{
    if (m->ended >= m->blocks || m->outcome != PTX_DONE) return PTX_ENDED;
    if (m->launch->stop && atomic_load_explicit(m->launch->stop, memory_order_relaxed)) {
        m->outcome = PTX_STOPPED;
        snprintf(m->error, m->error_size, "%s: stopped", m->kernel->name);
        return PTX_ENDED;
    }
    int seen = sweep(m);
    if (!seen && m->ended < m->blocks && m->outcome == PTX_DONE) {
        m->outcome = PTX_TRAP;
        snprintf(m->error, m->error_size,
                 "%s: deadlock, every thread waits at a barrier that nobody can complete",
                 m->kernel->name);
    }
    return seen & SWEEP_PROGRESSED ? PTX_PROGRESSED : PTX_WAITED;
}

void ptx_finish(struct ptx_machine *m)
{
    unsigned idle = 0;
    for (enum ptx_step step; (step = ptx_step(m)) != PTX_ENDED;) {
        if (step == PTX_PROGRESSED)
            idle = 0;
        else
            give_way(idle++);
    }
}

struct ptx_machine *ptx_open(const struct ptx_launch *launch, char *error, size_t error_size)
{
    static atomic_ullong grids;
    struct ptx_machine *m = malloc(sizeof *m);
    if (!m) return NULL;
    *m = (struct ptx_machine){.launch = launch,
                              .kernel = launch->kernel,
                              .error = error,
                              .error_size = error_size,
                              .random = launch->seed,
                              .grid_id = atomic_fetch_add(&grids, 1) + 1};
    if (error_size) error[0] = '\0';
    if (launch->checked) ptx_checked_open(m);
    open_slots(m);
    return m;
}

enum ptx_outcome ptx_close(struct ptx_machine *m, struct ptx_counts *counts)
{
    enum ptx_outcome outcome = m->outcome;
    close_slots(m);
    if (m->launch->checked) ptx_checked_close(m);
    if (counts) *counts = m->counts;
    free(m);
    return outcome;
}

enum ptx_outcome ptx_run(const struct ptx_launch *launch, struct ptx_counts *counts, char *error,
                         size_t error_size)
{
    struct ptx_machine *m = ptx_open(launch, error, error_size);
    if (!m) {
        snprintf(error, error_size, "%s: out of host memory", launch->kernel->name);
        return PTX_TRAP;
    }
    ptx_finish(m);
    return ptx_close(m, counts);
}
