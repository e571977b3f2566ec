/* The memory of checked mode: what each block has stored but others cannot see yet, what memory
 * held before, and which of that a load may still return. docs/switch.md says it in words.
 *
 * A store waits in its GPU's buffer. A release at GPU scope marks what its block has stored as
 * known to the GPU; one at system scope moves that, and all that the block is bound to see of its
 * GPU's, to memory. What has reached memory is logged with the bytes it replaced, and a load takes
 * off the newest of them again as long as nothing binds its block to see them. Time is a count of
 * events. */
#include "ptx_checked.h"

#include <pthread.h>
#include <stdlib.h>

enum {
    GRANULE = 16,
    LOGGED = 1 << 16,   /* the oldest writes are forgotten, that is, seen by all */
    BUFFERED = 1 << 12, /* the oldest store of a fuller buffer goes to memory */
    BUCKETS = 1 << 14,
    FILTER = 1 << 10,
    STEPS = 64
};

/* One store to one granule. */
struct write {
    uint64_t granule;
    unsigned char *host; /* of the granule's first byte */
    uint64_t author;     /* the block */
    uint64_t gpu_time;   /* since when its GPU can be bound to see it; 0: its block alone */
    uint64_t time;       /* since when it is in memory */
    uint64_t bridged;    /* since when it counts for every mapping; 0: not yet */
    uint64_t seen;       /* blocks that have read it, by their id's last bits */
    uint64_t older;      /* log: the one before in the same bucket, plus 1 */
    unsigned char bytes[GRANULE], old[GRANULE];
    uint8_t begin, end, element, alias, gpu;
};

struct gpu {
    struct write *buffer;
    unsigned count, opened;
    unsigned char filter[FILTER]; /* may a granule have a buffered store? */
    uint64_t released_sys;        /* the widest view that a block has released to its GPU */
    struct ptx_step_made step[STEPS];
    uint64_t steps;
};

static struct {
    pthread_mutex_t lock;
    uint64_t now, blocks, steps;
    unsigned launches;          /* open now */
    struct write log[LOGGED];   /* by number modulo LOGGED */
    uint64_t logged, forgotten; /* numbers below `forgotten` do not count */
    uint64_t bucket[BUCKETS];   /* the newest of the bucket, plus 1 */
    struct gpu gpu[PTX_MAX_GPUS];
} world = {.lock = PTHREAD_MUTEX_INITIALIZER};

void ptx_checked_lock(void) { pthread_mutex_lock(&world.lock); }

void ptx_checked_unlock(void) { pthread_mutex_unlock(&world.lock); }

static unsigned hash(uint64_t granule, unsigned size)
{
    return (unsigned)((granule / GRANULE * 0x9e3779b97f4a7c15u) >> 40) & (size - 1);
}

static struct gpu *gpu_of(const struct ptx_block *block)
{
    return &world.gpu[block->machine->launch->gpu];
}

static uint64_t seen_bit(const struct ptx_block *block) { return 1ull << (block->id & 63); }

