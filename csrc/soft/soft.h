/* What the software switch exports beside the driver's names: counts, for tests, benches and
 * reports, and faults on order, for tests. The core never calls these; Python reads them through
 * ctypes. */
#ifndef SMFAR_SOFT_SOFT_H
#define SMFAR_SOFT_SOFT_H

#include <stdint.h>

#pragma GCC visibility push(default)

/* What all launches of one kernel have executed in this process so far. Instructions are counted
 * per thread that executed them (a warp of 32 active lanes counts 32). */
struct soft_kernel_stats {
    char name[128];
    uint64_t launches;
    uint64_t instructions;    /* of any kind */
    uint64_t multimem_loads;  /* multimem.ld_reduce */
    uint64_t multimem_stores; /* multimem.st */
    uint64_t multimem_reds;   /* multimem.red */
    uint64_t multimem_bytes;  /* bytes named by these three: a 16-byte load of 4 copies counts 16 */
};

/* Fills *out with the statistics of kernel number `index` (in the order in which first launches
 * ended) and returns 1; returns 0 past the last. */
int soft_kernel_stats(unsigned index, struct soft_kernel_stats *out);

/* How often the driver function of this name was called in this process, failed calls included. */
uint64_t soft_call_count(const char *name);

/* The names of the driver functions that the switch has: index 0, 1, …; NULL past the last. */
const char *soft_call_name(unsigned index);

/* Sets all counts above to zero. */
void soft_stats_reset(void);

/* What is still held in this process: allocation handles, mappings and blocks of cuMemAlloc,
 * reserved and registered ranges, streams, events, modules, graphs (with what was instantiated from
 * them, and user objects), and descriptors the switch holds open.
 * All zero once everything was undone. What a context takes along when its last user releases it
 * is freed, but stays counted: nobody gave it back. */
struct soft_leaks {
    uint64_t handles, mappings, ranges, streams, events, modules, descriptors, graphs;
};
void soft_leaks(struct soft_leaks *out);

/* Repeatable runs. After soft_hold(seed) kernels that are launched wait; soft_take_turns waits
 * until `streams` streams have one to run, then runs them all on the calling thread, one turn at a
 * time, until every one of these streams is idle. Which stream comes next, and with
 * SMFAR_SOFT_CHECKED=1 everything else that is left to chance, follows from the seed; %globaltimer
 * counts turns, a microsecond each. `between`, which may be NULL, is called after every turn, may
 * look at host memory but call nothing of the driver, and returns 0 to give up. The launches must
 * be made by one thread, and these streams' other work must not wait for anything but them. Returns
 * 1; or 0 when `between` gave up, or a stream was still busy with something else after
 * SMFAR_SOFT_BLOCK_MS: then the streams' workers go on by themselves. */
void soft_hold(uint64_t seed);
int soft_take_turns(unsigned streams, int (*between)(void *context), void *context,
                    uint64_t *turns_out);

/* What a virtual GPU's kernels did last to memory in checked mode, oldest first: lines of the
 * module's text. A step repeated without another between counts once. Returns how many. */
struct soft_step {
    uint64_t number;    /* over all GPUs of the process */
    const char *kernel; /* its entry; stays while its module is loaded */
    uint32_t line, block, warp, times;
};
unsigned soft_last_steps(unsigned device, struct soft_step *steps_out, unsigned most);

/* A fault on order: what happens to some of the calls of one driver function. Calls are counted
 * from the moment of the order. A new thread has the name of the thread that started it, so a name
 * stands for a rank when ranks are threads. */
struct soft_fault {
    const char *call;   /* "cuMemCreate" */
    const char *thread; /* only calls by threads of this name (of at most 15 bytes); NULL: by any */
    unsigned first;     /* the first call that it touches: 1, 2, … */
    unsigned times;     /* how many it touches from there on; 0: all */
    int result;         /* the CUresult they give, doing nothing else; 0: they go on as usual */
    int block_ms;       /* before that they block this long; -1: until soft_faults_clear */
};

/* Orders a fault, beside those that stand. Returns its number for soft_fault_matches, or -1 when
 * there is no such call or too many faults stand. */
int soft_fault_plan(const struct soft_fault *fault);

/* How many calls of the function and thread were made since, touched or not; blocked ones count. */
unsigned soft_fault_matches(int fault);

/* Ends all orders, those of SMFAR_SOFT_FAULTS included, and what blocks because of them. */
void soft_faults_clear(void);

#pragma GCC visibility pop

#endif
