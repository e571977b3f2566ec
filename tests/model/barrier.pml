/* A model of the barrier between ranks: of ptx/arrive_*.ptxh and wait.ptxh, the two-shot kernels and
 * barrier kernels around them, and the streams that launch these. For spin; run.py builds it in many
 * variants and says what each must give.
 *
 * What is kept: ranks and blocks, the two counts, the words with epoch and hash in two lines, the
 * offsets published with them, the epoch, time-outs, the abort word, how a failure is told to every
 * rank, what is marked done, launches one after another, and streams that go on after a failure and
 * spoil memory. What is not: a block is one agent (its bar.sync makes it one), and
 * nothing is added up.
 *
 * Memory. A word travels to each rank separately and arrives whenever the network likes. Data is
 * judged by causality, as in the PTX memory model: `seen` of an agent is the set of cells whose last
 * access lies in its causal past, `fenced` those of them with an alias fence on the way. An agent that
 * touches a cell without its last access in its past (or through another address, without a fence on
 * the way) might have read too early, or overwritten what is still read: an assertion fails. So no
 * order of single stores need be tried. Agents are blocks, streams, and what carries their knowledge
 * to others: words and counts.
 *
 * Inlines are text: they use their caller's r, k, me and counters, and leave the counters at 0. */

#include "memory.pml"

/* ---- kernels ---- */

/* A copy divides the chunk among the blocks in another way than the reduction. */
inline copy(before, after)
{
    s = 0;
    do
    :: s < N ->
        c = k;
        do
        :: c < B ->
            touch(me, CELL(r, s, (c + 1) % B), OWN, before, after);
            bad = bad || !good;
            c = c + BLOCKS
        :: else -> break
        od;
        s++
    :: else -> break
    od;
    s = 0;
    c = 0;
}

/* Reads a piece from every rank, then writes the sum to every rank. */
inline reduce()
{
    c = k;
    do
    :: c < B ->
        s = 0;
        do
        :: s < N ->
            touch(me, CELL(s, r, c), SWITCH, INPUT(launch[r]), INPUT(launch[r]));
            bad = bad || !good;
            s++
        :: else -> break
        od;
        sum = (bad -> BAD : RESULT(launch[r]));
        s = 0;
        do
        :: s < N -> touch(me, CELL(s, r, c), SWITCH, value[CELL(s, r, c)], sum); s++
        :: else -> break
        od;
        bad = false;
        c = c + BLOCKS
    :: else -> break
    od;
    sum = 0;
    s = 0;
    c = 0;
}

