/* A model of the push over peers and through the switch: of ptx/push.ptxh, packets_*.ptxh and
 * await_packets.ptxh, with the barrier's words, counts and streams, which memory.pml has. For spin;
 * run.py builds it in many variants and says what each must give.
 *
 * What is kept: ranks and blocks, two sets of boxes, packets that land one by one and whenever the
 * network likes until their launch has ended, polls that a mark ends, clearing, the phase and its
 * wrap, blocks that take other packets from launch to launch, other kinds of launches in between, and
 * failures. What is not: a block is one agent, but that it arrives before it pushes, as its first warp
 * may, and that block 0 waits at any time while it takes; packets are taken rank by rank, where the
 * kernel takes those of four ranks together, or none of them, which is one of the orders here; and
 * nothing is added up.
 *
 * Packets are relaxed, and carry no knowledge: who sees one knows its data and no more. So what must
 * be shown is that a packet finds its place empty, with the clearing in its causal past (else the two
 * are a race, and the clearing may wipe the packet out), and that the packet which is seen is of this
 * launch. Both must hold whatever has failed. */

#define CELLS (2 * N * N * C)
#ifndef C
#define C 2 /* packets from each rank to each */
#endif
#define MULTICAST 0 /* boxes need no alias fence: the end of a launch orders all addresses */
#include "memory.pml"

#ifndef TWOSHOTS
#define TWOSHOTS 0 /* launches that are a two-shot, a bit each */
#endif
#ifndef BARRIERS
#define BARRIERS 0 /* launches that only meet */
#endif
#define IS_TWOSHOT(l) ((TWOSHOTS >> (l)) & 1)
#define IS_PUSH(l) (!(((TWOSHOTS | BARRIERS) >> (l)) & 1))
#ifdef TO_ITSELF /* through the switch a packet comes back to its own rank, too */
#define PUSHES_TO(s) true
#else
#define PUSHES_TO(s) ((s) != r)
#endif

/* Of rank b: the place of packet c from rank a, in the set for `phase`. */
#ifdef ONE_SET
#define SET(phase) 0
#else
#define SET(phase) ((phase) % 2)
#endif
#define BOX(b, a, phase, c) (((SET(phase) * N + (b)) * N + (a)) * C + (c))
#define EMPTY 0
/* A packet is marked with its launch, and as that of another call where the hash is another. */
#define OTHER_CALL 16
#ifdef ODD_HASH
#define MARK (launch[r] + OTHER_CALL * (r == N - 1 && launch[r] >= AT))
#else
#define MARK launch[r]
#endif
#define PHASE LATER(begun, 1) /* of a block's launch */
#define TAKES(c) (((c) + launch[r]) % BLOCKS == k)

byte flying[CELLS]; /* packets on their way to a place: the launch that they are of */

/* ---- packets ---- */

/* One store. All that is known of a place before is what the stream brought along. */
inline push(to, packet)
{
    fresh = value[BOX(to, r, PHASE, packet)] == EMPTY &&
            flying[BOX(to, r, PHASE, packet)] == EMPTY &&
            (seen[me] & (1 << BOX(to, r, PHASE, packet)));
    assert(fresh);
    flying[BOX(to, r, PHASE, packet)] = MARK;
}

inline push_all()
{
    s = 0;
    do
    :: s < N ->
        c = 0;
        do
        :: c < C && TAKES(c) && PUSHES_TO(s) -> push(s, c); c++
        :: c < C && !(TAKES(c) && PUSHES_TO(s)) -> c++
        :: else -> break
        od;
        s++
    :: else -> break
    od;
    s = 0;
    c = 0;
    fresh = false
}

proctype air(byte place)
{
end:
    do
    :: d_step { flying[place] != EMPTY -> value[place] = flying[place]; flying[place] = EMPTY }
    od
}

/* No packet of rank r is on its way. */
#define HERE(place) (flying[place] == EMPTY)
#if C == 1
#define FROM(b, set) HERE(BOX(b, r, set, 0))
#else
#define FROM(b, set) (HERE(BOX(b, r, set, 0)) && HERE(BOX(b, r, set, 1)))
#endif
#if N == 2
#define ALL_LANDED(set) (FROM(0, set) && FROM(1, set))
#else
#define ALL_LANDED(set) (FROM(0, set) && FROM(1, set) && FROM(2, set))
#endif

/* What was seen is mine to clear, and my clearing comes behind it. */
inline take(place)
{
    right = value[place] == MARK;
    assert(right);
    right = false;
    i = 0;
    do
    :: i < AGENTS -> seen[i] = seen[i] & ~(1 << (place)); i++
    :: else -> break
    od;
    i = 0;
    seen[me] = seen[me] | (1 << (place));
#ifndef NO_CLEAR
    value[place] = EMPTY
#endif
}

#ifdef ANY_MARK
#define HAS_COME(place) (value[place] != EMPTY)
#else
/* of this call; that it is of this launch too is what must be shown */
#define HAS_COME(place) (value[place] != EMPTY && value[place] / OTHER_CALL == MARK / OTHER_CALL)
#endif
#ifdef NO_FLAG
#define CAN_TAKE true
#elif defined(OWN_AT_ONCE)
#define CAN_TAKE (s == r || HAS_COME(BOX(r, s, PHASE, c)))
#elif defined(ONE_FLAG)
#define CAN_TAKE (c > 0 || HAS_COME(BOX(r, s, PHASE, c)))
#else
#define CAN_TAKE HAS_COME(BOX(r, s, PHASE, c))
#endif

#ifdef POLLS_BLIND
#define GIVES_UP(why) false
#else
#define GIVES_UP(why) (why)
#endif

