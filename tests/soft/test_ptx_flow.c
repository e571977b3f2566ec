/* Control flow of the PTX interpreter: divergence, spins whose producer stands elsewhere, lanes
 * that wait for lanes, barriers, residency, and launches that signal each other. A wrong
 * scheduler hangs here; the alarm turns that into a failure. */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "ptx_harness.h"

/* The start of most bodies: %o = address of my word in `a`, %lane, %tid. */
#define MINE                                                                                       \
    ".reg .b64 %o,%i,%m; .reg .b32 %lane,%tid,%x,%y,%z; .reg .pred %p,%q; ld.param.u64 %o,[a];"    \
    "ld.param.u64 %m,[b]; mov.u32 %lane,%laneid; mov.u32 %tid,%tid.x; mul.wide.u32 %i,%tid,4;"     \
    "add.u64 %o,%o,%i;\n"

static void expect_words(const char *what, const uint32_t *got, unsigned count,
                         uint32_t (*expect)(unsigned))
{
    for (unsigned i = 0; i < count; i++)
        EXPECT(got[i] == expect(i), "%s, thread %u: %u, not %u", what, i, got[i], expect(i));
}

/* ---- divergence ---- */

static uint32_t triangle(unsigned i) { return i * (i + 1) / 2; }

static void test_loop_of_unequal_lengths(void)
{
    uint32_t out[32];
    struct harness h = {.param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE "mov.u32 %x,0; mov.u32 %y,0;"
                    "TOP: add.u32 %x,%x,%y; add.u32 %y,%y,1; setp.le.u32 %p,%y,%lane;"
                    "@%p bra TOP; activemask.b32 %z; setp.ne.u32 %q,%z,0xffffffff;"
                    "@%q mov.u32 %x,9999; st.global.u32 [%o],%x;");
    expect_words("sum, reconverged", out, 32, triangle);
}

static uint32_t nested_result(unsigned i)
{
    return (i & 1 ? (i & 2 ? 3 : 1) : (i & 2 ? 2 : 0)) + 100 * (i % 3 == 0);
}

static void test_nested_branches(void)
{
    uint32_t out[64];
    struct harness h = {.block = 64, .param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE "and.b32 %x,%tid,1; setp.ne.u32 %p,%x,0; @%p bra ODD;"
                    "and.b32 %x,%tid,2; setp.ne.u32 %p,%x,0; mov.u32 %y,0; @%p mov.u32 %y,2;"
                    "bra.uni JOIN;"
                    "ODD: { .reg .pred %p; and.b32 %x,%tid,2; setp.ne.u32 %p,%x,0; @%p bra IN;"
                    "mov.u32 %y,1; bra OUT; IN: mov.u32 %y,3; OUT: }"
                    "JOIN: rem.u32 %x,%tid,3; setp.eq.u32 %p,%x,0; @%p add.u32 %y,%y,100;"
                    "st.global.u32 [%o],%y;");
    expect_words("nested", out, 64, nested_result);
}

static uint32_t scoped(unsigned i) { return 33 + 7 * i; }

static uint32_t looped(unsigned i) { return 3 * (i + 5); }

/* Not even when they are first used behind it, and a loop goes back to it. */
static void test_scope_in_a_loop(void)
{
    uint32_t out[32];
    struct harness h = {.param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE "{ .reg .b32 %sum,%turn; .reg .pred %first; mov.u32 %x,0;"
                    "AGAIN: { .reg .b32 %i,%j,%k; .reg .pred %p,%q; mov.u32 %i,77; mov.u32 %j,78;"
                    "mov.u32 %k,79; setp.eq.u32 %p,%i,%j; setp.ne.u32 %q,%i,%k; @%p bra SKIP;"
                    "@%q add.u32 %y,%lane,5; SKIP: }"
                    "setp.eq.u32 %first,%x,0; @%first mov.u32 %sum,0; add.u32 %sum,%sum,%y;"
                    "mov.u32 %turn,%x; add.u32 %x,%turn,1; setp.lt.u32 %p,%x,3; @%p bra AGAIN;"
                    "st.global.u32 [%o],%sum; }");
    expect_words("a scope in a loop", out, 32, looped);
}