static int overlap(const struct write *a, const struct write *b)
{
    return a->granule == b->granule && a->begin < b->end && b->begin < a->end;
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- from the buffer to memory ---- */

static void copy_elements(unsigned char *to, const unsigned char *from, const struct write *w)
{
    for (unsigned at = w->begin; at < w->end; at += w->element) {
        uint64_t value = 0;
        memcpy(&value, from + at, w->element);
        ptx_memory_poke(to + at, value, w->element, SEM_RELAXED);
    }
}

static void read_elements(const unsigned char *from, unsigned bytes, unsigned element, void *out)
{
    for (unsigned at = 0; at < bytes; at += element) {
        uint64_t value = ptx_memory_peek(from + at, element, SEM_RELAXED);
        memcpy((char *)out + at, &value, element);
    }
}

/* Enters what has just been, or is about to be, written. */
static void enter_log(const struct write *write)
{
    struct write *w = &world.log[world.logged % LOGGED];
    *w = *write;
    w->time = ++world.now;
    if (!w->gpu_time) w->gpu_time = w->time;
    w->seen = 0;
    uint64_t *bucket = &world.bucket[hash(w->granule, BUCKETS)];
    w->older = *bucket;
    *bucket = ++world.logged;
}

static void to_memory(struct write *w)
{
    read_elements(w->host + w->begin, w->end - w->begin, w->element, w->old + w->begin);
    enter_log(w);
    copy_elements(w->host, w->bytes, w);
}

static void recount(struct gpu *gpu)
{
    memset(gpu->filter, 0, sizeof gpu->filter);
    for (unsigned i = 0; i < gpu->count; i++)
        gpu->filter[hash(gpu->buffer[i].granule, FILTER)] = 1;
}

/* Stores to one place keep their order, unless they went through two mappings with no fence. */
static unsigned first_in_order(const struct gpu *gpu, unsigned i)
{
    for (unsigned j = 0; j < i; j++) {
        const struct write *a = &gpu->buffer[j], *b = &gpu->buffer[i];
        if (!overlap(a, b) || (a->alias != b->alias && !a->bridged)) continue;
        i = j;
        j = UINT32_MAX; /* from the start again */
    }
    return i;
}

static void drain_one(struct gpu *gpu, unsigned i)
{
    i = first_in_order(gpu, i);
    to_memory(&gpu->buffer[i]);
    gpu->count--;
    memmove(&gpu->buffer[i], &gpu->buffer[i + 1], (gpu->count - i) * sizeof *gpu->buffer);
}

/* All stores of the block, or with NULL of the GPU, and what the block is bound to see of others'.
 */
static void drain_for(struct gpu *gpu, const struct ptx_block *block)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < gpu->count; i++) {
        struct write *w = &gpu->buffer[i];
        int mine = !block || w->author == block->id;
        if (mine || (w->gpu_time && w->gpu_time <= block->view_gpu))
            to_memory(w);
        else
            gpu->buffer[kept++] = *w;
    }
    gpu->count = kept;
    recount(gpu);
}

void ptx_checked_drain(struct ptx_machine *m)
{
    struct gpu *gpu = &world.gpu[m->launch->gpu];
    ptx_checked_lock();
    uint64_t random = ptx_machine_random(m);
    /* a share of a full buffer, or its last store would wait for thousands of turns */
    unsigned most = random % m->haste == 0 ? 1 + gpu->count / 8 : 0;
    for (; most > 0 && gpu->count; most--) {
        random = ptx_machine_random(m);
        drain_one(gpu, (unsigned)((random >> 32) % gpu->count));
    }
    if (!gpu->count) recount(gpu);
    ptx_checked_unlock();
}

/* ---- orders ---- */

void ptx_checked_acquire(struct ptx_block *block, unsigned scope)
{
    uint64_t now = ++world.now;
    if (scope == SCOPE_CTA) return;
    block->view_gpu = now;
    if (scope == SCOPE_SYS)
        block->view_sys = now;
    else /* what a block of this GPU had acquired before it released */
        block->view_sys = later(block->view_sys, gpu_of(block)->released_sys);
}

void ptx_checked_release(struct ptx_block *block, unsigned scope)
{
    struct gpu *gpu = gpu_of(block);
    if (scope == SCOPE_CTA) return;
    uint64_t now = ++world.now;
    for (unsigned i = 0; i < gpu->count; i++)
        if (gpu->buffer[i].author == block->id && !gpu->buffer[i].gpu_time)
            gpu->buffer[i].gpu_time = now;
    gpu->released_sys = later(gpu->released_sys, block->view_sys);
    if (scope == SCOPE_SYS) drain_for(gpu, block);
}

/* Is the block bound to know of this write, whatever the mapping? */
static int is_known(const struct ptx_block *block, const struct write *w)
{
    if (w->author == block->id) return 1;
    if (w->gpu == block->machine->launch->gpu) return w->gpu_time && w->gpu_time <= block->view_gpu;
    return w->time && w->time <= block->view_sys;
}

