/* First part of the models of the barrier and of the push: the variants' options, the state, data as
 * causality sees it, words and their wait. barrier.pml and push.pml say what they are about. */

/* ---- a variant: sizes, who does what, and what goes wrong outside ---- */

#ifndef N
#define N 2 /* ranks: 2 or 3 */
#endif
#ifndef B
#define B 2 /* most blocks of a rank */
#endif
#ifndef L
#define L 3 /* launches */
#endif
#ifndef STAGED_IN
#define STAGED_IN 0 /* ranks that copy in, a bit each */
#endif
#ifndef STAGED_OUT
#define STAGED_OUT 0 /* ranks that copy out */
#endif
#ifndef SMALL
#define SMALL 0 /* ranks with one block */
#endif
#ifndef COPIES
#define COPIES 0 /* launches that are not a two-shot but a broadcast by copies */
#endif
#ifndef MULTICAST
#define MULTICAST 1 /* 0: over peers, where every access is through the owner's address */
#endif
#ifndef AT
#define AT 2 /* the launch from which the last rank is MISSING or has an ODD_HASH */
#endif
#ifdef ONLY
#define MAY_TIME_OUT (r == ONLY) /* on this rank */
#else
#define MAY_TIME_OUT true
#endif
#define STAGE_IN ((STAGED_IN >> r) & 1)
#define STAGE_OUT ((STAGED_OUT >> r) & 1)
#define BLOCKS (B - (B - 1) * ((SMALL >> r) & 1))
#define TWOSHOT(l) (!((COPIES >> (l)) & 1))
#ifdef MISSING
#define COMES(l) (!(r == N - 1 && (l) >= AT))
#else
#define COMES(l) 1
#endif
#ifdef ODD_HASH
#define HASH (launch[r] % 2 + 2 * (r == N - 1 && launch[r] >= AT))
#else
#define HASH (launch[r] % 2)
#endif

/* ---- state ---- */

/* Phases count modulo an even number and begin where they are about to wrap. */
#ifndef WRAP
#define WRAP 16
#endif
#define FIRST 13
#define LATER(phase, by) (((phase) + by) % WRAP)
#define AHEAD(got, phase) (((got) - (phase) + WRAP) % WRAP)
#ifdef ONE_LINE
#define LINE(phase) 0
#else
#define LINE(phase) ((phase) % 2)
#endif
#define WORD(phase, hash) ((phase) * 4 + (hash))
#define PHASE_OF(word) ((word) / 4)
#define HASH_OF(word) ((word) % 4)
#define NONE 255

/* Cell (b, s, c): of rank b's chunk, piece c of share s, which rank s reduces. */
#ifndef CELLS
#define CELLS (N * N * B)
#endif
#define CELL(b, s, c) (((b) * N + (s)) * B + (c))
#define INPUT(l) (2 * (l))
#define RESULT(l) (2 * (l) + 1)
#define BAD 255
#define OURS (((1 << (N * B)) - 1) << (r * N * B)) /* rank r's cells, a bit each */
#define OWN 0
#define SWITCH MULTICAST

#define AT_BLOCK (r * B + k)
#define AT_STREAM(r) (N * B + (r))
#define AT_COUNT_IN (N * B + N + r)
#define AT_COUNT_OUT (N * B + 2 * N + r)
#define AT_COUNT_END (N * B + 3 * N + r)
#define AT_WORD(r, line) (N * B + 4 * N + 2 * (r) + (line))
#define AGENTS (N * B + 6 * N)

byte value[CELLS];  /* INPUT or RESULT of a launch, or BAD */
bit address[CELLS]; /* of the last access: OWN or SWITCH */
int seen[AGENTS];
int fenced[AGENTS];

byte word[2 * N * N];   /* [line][reader][writer] */
byte flight[2 * N * N]; /* the same, on their way */
byte offset[2 * N];     /* [line][writer]: the launch whose offset was published last */
byte epoch[N];
byte count_in[N], count_out[N], count_end[N];
bool failed[N]; /* set by whichever rank's kernel has failed, one rank after the other */
bool mismatch;  /* some rank has seen another hash */
bool lost;      /* some rank has failed: data may be wrong, but no launch may be marked done with it */
bool aborted;
byte done[N]; /* the last launch that has ended well */
byte launch[N];
byte todo[N];    /* blocks of the launch that have not begun, a bit each */
byte running[N]; /* blocks of the launch that have not ended */
bool spoilt[N];  /* wrong data was copied out */

/* ---- data ---- */

/* `who` finds `old` in a cell and leaves `new` there (the same, if it reads). Leaves `good`. */
inline touch(who, cell, through, old, new)
{
    good = value[cell] == old && (seen[who] & (1 << (cell))) &&
           (address[cell] == through || (fenced[who] & (1 << (cell))));
    assert(good || lost);
    i = 0;
    do
    :: i < AGENTS ->
        seen[i] = seen[i] & ~(1 << (cell));
        fenced[i] = fenced[i] & ~(1 << (cell));
        i++
    :: else -> break
    od;
    i = 0;
    seen[who] = seen[who] | (1 << (cell));
    address[cell] = through;
    value[cell] = (good -> new : BAD);
}

inline learn(pupil, teacher)
{
    seen[pupil] = seen[pupil] | seen[teacher];
    fenced[pupil] = fenced[pupil] | fenced[teacher];
}

