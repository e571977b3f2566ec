/* Who runs when. Ordinarily every stream's worker runs its own work. Between soft_hold and the end
 * of soft_take_turns the workers wait instead, and the thread that called soft_take_turns does
 * everybody's work a turn at a time, in an order that follows from the seed alone: a run can be
 * repeated exactly, however many processors there are. */
#include <sched.h>
#include <stdlib.h>

#include "soft.h"
#include "soft_internal.h"

enum {
    MOST_STREAMS = 64,
    /* turns between two draws of how often each stream comes */
    EPOCH = 256,
    TURN_NS = 1000 /* by the clock that kernels see */
};

struct taker {
    struct stream *stream;
    uintptr_t order;            /* the stream's handle: streams made earlier come earlier */
    int (*step)(void *context); /* NULL: its worker is at something else */
    void *context;
    unsigned weight;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int holding;
    uint64_t seed, random, launches, turns, clock;
    struct taker taker[MOST_STREAMS];
    unsigned takers;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static unsigned below(unsigned limit)
{
    return (unsigned)((mix(state.random += 0x9e3779b97f4a7c15u) >> 32) * limit >> 32);
}

/* A different one for every launch, the same again in a process that does the same. */
uint64_t turns_seed(const struct device *device)
{
    pthread_mutex_lock(&state.lock);
    uint64_t seed = state.holding ? state.seed : settings.seed;
    uint64_t number = ++state.launches;
    pthread_mutex_unlock(&state.lock);
    return mix((seed + 0x9e3779b97f4a7c15u * number) ^ (uint64_t)device->ordinal << 56);
}

const uint64_t *turns_clock(void)
{
    pthread_mutex_lock(&state.lock);
    int holding = state.holding;
    pthread_mutex_unlock(&state.lock);
    return holding ? &state.clock : NULL;
}

/* ---- the workers' side ---- */

static struct taker *find(struct stream *stream)
{
    for (unsigned i = 0; i < state.takers; i++)
        if (state.taker[i].stream == stream) return &state.taker[i];
    return NULL;
}

/* In the order of the streams' handles, whoever comes first. */
static struct taker *insert(struct stream *stream)
{
    uintptr_t order = ((struct object *)stream)->handle;
    unsigned i = state.takers;
    if (i == MOST_STREAMS) return NULL;
    for (state.takers++; i > 0 && state.taker[i - 1].order > order; i--)
        state.taker[i] = state.taker[i - 1];
    state.taker[i] = (struct taker){.stream = stream, .order = order, .weight = 1};
    return &state.taker[i];
}

/* 0 when nobody holds (any more), or there are more streams than turns can be given to. */
static int wait_for_turns(struct stream *stream, int (*step)(void *context), void *context)
{
    pthread_mutex_lock(&state.lock);
    struct taker *taker = state.holding ? find(stream) : NULL;
    if (state.holding && !taker) taker = insert(stream);
    if (taker) {
        taker->step = step;
        taker->context = context;
        pthread_cond_broadcast(&state.changed);
    }
    /* the array may be shifted meanwhile */
    for (; taker && taker->step && state.holding; taker = find(stream))
        pthread_cond_wait(&state.changed, &state.lock);
    int done = taker && !taker->step;
    pthread_mutex_unlock(&state.lock);
    return done;
}

void turns_run(struct stream *stream, int (*step)(void *context), void *context)
{
    unsigned idle = 0;
    if (wait_for_turns(stream, step, context)) return;
    for (int did; (did = step(context)) != 0;) {
        idle = did == 1 ? idle + 1 : 0;
        if (idle > 256)
            nap_us(20);
        else if (idle)
            sched_yield();
    }
}

/* ---- the side of the one who runs ---- */

void soft_hold(uint64_t seed)
{
    pthread_mutex_lock(&state.lock);
    state.holding = 1;
    state.seed = state.random = seed;
    state.launches = state.turns = state.takers = 0;
    state.clock = 1000000000;
    pthread_mutex_unlock(&state.lock);
}

/* Has every worker come, or nothing left to do? With the lock held, which is let go meanwhile. */
static int settle(unsigned streams)
{
    uint64_t deadline = now_ns() + settings.block_ms * 1000000ull;
    for (;;) {
        unsigned busy = 0;
        for (unsigned i = 0; i < state.takers; i++)
            busy += !state.taker[i].step && !stream_is_idle(state.taker[i].stream);
        if (!busy && state.takers >= streams) return 1;
        if (now_ns() > deadline) return 0;
        pthread_mutex_unlock(&state.lock);
        sched_yield();
        pthread_mutex_lock(&state.lock);
    }
}

static void draw_weights(void)
{
    for (unsigned i = 0; i < state.takers; i++)
        state.taker[i].weight = 1u << 2 * below(4);
}

/* NULL when all have ended. */
static struct taker *draw_taker(void)
{
    unsigned sum = 0;
    for (unsigned i = 0; i < state.takers; i++)
        if (state.taker[i].step) sum += state.taker[i].weight;
    if (!sum) return NULL;
    unsigned at = below(sum);
    for (unsigned i = 0;; i++) {
        struct taker *taker = &state.taker[i];
        if (!taker->step) continue;
        if (at < taker->weight) return taker;
        at -= taker->weight;
    }
}

/* Gives turns until all streams are idle; 0 when one did not come, or `between` had enough. Lock
 * held. */
static int give_turns(unsigned streams, int (*between)(void *context), void *context)
{
    if (!settle(streams)) return 0;
    for (struct taker *taker; (taker = draw_taker()) != NULL;) {
        if (state.turns++ % EPOCH == 0) draw_weights();
        state.clock += TURN_NS;
        int more = taker->step(taker->context);
        if (between && !between(context)) return 0;
        if (more) continue;
        taker->step = NULL;
        pthread_cond_broadcast(&state.changed);
        if (!settle(streams)) return 0;
    }
    return 1;
}

int soft_take_turns(unsigned streams, int (*between)(void *context), void *context,
                    uint64_t *turns_out)
{
    pthread_mutex_lock(&state.lock);
    int all = state.holding && give_turns(streams, between, context);
    state.holding = 0;
    pthread_cond_broadcast(&state.changed);
    *turns_out = state.turns;
    pthread_mutex_unlock(&state.lock);
    return all;
}

unsigned soft_last_steps(unsigned device, struct soft_step *steps_out, unsigned most)
{
    struct ptx_step_made made[64];
    if (device >= MAX_DEVICES) return 0;
    unsigned count = ptx_checked_last_steps(device, made, most < 64 ? most : 64);
    for (unsigned i = 0; i < count; i++)
        steps_out[i] = (struct soft_step){.number = made[i].number,
                                          .kernel = ptx_kernel_info(made[i].kernel)->name,
                                          .line = made[i].line,
                                          .block = made[i].block,
                                          .warp = made[i].warp,
                                          .times = made[i].times};
    return count;
}