/* … and to see it through this mapping? */
static int is_bound(const struct ptx_block *block, const struct write *w, unsigned alias)
{
    int near = w->gpu == block->machine->launch->gpu;
    if (w->seen & seen_bit(block)) return 1;
    if (!is_known(block, w)) return 0;
    if (w->alias == alias) return 1;
    if (w->bridged &&
        (w->author == block->id || w->bridged <= (near ? block->view_gpu : block->view_sys)))
        return 1;
    return near ? w->gpu_time && w->gpu_time <= block->alias_gpu : w->time <= block->alias_sys;
}

void ptx_checked_bridge(struct ptx_block *block)
{
    struct gpu *gpu = gpu_of(block);
    uint64_t now = ++world.now;
    for (unsigned i = 0; i < gpu->count; i++)
        if (is_known(block, &gpu->buffer[i]) && !gpu->buffer[i].bridged)
            gpu->buffer[i].bridged = now;
    for (uint64_t n = world.forgotten; n < world.logged; n++) {
        struct write *w = &world.log[n % LOGGED];
        if (!w->bridged && is_known(block, w)) w->bridged = now;
    }
    block->alias_gpu = block->view_gpu;
    block->alias_sys = block->view_sys;
}

/* ---- loads and stores ---- */

/* Which of the versions that it may see a load returns. */
enum choice { NEWEST, OLDEST, ANY };

static enum choice draw_choice(struct ptx_machine *m)
{
    unsigned random = (unsigned)(ptx_machine_random(m) >> 60);
    return random < 8 ? NEWEST : random < 13 ? OLDEST : ANY;
}

/* Takes writes off `bytes` again, the newest first, that the block need not see. */
static void undo(struct ptx_block *block, const struct write *load, unsigned char *bytes)
{
    enum choice choice = draw_choice(block->machine);
    if (world.logged - world.forgotten > LOGGED) world.forgotten = world.logged - LOGGED;
    uint64_t n = world.bucket[hash(load->granule, BUCKETS)];
    for (; n > world.forgotten; n = world.log[(n - 1) % LOGGED].older) {
        struct write *w = &world.log[(n - 1) % LOGGED];
        if (!overlap(w, load)) continue;
        int stop = choice == NEWEST || is_bound(block, w, load->alias) ||
                   (choice == ANY && ptx_machine_random(block->machine) >> 63);
        if (stop) { /* later loads must not see an older one */
            w->seen |= seen_bit(block);
            return;
        }
        for (unsigned i = w->begin; i < w->end; i++)
            bytes[i] = w->old[i];
    }
}

/* What the block has stored itself, and what its GPU's others have released to it. */
static void overlay(struct ptx_block *block, const struct write *load, unsigned char *bytes)
{
    const struct gpu *gpu = gpu_of(block);
    if (!gpu->filter[hash(load->granule, FILTER)]) return;
    for (unsigned i = 0; i < gpu->count; i++) {
        const struct write *w = &gpu->buffer[i];
        if (!overlap(w, load) || !is_bound(block, w, load->alias)) continue;
        memcpy(bytes + w->begin, w->bytes + w->begin, w->end - w->begin);
    }
}

static struct write write_of(const struct ptx_block *block, const struct checked_access *at)
{
    unsigned begin = at->place % GRANULE;
    return (struct write){.granule = at->place - begin,
                          .host = at->host - begin,
                          .author = block->id,
                          .begin = (uint8_t)begin,
                          .end = (uint8_t)(begin + at->bytes),
                          .element = at->element,
                          .alias = at->alias,
                          .gpu = (uint8_t)block->machine->launch->gpu};
}

void ptx_checked_read(struct ptx_block *block, const struct checked_access *at, void *bytes_out)
{
    struct write load = write_of(block, at);
    unsigned char bytes[GRANULE];
    read_elements(at->host, at->bytes, at->element, bytes + load.begin);
    undo(block, &load, bytes);
    overlay(block, &load, bytes);
    memcpy(bytes_out, bytes + load.begin, at->bytes);
}