inline alias_fence(fencing)
{
    fenced[fencing] = fenced[fencing] | seen[fencing];
}

/* atom.inc: the last to come sets the counter back. */
inline count(counter, is_last)
{
    is_last = counter == BLOCKS - 1;
    counter = (is_last -> 0 : counter + 1);
}

/* .acq_rel.gpu: knows what all who counted before knew, and passes it on. */
inline join(counter_agent)
{
    learn(me, counter_agent);
    learn(counter_agent, me);
}

/* ---- words ---- */

#define AT_LINE(line, reader, writer) (((line) * N + (reader)) * N + (writer))

inline arrive(phase, publishes)
{
    if
#ifdef OFFSET_LATE
    :: !publishes -> offset[LINE(phase + 1) * N + r] = launch[r]
#else
    :: publishes -> offset[LINE(phase) * N + r] = launch[r]
#endif
    :: else
    fi;
#if MULTICAST && !defined(NO_FENCE) && !defined(FENCE_AFTER)
    alias_fence(me);
#endif
#ifdef NO_RELEASE
    seen[AT_WORD(r, LINE(phase))] = 0;
    fenced[AT_WORD(r, LINE(phase))] = 0;
#else
    seen[AT_WORD(r, LINE(phase))] = seen[me];
    fenced[AT_WORD(r, LINE(phase))] = fenced[me];
#endif
#ifdef FENCE_AFTER
    alias_fence(me);
#endif
    i = 0;
    do
#ifdef WORDS_AT_ONCE
    :: i < N -> word[AT_LINE(LINE(phase), i, r)] = WORD(phase, HASH); i++
#else
    :: i < N -> flight[AT_LINE(LINE(phase), i, r)] = WORD(phase, HASH); i++
#endif
    :: else -> break
    od;
    i = 0;
}

/* A release orders the writer's earlier word before its later one. */
#ifdef OVERTAKE
#define IN_TURN(line) true
#else
#define IN_TURN(line)                          \
    (flight[AT_LINE(1 - line, b, a)] == NONE || \
     AHEAD(PHASE_OF(flight[AT_LINE(1 - line, b, a)]), PHASE_OF(flight[AT_LINE(line, b, a)])) < 8)
#endif
#define DELIVER(line)                                              \
    d_step {                                                       \
        flight[AT_LINE(line, b, a)] != NONE && IN_TURN(line) ->    \
        word[AT_LINE(line, b, a)] = flight[AT_LINE(line, b, a)];   \
        flight[AT_LINE(line, b, a)] = NONE                         \
    }

/* Brings rank a's words to rank b. */
proctype network(byte b; byte a)
{
end:
    do
    :: DELIVER(0)
    :: DELIVER(1)
    od
}

#define FOUND(phase, a) word[AT_LINE(LINE(phase), r, a)]
#ifdef WAIT_EQUAL
#define CAME(phase, a) (PHASE_OF(FOUND(phase, a)) == (phase))
#else
#define CAME(phase, a) (AHEAD(PHASE_OF(FOUND(phase, a)), phase) < 8)
#endif
#if N == 2
#define ALL_CAME(phase) (CAME(phase, 0) && CAME(phase, 1))
#else
#define ALL_CAME(phase) (CAME(phase, 0) && CAME(phase, 1) && CAME(phase, 2))
#endif

#ifdef NO_HASH
#define COMPARED(phase, a) false
#elif defined(HASH_ALWAYS)
#define COMPARED(phase, a) true
#else
#define COMPARED(phase, a) (PHASE_OF(FOUND(phase, a)) == (phase))
#endif

/* tell.ptxh: every rank is told, one after the other, before the launch ends. */
#ifdef TELL_SELF
#define TOLD(s) (s == r)
#else
#define TOLD(s) true
#endif
#ifdef AT_ONCE
#define BY_AND_BY atomic
#else
#define BY_AND_BY
#endif
inline tell()
{
    BY_AND_BY {
        s = 0;
        do
        :: atomic { s < N -> failed[s] = failed[s] || TOLD(s); s++ }
        :: else -> break
        od;
        s = 0;
        aborted = true
    }
}

/* Every rank has come: its word is acquired, the hashes are compared, the offsets read. */
inline accept(phase, published)
{
    j = 0;
    do
    :: j < N ->
#ifndef NO_ACQUIRE
        learn(me, AT_WORD(j, LINE(phase)));
#endif
#ifdef NEVER_AHEAD
        assert(PHASE_OF(FOUND(phase, j)) == phase);
#endif
        if
        :: COMPARED(phase, j) && HASH_OF(FOUND(phase, j)) != HASH -> wrong = true
        :: else -> assert(!published || lost || offset[LINE(phase) * N + j] == launch[r])
        fi;
        j++
    :: else -> break
    od;
    j = 0;
    lost = lost || wrong;
    mismatch = mismatch || wrong;
}

/* Leaves `wrong`. */
inline wait(for_phase, with_offsets)
{
    if
    :: d_step { ALL_CAME(for_phase) -> accept(for_phase, with_offsets) }
#ifdef TIMEOUT
    :: d_step { MAY_TIME_OUT && !ALL_CAME(for_phase) -> wrong = true; lost = true }
#endif
#ifndef NO_ABORT
    :: d_step { aborted && !ALL_CAME(for_phase) -> wrong = true; lost = true }
#endif
    fi;
}