/* Registers of a scope that has closed make room for later ones, never for those still in use. */
static void test_scopes(void)
{
    uint32_t out[32];
    struct harness h = {.param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE "mul.lo.u32 %x,%lane,7; { .reg .b32 %i,%j,%k; .reg .pred %p; mov.u32 %i,1;"
                    "mov.u32 %j,2; setp.eq.u32 %p,%i,1; mov.u32 %k,0; @%p add.u32 %x,%x,%i;"
                    "add.u32 %x,%x,%j; } { .reg .b32 %k,%l; .reg .b64 %w; .reg .pred %p,%q;"
                    "mov.u32 %k,10; mov.u32 %l,20; setp.eq.u32 %p,%k,10; setp.eq.u32 %q,%l,10;"
                    "mov.b64 %w,{%k,%l}; @%q mov.u32 %k,0; { .reg .b32 %i,%j; mov.u32 %i,%tid.y;"
                    "mov.u32 %j,0; add.u32 %k,%k,%i; } mov.b64 {%l,_},%w; mov.b64 {_,%l},%w;"
                    "@%p add.u32 %x,%x,%k; add.u32 %x,%x,%l; } st.global.u32 [%o],%x;");
    expect_words("scopes", out, 32, scoped);
}

static uint32_t lane_plus_1(unsigned i) { return i + 1; }

/* A lane that spins at a low program counter waits for one that stores at a higher one. */
static void test_spin_below_producer(void)
{
    uint32_t out[32], flag = 0;
    struct harness h = {.param = {(uintptr_t)out, (uintptr_t)&flag}};
    harness_ok(&h, "",
               MINE "setp.eq.u32 %p,%lane,31; @%p bra PRODUCE;"
                    "SPIN: ld.acquire.gpu.global.u32 %x,[%m]; setp.eq.u32 %q,%x,0; @%q bra SPIN;"
                    "bra DONE; PRODUCE: st.release.gpu.global.u32 [%m],5;"
                    "DONE: add.u32 %x,%lane,1; st.global.u32 [%o],%x;");
    expect_words("spin", out, 32, lane_plus_1);
    EXPECT(flag == 5, "flag %u", flag);
}

/* Every lane takes one lock in turn: a CAS loop whose holder leaves it downwards. */
static void test_lock(void)
{
    uint32_t out[128] = {0}, memory[2] = {0};
    struct harness h = {.block = 128, .param = {(uintptr_t)out, (uintptr_t)memory}};
    harness_ok(&h, "",
               MINE
               "TRY: atom.acquire.gpu.global.cas.b32 %x,[%m],0,1; setp.ne.u32 %p,%x,0;"
               "@%p bra TRY; ld.global.u32 %y,[%m+4]; add.u32 %y,%y,1; st.global.u32 [%m+4],%y;"
               "st.release.gpu.global.u32 [%m],0; st.global.u32 [%o],1;");
    EXPECT(memory[1] == 128, "count %u", memory[1]);
}

/* A wait that ends by the clock, in lanes that hold up the rest. */
static void test_deadline(void)
{
    uint32_t out[32], flag = 0;
    struct harness h = {.param = {(uintptr_t)out, (uintptr_t)&flag}};
    harness_ok(&h, "",
               MINE ".reg .b64 %t,%n; mov.u64 %t,%globaltimer; add.u64 %t,%t,2000000;"
                    "SPIN: ld.relaxed.sys.global.u32 %x,[%m]; setp.ne.u32 %p,%x,0; @%p bra OUT;"
                    "mov.u64 %n,%globaltimer; setp.lt.u64 %p,%n,%t; @%p bra SPIN;"
                    "OUT: add.u32 %x,%lane,1; st.global.u32 [%o],%x;");
    expect_words("deadline", out, 32, lane_plus_1);
}

/* ---- lanes that wait for lanes ---- */

/* Rotation after many turns has split the warp: the exchange still sees all 32 lanes. */
static uint32_t all_lanes_sum(unsigned i)
{
    (void)i;
    return 496;
}

static void test_exchange_after_a_split(void)
{
    uint32_t out[32];
    struct harness h = {.param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE "mul.lo.u32 %x,%lane,40; mov.u32 %y,0;"
                    "TOP: add.u32 %y,%y,1; setp.lt.u32 %p,%y,%x; @%p bra TOP;"
                    "mov.u32 %x,%lane; mov.u32 %y,16;"
                    "SUM: shfl.sync.bfly.b32 %z,%x,%y,31,0xffffffff; add.u32 %x,%x,%z;"
                    "shr.u32 %y,%y,1; setp.ne.u32 %p,%y,0; @%p bra SUM; st.global.u32 [%o],%x;");
    expect_words("butterfly", out, 32, all_lanes_sum);
}