proctype block(byte r; byte k)
{
    byte begun, sum, i, j, s, c, me;
    bool arrives, last, wrong, good, bad;
    me = AT_BLOCK;
end:
    do
    :: d_step { /* prologue.ptxh */
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

       if /* twoshot_begin.ptxh */
       :: d_step { !TWOSHOT(launch[r]) || !STAGE_IN -> arrives = k == 0 }
       :: TWOSHOT(launch[r]) && STAGE_IN ->
           d_step { copy(RESULT(launch[r] - 1), INPUT(launch[r])) }
           d_step {
               bad = false;
               count(count_in[r], arrives);
#ifndef RELAXED_COUNT_IN
               join(AT_COUNT_IN);
#endif
#ifdef NO_COUNT_IN
               arrives = k == 0;
#endif
           }
       fi;
       if
       :: d_step { arrives -> arrive(LATER(begun, 1), TWOSHOT(launch[r])); arrives = false }
       :: else
       fi;
#ifdef ONE_BLOCK_WAITS
       if
       :: k != 0 -> goto work
       :: else
       fi;
#endif
       wait(LATER(begun, 1), TWOSHOT(launch[r]));
       if
       :: wrong -> goto leave
       :: !wrong && !TWOSHOT(launch[r]) -> epoch[r] = LATER(begun, 1); goto leave
#ifdef EPOCH_EARLY
       :: !wrong && k == 0 -> epoch[r] = LATER(begun, 2)
#endif
       :: else
       fi;

work:
       atomic { reduce() }

       d_step { /* twoshot_end.ptxh */
           count(count_out[r], last);
#ifndef RELAXED_COUNT_OUT
           join(AT_COUNT_OUT);
#endif
#ifdef NO_COUNT_OUT
           last = k == 0;
#endif
#ifdef COUNT_STAYS
           count_out[r] = (last -> BLOCKS : count_out[r]);
#endif
       }
       if
       :: d_step { last -> arrive(LATER(begun, 2), false) }
       :: else
       fi;
       if
       :: !last && !STAGE_OUT -> goto leave
       :: else
       fi;
#ifndef NO_EXIT_WAIT
       wait(LATER(begun, 2), false);
       if
       :: wrong -> goto leave
       :: else
       fi;
#endif
       d_step {
           if
#if !defined(EPOCH_EARLY) && !defined(EPOCH_STAYS)
           :: last -> epoch[r] = LATER(begun, 2)
#endif
           :: else
           fi;
           if
           :: STAGE_OUT ->
               copy(RESULT(launch[r]), RESULT(launch[r]));
               spoilt[r] = spoilt[r] || bad
           :: else
           fi;
       }
       d_step { /* done.ptxh: whoever tells the host has all results in its past */
           if
#ifndef DONE_EARLY
           :: STAGE_OUT ->
               count(count_end[r], last);
#ifndef RELAXED_COUNT_END
               join(AT_COUNT_END)
#endif
#endif
           :: else
           fi;
           wrong = last && failed[r];
#ifdef DONE_BLIND
           wrong = false;
#endif
           last = last && !wrong;
           assert(!last || (seen[me] & OURS) == OURS);
           assert(!last || STAGE_OUT || !MULTICAST || (fenced[me] & OURS) == OURS);
           done[r] = (last -> launch[r] : done[r])
       }

leave:
#ifndef TELL_LATE
       if
       :: wrong -> tell()
       :: else
       fi;
#endif
       atomic {
           learn(AT_STREAM(r), me);
           seen[me] = 0;
           fenced[me] = 0;
           begun = 0;
           arrives = false;
           last = false;
           good = false;
           bad = false;
           running[r]--;
       }
#ifdef TELL_LATE
       if
       :: wrong -> tell()
       :: else
       fi;
#endif
       wrong = false
    od
}

/* ---- streams ---- */

/* A launch, from its start to its end, which orders accesses through all addresses. */
inline run_kernel(blocks)
{
    d_step {
        running[r] = blocks;
        todo[r] = (1 << (blocks)) - 1
    }
    d_step { running[r] == 0 -> alias_fence(me) }
}

/* The program's own use of the chunk: before a launch it writes the input, afterwards it reads the
 * result, which must be right if launch `n` was marked done, whatever befell others. (Where there are
 * broadcasts the chunk is also the slot into which others copy.) After a failure the program does
 * with its memory what it likes. */
#define MINE(n) (done[r] >= (n) && (COPIES == 0 || !failed[r]))
inline use(n, before, after)
{
    c = 0;
    do
    :: c < N * B && MINE(n) ->
        touch(me, r * N * B + c, OWN, before, after);
        assert(good);
        c++
    :: c < N * B && !MINE(n) -> touch(me, r * N * B + c, OWN, BAD, BAD); c++
    :: else -> break
    od;
    c = 0;
    good = false;
    alias_fence(me);
}

/* Rank 0 copies into every rank's slot between two barriers, even if these failed; then each copies
 * its own out, and finish_peer marks that done. */
inline broadcast()
{
    run_kernel(1);
    d_step {
        c = 0;
        do
        :: c < CELLS && r == 0 -> touch(me, c, SWITCH, RESULT(l - 1), RESULT(l)); c++
        :: else -> break
        od;
        c = 0;
        good = false;
        alias_fence(me);
    }
    run_kernel(1);
    d_step {
        do
        :: c < N * B ->
            touch(me, r * N * B + c, OWN, RESULT(l), RESULT(l));
            spoilt[r] = spoilt[r] || !good;
            c++
        :: else -> break
        od;
        c = 0;
        good = false;
        alias_fence(me);
    }
    if
    :: failed[r] -> tell()
    :: else -> done[r] = l
    fi;
}

proctype stream(byte r)
{
    byte l = 1, c, i, s, me;
    bool good;
    me = AT_STREAM(r);
    do
    :: l <= L && COMES(l) ->
        d_step {
            launch[r] = l;
            spoilt[r] = false
        }
        if
        :: TWOSHOT(l) ->
            if
            :: d_step { !STAGE_IN -> use(l - 1, RESULT(l - 1), INPUT(l)) }
            :: else
            fi;
            run_kernel(BLOCKS);
            if
            :: d_step { !STAGE_OUT -> use(l, RESULT(l), RESULT(l)) }
            :: else
            fi
        :: else -> broadcast()
        fi;
        assert(done[r] < l || !spoilt[r]);
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
        :: i < CELLS -> value[i] = RESULT(0); i++
        :: else -> break
        od;
        i = 0;
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
            fenced[AT_STREAM(i)] = (1 << CELLS) - 1;
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
        j = 0;
#ifdef ABORT
        run host()
#endif
    }
}