/* To the next packet that this block takes: s and c, or s = N. */
inline find_next()
{
    do
    :: s < N && c < C && !(PUSHES_TO(s) && TAKES(c)) -> c++
    :: s < N && c == C -> s++; c = 0
    :: else -> break
    od;
    right = false
}

/* Of a push block 0 waits for every rank's word, at any time while packets are taken. */
#ifdef NO_WAIT
#define WAITS false
#else
#define WAITS (k == 0)
#endif

/* From every rank in turn. Leaves `wrong` where it has given up. */
inline take_all()
{
    d_step { s = 0; c = 0; waited = !WAITS; find_next() }
    do
    :: !waited && !wrong -> wait(PHASE, false); waited = true
    :: d_step { s < N && !wrong && CAN_TAKE -> take(BOX(r, s, PHASE, c)); c++; find_next() }
#ifdef TIMEOUT
    :: d_step { s < N && !wrong && !CAN_TAKE && GIVES_UP(MAY_TIME_OUT) -> wrong = true; lost = true }
#endif
    :: d_step { s < N && !wrong && !CAN_TAKE && GIVES_UP(aborted) -> wrong = true; lost = true }
    :: d_step { (s == N && waited) || wrong -> s = 0; c = 0; waited = false } break
    od
}

/* ---- kernels ---- */

/* The places that this launch has cleared: whoever tells the host has all of that in its past. In a graph
 * (REPLAYED) nobody tells it, and blocks count relaxed: the end of the launch passes on what each knows. */
inline check_taken()
{
    s = 0;
    do
    :: s < N ->
        c = 0;
        do
        :: c < C ->
            right = !PUSHES_TO(s) || (seen[me] & (1 << BOX(r, s, PHASE, c)));
            assert(right);
            c++
        :: else -> break
        od;
        s++
    :: else -> break
    od;
    s = 0;
    c = 0;
    right = false
}

proctype block(byte r; byte k)
{
    byte begun, i, j, s, c, me;
    bool last, wrong, fresh, right, waited;
    me = AT_BLOCK;
end:
    do
    :: d_step { /* state.ptxh */
        todo[r] & (1 << k) ->
        todo[r] = todo[r] & ~(1 << k);
        learn(me, AT_STREAM(r));
        begun = epoch[r];
#ifndef NO_FAILED_CHECK
        wrong = failed[r];
#endif
       }
       if
       :: wrong -> goto leave
       :: else
       fi;
       d_step {
           if
           :: k == 0 -> arrive(PHASE, false)
           :: else
           fi;
           if
           :: IS_PUSH(launch[r]) -> push_all()
           :: else
           fi
       }
       if
       :: IS_PUSH(launch[r]) -> take_all()
       :: else -> wait(PHASE, false)
       fi;
       if
       :: wrong -> goto leave
       :: else
       fi;

       d_step {
           count(count_out[r], last);
#if !defined(RELAXED_COUNT_OUT) && !defined(REPLAYED)
           join(AT_COUNT_OUT);
#endif
       }
       if
       :: !last -> goto leave
       :: last && IS_TWOSHOT(launch[r]) -> /* its exit */
           d_step { arrive(LATER(begun, 2), false) }
           wait(LATER(begun, 2), false);
           if
           :: wrong -> goto leave
           :: else -> epoch[r] = LATER(begun, 2)
           fi
#ifndef EPOCH_STAYS
       :: last && !IS_TWOSHOT(launch[r]) -> epoch[r] = PHASE
#endif
       :: else
       fi;
       d_step { /* done.ptxh, with OWN_BOXES */
#ifndef REPLAYED
           if
           :: IS_PUSH(launch[r]) -> check_taken()
           :: else
           fi;
#endif
           done[r] = launch[r]
       }

leave:
       if
       :: wrong -> tell()
       :: else
       fi;
       atomic {
           learn(AT_STREAM(r), me);
           seen[me] = 0;
           begun = 0;
           last = false;
           wrong = false;
           running[r]--;
       }
    od
}

/* ---- streams ---- */

proctype stream(byte r)
{
    byte l = 1;
    do
    :: l <= L && COMES(l) ->
        d_step {
            launch[r] = l;
            running[r] = BLOCKS;
            todo[r] = (1 << BLOCKS) - 1
        }
        d_step { running[r] == 0 && ALL_LANDED(0) && ALL_LANDED(1) -> assert(done[r] == l || failed[r]) }
        l++
    :: else -> break
    od;
#if defined(MISSING) || defined(ODD_HASH)
    assert(done[r] < AT); /* nobody passes a launch with one missing or different */
#elif !defined(TIMEOUT) && !defined(ABORT)
    assert(!failed[r] && done[r] == L);
#endif
#if defined(ODD_HASH) && !defined(TIMEOUT) && !defined(ABORT)
    assert(failed[r] && mismatch);
#elif !defined(ODD_HASH)
    assert(!mismatch);
#endif
}

proctype host()
{
    aborted = true
}

init {
    byte i, j;
    d_step {
        do
        :: i < N * N ->
            word[LINE(FIRST) * N * N + i] = WORD(FIRST, 0);
            word[(1 - LINE(FIRST)) * N * N + i] = WORD(FIRST - 1, 0);
            flight[i] = NONE;
            flight[N * N + i] = NONE;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < N ->
            epoch[i] = FIRST;
            seen[AT_STREAM(i)] = (1 << CELLS) - 1;
            i++
        :: else -> break
        od;
        i = 0;
    }
    atomic {
        do
        :: i < N ->
            run stream(i);
            j = 0;
            do
            :: j < B -> run block(i, j); j++
            :: else -> break
            od;
            j = 0;
            do
            :: j < N -> run network(i, j); j++
            :: else -> break
            od;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < CELLS -> run air(i); i++
        :: else -> break
        od;
        i = 0;
        j = 0;
#ifdef ABORT
        run host()
#endif
    }
}