static uint32_t after_up(unsigned i)
{
    unsigned segment = i / 8 * 8;
    return i - segment >= 3 ? i - 3 + 1000 : i;
}

static uint32_t after_down(unsigned i) { return i + 2 < 32 ? i + 2 : i; }

static void test_shuffles(void)
{
    uint32_t out[32];
    struct harness h = {.param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE "shfl.sync.up.b32 %x|%p,%lane,3,0x1800,-1; @%p add.u32 %x,%x,1000;"
                    "st.global.u32 [%o],%x;");
    expect_words("up in segments of 8", out, 32, after_up);
    harness_ok(&h, "", MINE "shfl.sync.down.b32 %x,%lane,2,31,-1; st.global.u32 [%o],%x;");
    expect_words("down", out, 32, after_down);
    harness_ok(&h, "",
               MINE "mov.u32 %y,5; add.u32 %z,%lane,1; shfl.sync.idx.b32 %x,%z,%y,31,-1;"
                    "sub.u32 %x,%x,6; add.u32 %x,%x,%z; st.global.u32 [%o],%x;");
    expect_words("index", out, 32, lane_plus_1);
}

/* Two halves of a warp in two branches, each exchanging among its own. */
static uint32_t half_sum(unsigned i) { return i < 16 ? 120 : 376; }

static void test_halves_apart(void)
{
    uint32_t out[32];
    struct harness h = {.param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE "setp.lt.u32 %p,%lane,16; @%p bra LOW;"
                    "redux.sync.add.u32 %x,%lane,0xffff0000; bra DONE;"
                    "LOW: redux.sync.add.u32 %x,%lane,0x0000ffff; DONE: st.global.u32 [%o],%x;");
    expect_words("two branches", out, 32, half_sum);
    harness_ok(&h, "",
               MINE "setp.lt.u32 %p,%lane,16; selp.b32 %y,0xffff,0xffff0000,%p;"
                    "redux.sync.add.u32 %x,%lane,%y; st.global.u32 [%o],%x;");
    expect_words("one instruction, two masks", out, 32, half_sum);
}

static void test_votes(void)
{
    uint32_t out[32];
    struct harness h = {.param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE
               "setp.lt.u32 %p,%lane,5; vote.sync.ballot.b32 %x,%p,-1;"
               "vote.sync.any.pred %q,%p,-1; @%q or.b32 %x,%x,0x100;"
               "vote.sync.all.pred %q,%p,-1; @%q or.b32 %x,%x,0x200;"
               "vote.sync.uni.pred %q,%p,-1; @%q or.b32 %x,%x,0x400;"
               "vote.sync.all.pred %q,!%p,-1; @%q or.b32 %x,%x,0x800;"
               "elect.sync %y|%q,-1; @%q or.b32 %x,%x,0x1000;"
               "and.b32 %z,%lane,3; match.any.sync.b32 %y,%z,-1; popc.b32 %y,%y; shl.b32 %y,%y,16;"
               "or.b32 %x,%x,%y; match.all.sync.b32 %y|%q,%z,-1; @%q or.b32 %x,%x,0x2000;"
               "st.global.u32 [%o],%x;");
    for (unsigned i = 0; i < 32; i++) {
        uint32_t expect = 0x1f | 0x100 | 8 << 16 | (i == 0 ? 0x1000 : 0);
        EXPECT(out[i] == expect, "lane %u: %x, not %x", i, out[i], expect);
    }
}

/* Lanes that have exited are not waited for. */
static void test_exited_members(void)
{
    uint32_t out[32] = {0};
    struct harness h = {.param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE "setp.ge.u32 %p,%lane,20; @%p exit; redux.sync.max.u32 %x,%lane,-1;"
                    "st.global.u32 [%o],%x;");
    EXPECT(out[0] == 19 && out[19] == 19 && out[20] == 0, "%u %u %u", out[0], out[19], out[20]);
}