void ptx_checked_write(struct ptx_block *block, const struct checked_access *at, const void *bytes)
{
    struct gpu *gpu = gpu_of(block);
    struct write w = write_of(block, at);
    memcpy(w.bytes + w.begin, bytes, at->bytes);
    if (gpu->count == BUFFERED) drain_one(gpu, 0);
    gpu->buffer[gpu->count++] = w;
    gpu->filter[hash(w.granule, FILTER)] = 1;
}

/* An atomic works on memory: what its GPU has buffered for the place goes there first. */
void ptx_checked_before(struct ptx_block *block, struct checked_atom *atom)
{
    struct gpu *gpu = gpu_of(block);
    struct write w = write_of(block, &atom->at);
    for (unsigned i = 0; i < gpu->count;) {
        if (overlap(&gpu->buffer[i], &w)) {
            drain_one(gpu, i);
            i = 0;
        } else
            i++;
    }
    read_elements(atom->at.host, atom->at.bytes, atom->at.element, atom->old);
}

void ptx_checked_after(struct ptx_block *block, const struct checked_atom *atom)
{
    struct write w = write_of(block, &atom->at);
    memcpy(w.old + w.begin, atom->old, atom->at.bytes);
    enter_log(&w);
    world.log[(world.logged - 1) % LOGGED].seen = seen_bit(block);
}

/* ---- begin and end ---- */

/* When nothing runs, everybody has seen everything. */
void ptx_checked_open(struct ptx_machine *m)
{
    struct gpu *gpu = &world.gpu[m->launch->gpu];
    ptx_checked_lock();
    if (world.launches++ == 0) world.forgotten = world.logged;
    gpu->opened++;
    if (!gpu->buffer) gpu->buffer = calloc(BUFFERED, sizeof *gpu->buffer);
    if (!gpu->buffer) m->outcome = PTX_TRAP;
    m->started = ++world.now;
    m->haste = 1u + (unsigned)(ptx_machine_random(m) >> 59);
    ptx_checked_unlock();
}

void ptx_checked_block(struct ptx_block *block)
{
    uint64_t started = block->machine->started;
    ptx_checked_lock();
    block->id = ++world.blocks;
    block->view_gpu = block->view_sys = block->alias_gpu = block->alias_sys = started;
    ptx_checked_unlock();
}

/* A kernel's end is a release and a fence of every kind. */
void ptx_checked_close(struct ptx_machine *m)
{
    struct gpu *gpu = &world.gpu[m->launch->gpu];
    ptx_checked_lock();
    drain_for(gpu, NULL);
    uint64_t now = ++world.now;
    for (uint64_t n = world.forgotten; n < world.logged; n++) {
        struct write *w = &world.log[n % LOGGED];
        if (!w->bridged && w->gpu == m->launch->gpu) w->bridged = now;
    }
    world.launches--;
    if (--gpu->opened == 0) {
        free(gpu->buffer);
        gpu->buffer = NULL;
    }
    ptx_checked_unlock();
}

/* ---- the last steps ---- */

void ptx_checked_note(const struct ptx_warp *w, const struct ptx_insn *in)
{
    struct gpu *gpu = gpu_of(w->block);
    struct ptx_step_made step = {.number = ++world.steps,
                                 .kernel = w->machine->kernel,
                                 .line = in->line,
                                 .block = w->block->ctaid[0],
                                 .warp = w->index,
                                 .times = 1};
    struct ptx_step_made *last = &gpu->step[(gpu->steps + STEPS - 1) % STEPS];
    if (gpu->steps && last->kernel == step.kernel && last->line == step.line &&
        last->block == step.block && last->warp == step.warp) {
        last->times++;
        return;
    }
    gpu->step[gpu->steps++ % STEPS] = step;
}

unsigned ptx_checked_last_steps(unsigned gpu_number, struct ptx_step_made *steps_out, unsigned most)
{
    const struct gpu *gpu = &world.gpu[gpu_number];
    ptx_checked_lock();
    unsigned count = gpu->steps < STEPS ? (unsigned)gpu->steps : STEPS;
    if (count > most) count = most;
    for (unsigned i = 0; i < count; i++)
        steps_out[i] = gpu->step[(gpu->steps - count + i) % STEPS];
    ptx_checked_unlock();
    return count;
}
