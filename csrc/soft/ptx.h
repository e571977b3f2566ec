/* The PTX side of the software switch: a parser and an interpreter. It knows the instruction set
 * and nothing of the driver: memory is reached through struct ptx_memory, which the driver side
 * supplies. It knows no kernel by name. */
#ifndef SMFAR_SOFT_PTX_H
#define SMFAR_SOFT_PTX_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { PTX_MAX_COPIES = 64, PTX_MAX_PARAMS = 32, PTX_MAX_GPUS = 64 };

struct ptx_module;

/* One .entry of a module; owned by the module. */
struct ptx_kernel_info {
    const char *name;
    size_t params;                       /* how many .param declarations */
    size_t param_offset[PTX_MAX_PARAMS]; /* where each lies in the parameter block */
    size_t param_size[PTX_MAX_PARAMS];
    size_t param_bytes;  /* size of the whole block */
    size_t shared_bytes; /* static .shared */
    size_t local_bytes;
    unsigned max_threads; /* .maxntid or .reqntid product, or 1024 */
    unsigned registers;   /* virtual registers declared, an upper bound of nothing real */
};
struct ptx_kernel;

/* Parses a whole module. Anything unknown (instruction, modifier, type, directive) is an error
 * here, never a guess at run time. Returns 0; or -1 with `error` holding "line N: …". */
int ptx_module_parse(const char *text, struct ptx_module **module_out, char *error,
                     size_t error_size);
void ptx_module_free(struct ptx_module *module);
/* Its .version: 88 is 8.8. */
unsigned ptx_module_version(const struct ptx_module *module);
/* May a GPU of this compute capability (90 is 9.0) run it? Of .target sm_100 from 10.0 on all may,
 * of sm_100a that one alone, of sm_100f those of its family, 10.0 and 10.3. */
int ptx_module_runs_on(const struct ptx_module *module, unsigned compute);
const struct ptx_kernel *ptx_module_kernel(const struct ptx_module *module, const char *name);
const struct ptx_kernel_info *ptx_kernel_info(const struct ptx_kernel *kernel);

/* A run of addresses that behave alike. A device address *is* a host address of this process. */
enum ptx_range_kind {
    PTX_RANGE_PLAIN,     /* device memory, or host memory that was never mapped by the driver */
    PTX_RANGE_MULTICAST, /* only multimem.* may touch it */
    PTX_RANGE_FAULT      /* reserved, unmapped, or without access: any touch is a fault */
};
struct ptx_range {
    uint64_t begin, end; /* [begin, end) */
    enum ptx_range_kind kind;
    int writable;
    unsigned copies;                     /* MULTICAST: how many */
    unsigned char *copy[PTX_MAX_COPIES]; /* MULTICAST: host address of byte `begin` in each copy */
    /* Which memory byte `begin` is, by whatever address it is reached, and in each copy. Only
     * checked mode looks. */
    uint64_t place, copy_place[PTX_MAX_COPIES];
};

/* range() returns the range that holds `address`, never NULL; it stays readable until the launch
 * ends. The interpreter caches what it returns. */
struct ptx_memory {
    void *context;
    const struct ptx_range *(*range)(void *context, uint64_t address);
};

enum ptx_outcome {
    PTX_DONE,
    PTX_STOPPED,     /* `stop` was set */
    PTX_BAD_ADDRESS, /* touched a FAULT range, a MULTICAST one with a plain access or the reverse */
    PTX_MISALIGNED,
    PTX_TRAP /* trap, a deadlock (every lane waits at a barrier that nobody can complete), … */
};

struct ptx_counts {
    uint64_t instructions, multimem_loads, multimem_stores, multimem_reds, multimem_bytes;
};

struct ptx_launch {
    const struct ptx_kernel *kernel;
    unsigned grid[3], block[3];
    unsigned shared_bytes;    /* dynamic, beside the static */
    const void *params;       /* the parameter block, laid out as in ptx_kernel_info */
    unsigned multiprocessors; /* %nsmid; blocks beyond what they hold wait for one to end */
    unsigned threads_per_multiprocessor;
    uint64_t seed; /* of the switch's summing order */
    struct ptx_memory memory;
    const atomic_int *stop; /* polled while the kernel runs */
    int checked;            /* ptx_checked.h: weak memory, random schedule */
    unsigned gpu;           /* checked: which GPU this is, below PTX_MAX_GPUS */
    const uint64_t *clock;  /* nanoseconds, instead of the machine's clock; or NULL */
};

/* Runs one launch to its end on the calling thread, yielding the processor while every runnable
 * warp spins. `error` describes any outcome but PTX_DONE: kernel, line, address. */
enum ptx_outcome ptx_run(const struct ptx_launch *launch, struct ptx_counts *counts, char *error,
                         size_t error_size);

/* The same in pieces. ptx_open returns NULL when out of memory; the launch must outlive it.
 * ptx_step lets every runnable warp take at most one turn; PTX_ENDED tells that nothing is left to
 * do. */
enum ptx_step { PTX_ENDED, PTX_WAITED, PTX_PROGRESSED };
struct ptx_machine;
struct ptx_machine *ptx_open(const struct ptx_launch *launch, char *error, size_t error_size);
enum ptx_step ptx_step(struct ptx_machine *machine);
enum ptx_outcome ptx_close(struct ptx_machine *machine, struct ptx_counts *counts);
/* Steps to the end, giving the processor away as ptx_run does. */
void ptx_finish(struct ptx_machine *machine);

/* Checked mode: what was last done to memory on a GPU, oldest first; returns how many. A step
 * repeated without another between counts once. */
struct ptx_step_made {
    uint64_t number; /* of all such steps in this process */
    const struct ptx_kernel *kernel;
    uint32_t line, block, warp, times;
};
unsigned ptx_checked_last_steps(unsigned gpu, struct ptx_step_made *steps_out, unsigned most);

/* How many instructions (opcodes, and opcodes with their distinct modifiers) the parser knows. */
unsigned ptx_opcode_count(void);

#endif