/* Those that leave while others already wait let these go on. */
static void test_exits_past_waiting_lanes(void)
{
    uint32_t out[32] = {0};
    struct harness h = {.param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE "setp.ge.u32 %p,%lane,20; @%p bra LATE; bar.warp.sync -1;"
                    "st.global.u32 [%o],1; exit; LATE: exit;");
    EXPECT(out[0] == 1 && out[19] == 1 && out[20] == 0, "bar.warp: %u %u %u", out[0], out[19],
           out[20]);
    harness_ok(&h, "",
               MINE "setp.ge.u32 %p,%lane,20; @%p bra LATE; vote.sync.ballot.b32 %x,!%p,-1;"
                    "st.global.u32 [%o],%x; exit; LATE: exit;");
    EXPECT(out[0] == 0xfffff && out[19] == 0xfffff, "vote: %x %x", out[0], out[19]);
}

/* bar.warp.sync pairs across program counters, and orders stores before it. */
static void test_bar_warp_across_branches(void)
{
    uint32_t out[32], words[32];
    struct harness h = {.param = {(uintptr_t)out, (uintptr_t)words}};
    harness_ok(&h, "",
               MINE "add.u64 %i,%m,%i; add.u32 %x,%lane,1; setp.lt.u32 %p,%lane,7; @%p bra LOW;"
                    "st.global.u32 [%i],%x; bar.warp.sync -1; bra DONE;"
                    "LOW: st.global.u32 [%i],%x; bar.warp.sync -1;"
                    "DONE: xor.b32 %y,%lane,31; mul.wide.u32 %i,%y,4; add.u64 %i,%m,%i;"
                    "ld.global.u32 %z,[%i]; sub.u32 %z,%z,%y; sub.u32 %z,%z,1; add.u32 %z,%z,%x;"
                    "st.global.u32 [%o],%z;");
    expect_words("both sides", out, 32, lane_plus_1);
}

/* ---- barriers ---- */

static uint32_t block_sum(unsigned i)
{
    (void)i;
    return 96 * 95 / 2;
}

static void test_barrier_and_shared(void)
{
    uint32_t out[96];
    struct harness h = {.block = 96, .param = {(uintptr_t)out}};
    harness_ok(&h, "",
               ".shared .align 4 .b8 buffer[384];" MINE
               ".reg .b32 %s,%k; shl.b32 %s,%tid,2; mov.u32 %k,buffer; add.u32 %s,%s,%k;"
               "st.shared.u32 [%s],%tid; bar.sync 0; mov.u32 %x,0; mov.u32 %y,0;"
               "TOP: shl.b32 %z,%y,2; add.u32 %z,%z,%k; ld.shared.u32 %z,[%z]; add.u32 %x,%x,%z;"
               "add.u32 %y,%y,1; setp.lt.u32 %p,%y,96; @%p bra TOP; st.global.u32 [%o],%x;");
    expect_words("sum over shared", out, 96, block_sum);
}

/* Warps that have left are not waited for, whether they left before or after the others came. */
static void test_barrier_and_exits(void)
{
    uint32_t out[128] = {0};
    struct harness h = {.block = 128, .param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE
               "setp.lt.u32 %p,%tid,32; @%p exit; setp.ge.u32 %p,%tid,96; @!%p bra WAIT;"
               "mov.u32 %x,0; SLOW: add.u32 %x,%x,1; setp.lt.u32 %q,%x,100; @%q bra SLOW; exit;"
               "WAIT: bar.sync 3; st.global.u32 [%o],7;");
    EXPECT(out[0] == 0 && out[32] == 7 && out[95] == 7 && out[96] == 0, "%u %u %u %u", out[0],
           out[32], out[95], out[96]);
}

/* Lanes may come to barrier.sync, which is not aligned, from two places. */
static void test_barrier_across_branches(void)
{
    uint32_t out[64] = {0};
    struct harness h = {.block = 64, .param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE "setp.lt.u32 %p,%lane,9; @%p bra LOW; barrier.sync 0; bra DONE;"
                    "LOW: barrier.sync 0; DONE: st.global.u32 [%o],7;");
    EXPECT(out[0] == 7 && out[63] == 7, "barrier.sync: %u %u", out[0], out[63]);
}

/* One half of the warps produces, the other consumes: bar.arrive and bar.sync with counts. */
static uint32_t handed_over(unsigned i) { return i < 32 ? 0 : i - 32 + 500; }

static void test_arrive(void)
{
    uint32_t out[64] = {0};
    struct harness h = {.block = 64, .param = {(uintptr_t)out}};
    harness_ok(&h, "",
               ".shared .b32 buffer[32];" MINE
               ".reg .b32 %s,%k; mov.u32 %k,buffer; shl.b32 %s,%lane,2; add.u32 %s,%s,%k;"
               "setp.ge.u32 %p,%tid,32; @%p bra CONSUME; add.u32 %x,%lane,500;"
               "st.shared.u32 [%s],%x; bar.arrive 2,64; exit;"
               "CONSUME: bar.sync 2,64; ld.shared.u32 %x,[%s]; st.global.u32 [%o],%x;");
    expect_words("hand-over", out, 64, handed_over);
}

static uint32_t forty(unsigned i)
{
    (void)i;
    return 40 + 0x100 + 0x400;
}

static void test_barrier_reductions(void)
{
    uint32_t out[64];
    struct harness h = {.block = 64, .param = {(uintptr_t)out}};
    harness_ok(&h, "",
               MINE
               "setp.lt.u32 %p,%tid,40; bar.red.popc.u32 %x,0,%p; barrier.cta.red.or.pred %q,1,%p;"
               "@%q add.u32 %x,%x,0x100; bar.red.and.pred %q,0,64,%p; @%q add.u32 %x,%x,0x200;"
               "setp.lt.u32 %p,%tid,64; bar.red.and.pred %q,0,%p; @%q add.u32 %x,%x,0x400;"
               "barrier.sync.aligned 5; st.global.u32 [%o],%x;");
    expect_words("bar.red", out, 64, forty);
}

/* ---- blocks ---- */

/* Block 0 waits for a word that block 1 sets: both must be resident. */
static void test_blocks_wait_for_each_other(void)
{
    uint32_t out[64] = {0}, flags[2] = {0};
    struct harness h = {.grid = 2, .param = {(uintptr_t)out, (uintptr_t)flags}};
    harness_ok(&h, "",
               MINE "mov.u32 %x,%ctaid.x; mul.wide.u32 %i,%x,128; add.u64 %o,%o,%i;"
                    "mul.wide.u32 %i,%x,4; add.u64 %i,%m,%i; xor.b32 %y,%x,1;"
                    "setp.eq.u32 %p,%lane,0; @%p st.release.gpu.global.u32 [%i],1;"
                    "mul.wide.u32 %i,%y,4; add.u64 %i,%m,%i;"
                    "SPIN: ld.acquire.gpu.global.u32 %z,[%i]; setp.eq.u32 %q,%z,0; @%q bra SPIN;"
                    "st.global.u32 [%o],1;");
    for (unsigned i = 0; i < 64; i++)
        EXPECT(out[i] == 1, "thread %u", i);
}

/* More blocks than fit: each runs once, and says where. */
static void test_many_blocks(void)
{
    uint32_t out[40] = {0};
    struct harness h = {.grid = 40, .block = 1024, .processors = 3, .param = {(uintptr_t)out}};
    harness_ok(&h, "",
               ".reg .b64 %o,%i; .reg .b32 %x; .reg .pred %p; ld.param.u64 %o,[a];"
               "mov.u32 %x,%smid; setp.ge.u32 %p,%x,%nsmid; @%p trap; mov.u32 %x,%ctaid.x;"
               "mul.wide.u32 %i,%x,4; add.u64 %o,%o,%i; red.relaxed.gpu.global.add.u32 [%o],1;");
    for (unsigned i = 0; i < 40; i++)
        EXPECT(out[i] == 1024, "block %u: %u", i, out[i]);
    EXPECT(h.counts.instructions == 40 * 1024 * 7, "%llu instructions",
           (unsigned long long)h.counts.instructions);
}

/* ---- launches ---- */

struct side {
    struct harness h;
    const char *body;
};

static void *run_side(void *argument)
{
    struct side *side = argument;
    harness_run(&side->h, "", side->body);
    return NULL;
}

#define PING                                                                                       \
    ".reg .b64 %m,%n; .reg .b32 %x,%k; .reg .pred %p; ld.param.u64 %m,[a]; ld.param.u64 %n,[b];"   \
    "mov.u32 %k,1; TOP: st.release.sys.global.u32 [%m],%k;"                                        \
    "SPIN: ld.acquire.sys.global.u32 %x,[%n]; setp.lt.u32 %p,%x,%k; @%p bra SPIN;"                 \
    "add.u32 %k,%k,1; setp.le.u32 %p,%k,200; @%p bra TOP;"

static void test_two_launches(void)
{
    uint32_t words[2] = {0};
    struct side a = {.h = {.param = {(uintptr_t)&words[0], (uintptr_t)&words[1]}}, .body = PING};
    struct side b = {.h = {.param = {(uintptr_t)&words[1], (uintptr_t)&words[0]}}, .body = PING};
    pthread_t thread;
    pthread_create(&thread, NULL, run_side, &a);
    run_side(&b);
    pthread_join(thread, NULL);
    EXPECT(a.h.outcome == PTX_DONE && b.h.outcome == PTX_DONE, "%s %s", a.h.error, b.h.error);
    EXPECT(words[0] == 200 && words[1] == 200, "%u %u", words[0], words[1]);
}

enum { STOP_AFTER_MS = 100 };

static void *stop_soon(void *argument)
{
    struct harness *h = argument;
    usleep(STOP_AFTER_MS * 1000);
    atomic_store(&h->stop, 1);
    return NULL;
}

/* A kernel that only polls ends when told to, and has left the processor to others until then. */
static void test_stop(void)
{
    uint32_t word = 0;
    double used = unit_ms(CLOCK_PROCESS_CPUTIME_ID), begin = unit_ms(CLOCK_MONOTONIC);
    struct harness h = {.param = {(uintptr_t)&word}};
    pthread_t thread;
    pthread_create(&thread, NULL, stop_soon, &h);
    harness_run(&h, "",
                ".reg .b64 %m; .reg .b32 %x; .reg .pred %p; ld.param.u64 %m,[a];"
                "SPIN: ld.relaxed.sys.global.u32 %x,[%m]; setp.eq.u32 %p,%x,0; @%p bra SPIN;");
    pthread_join(thread, NULL);
    used = unit_ms(CLOCK_PROCESS_CPUTIME_ID) - used;
    double took = unit_ms(CLOCK_MONOTONIC) - begin;
    EXPECT(h.outcome == PTX_STOPPED, "outcome %d", (int)h.outcome);
    EXPECT(used < took * 0.6, "%.0f ms of processor time in %.0f", used, took);
}

static void expect_trap(const char *what, const char *body, unsigned block, const char *message)
{
    uint32_t out[64];
    struct harness h = {.block = block, .param = {(uintptr_t)out}};
    harness_run(&h, "", body);
    EXPECT(h.outcome == PTX_TRAP && strstr(h.error, message), "%s: outcome %d, %s", what,
           (int)h.outcome, h.error);
}

static void test_traps(void)
{
    expect_trap("trap", MINE "setp.eq.u32 %p,%lane,9; @%p trap;", 32, "trap");
    expect_trap("one warp never comes", MINE "setp.lt.u32 %p,%tid,32; @%p bar.sync 1,64;", 64,
                "deadlock");
    expect_trap("half waits for the other",
                MINE "setp.lt.u32 %p,%lane,9; @%p bra L; bar.warp.sync -1; exit; L: bar.sync 0,64;",
                64, "deadlock");
    expect_trap("lanes of a warp at two aligned barriers",
                MINE "setp.lt.u32 %p,%lane,9; @%p bra L; bar.sync 0; exit; L: bar.sync 0;", 64,
                "of a warp's lanes 0xffffffff only 0x");
    expect_trap("half of each warp", MINE "setp.lt.u32 %p,%lane,16; @%p barrier.sync.aligned 1,32;",
                64, "aligned");
    expect_trap("not a member", MINE "redux.sync.add.u32 %x,%lane,2;", 32, "member");
    expect_trap("barrier 16", MINE "mov.u32 %x,16; bar.sync %x;", 32, "barrier 16");
}

int main(void)
{
    alarm(60);
    test_loop_of_unequal_lengths();
    test_nested_branches();
    test_scopes();
    test_scope_in_a_loop();
    test_spin_below_producer();
    test_lock();
    test_deadline();
    test_exchange_after_a_split();
    test_shuffles();
    test_halves_apart();
    test_votes();
    test_exited_members();
    test_exits_past_waiting_lanes();
    test_bar_warp_across_branches();
    test_barrier_and_shared();
    test_barrier_and_exits();
    test_barrier_across_branches();
    test_arrive();
    test_barrier_reductions();
    test_blocks_wait_for_each_other();
    test_many_blocks();
    test_two_launches();
    test_stop();
    test_traps();
    return unit_end();
}
