"""Faults in pushes over peers: their packets, their boxes, who has work, and how they end."""

from mutation import mutation

KERNEL = "all_reduce_push_peer"
FILE = "push.ptxh"
LAUNCHES_BEFORE = (
    "it orders what launches before have cleared, and the switch orders a launch's end"
)
SECOND_SET = "        mad.lo.u64 %boxes, %at, %stride, %boxes;\n"
PEER = "packets_peer.ptxh"
AWAIT = "await_packets.ptxh"


HEARD = (
    "    setp.ne.u32 %late, %told, 0;\n"
    "    vote.sync.any.pred %late, %late, 0xffffffff;\n"
    "    @%late bra TAKEN;\n"
)
RELAXED = "        atom.relaxed.gpu.global.inc.u32 %before, [%sig+SIGNALS_COUNT_OUT], %limit;\n"


def of_push(name, file, old, new="", **more):
    return mutation("push: " + name, file, old, new, kernels=KERNEL, **more)


PACKETS = [
    of_push(
        "data for a mark",
        FILE,
        "        mov.b64 %one1, {%v0y, %hash};\n",
        "        mov.b64 %one1, {%v0y, %v0y};\n",
    ),
    of_push(
        "two packets of one word",
        FILE,
        "        mov.b64 %one1, {%v0y, %hash};\n",
        "        mov.b64 %one1, {%v0x, %hash};\n",
    ),
    of_push(
        "the first pair is not cleared",
        PEER,
        "    @%due##j st.relaxed.sys.global.v2.b64 [%box##j], {%none, %none}; \\\n",
        "    \\\n",
    ),
    of_push(
        "the second pair is not cleared",
        PEER,
        "    @%due##j st.relaxed.sys.global.v2.b64 [%box##j+512], {%none, %none};\n",
        "\n",
    ),
    of_push(
        "cleared to something else",
        AWAIT,
        "    mov.b64 %none, 0;\n",
        "    mov.b64 %none, 1;\n",
    ),
    of_push(
        "the last packets are not pushed",
        PEER,
        "    st.relaxed.sys.global.v2.b64 [%peer+512], {%one2, %one3};\n",
    ),
    of_push(
        "pairs of packets overlap",
        "packet_place.ptxh",
        "    shl.b32 %x, %x, 10;\n",
        "    shl.b32 %x, %x, 9;\n",
    ),
]

BOXES = [
    of_push("one set of boxes", FILE, SECOND_SET),
    of_push(
        "boxes change every second phase",
        FILE,
        "        and.b32 %x, %epoch, 1;\n",
        "        shr.b32 %x, %epoch, 1;\n        and.b32 %x, %x, 1;\n",
    ),
    of_push(
        "the other boxes",
        FILE,
        "        and.b32 %x, %epoch, 1;\n",
        "        not.b32 %x, %epoch;\n        and.b32 %x, %x, 1;\n",
        equivalent="it does not matter which of two is the first",
    ),
    of_push(
        "odd ranks take the other boxes",
        FILE,
        "        and.b32 %x, %epoch, 1;\n",
        "        xor.b32 %x, %epoch, %rank;\n        and.b32 %x, %x, 1;\n",
    ),
    of_push(
        "two sets of boxes overlap",
        FILE,
        "        mul.lo.u32 %x, %x, %ranks;\n",
    ),
    of_push(
        "everybody pushes into box 0",
        FILE,
        "        cvt.u64.u32 %box, %rank;\n",
        "        mov.b64 %box, 0;\n",
    ),
    of_push(
        "one rank is pushed to, again and again",
        PEER,
        "    mul.wide.u32 %arg, %r, 8;\n",
        "    mov.b64 %arg, 0;\n",
    ),
    of_push(
        "the last rank is not pushed to",
        PEER,
        "    setp.ge.u32 %p, %k, %ranks;\n",
        "    add.u32 %k, %k, 1;\n    setp.ge.u32 %p, %k, %ranks;\n    sub.u32 %k, %k, 1;\n",
    ),
    of_push(
        "ranks are added in another order",
        FILE,
        "#define EACH_RANK(M) M(1, 0) M(2, 1) M(3, 2) M(4, 3)\n",
        "#define EACH_RANK(M) M(1, 1) M(2, 0) M(3, 3) M(4, 2)\n",
    ),
    of_push(
        "the fifth rank's packets are the fourth's",
        FILE,
        "        shl.b64 %four, %stride, 2;\n",
        "        mul.lo.u64 %four, %stride, 3;\n",
    ),
    of_push(
        "four ranks are enough",
        FILE,
        "        setp.gt.u32 %p, %more, 4;\n",
        "        setp.ne.u32 %p, 0, 0;\n",
    ),
    of_push(
        "its own vector is left out",
        FILE,
        "    setp.eq.u32 %p, %mine, k; \\\n",
        "    setp.ne.u32 %p, 0, 0; \\\n",
    ),
    of_push(
        "vectors are divided by warps of one block",
        FILE,
        "        mul.lo.u32 %x, %warps, %ctas;\n",
        "        mov.b32 %x, %warps;\n",
    ),
    of_push(
        "the warp that waits counts as one that moves",
        FILE,
        "        sub.u32 %warps, %warps, 1;\n",
    ),
    of_push(
        "a vector is stored whole beyond the end",
        FILE,
        "            setp.lt.or.u32 %p, %left, VECTOR_ELEMENTS, %p;\n",
    ),
    of_push(
        "a vector is stored whole wherever its output lies",
        FILE,
        "            setp.ne.u64 %p, %edge, 0;\n",
        "            setp.ne.u64 %p, 0, 0;\n",
    ),
    of_push(
        "lanes without a vector store one",
        FILE,
        "        @!%live bra STORED;\n",
    ),
    of_push(
        "lanes without a vector load one",
        FILE,
        "        @!%live bra OWN;\n",
        equivalent="it is not stored, and lies in mapped memory",
    ),
    of_push(
        "a lane beyond the last vector has one",
        FILE,
        "        setp.lt.u32 %live, %index, %vectors;\n",
        "        setp.le.u32 %live, %index, %vectors;\n",
    ),
    of_push(
        "the lane of the last vector has none",
        FILE,
        "        setp.lt.u32 %live, %index, %vectors;\n",
        "        add.u32 %r, %index, 1;\n        setp.lt.u32 %live, %r, %vectors;\n",
    ),
    of_push(
        "a warp whose first lane alone has a vector has none",
        FILE,
        "        sub.u32 %r, %index, %lane;\n",
        "        sub.u32 %r, %index, %lane;\n        add.u32 %r, %r, 1;\n",
    ),
    of_push(
        "an element is stored beyond the end",
        "part_vector.ptxh",
        "      @%there st.global",
        "      st.global",
    ),
    of_push(
        "elements are loaded from beyond the end",
        "part_vector.ptxh",
        "      @%there ld.global",
        "      ld.global",
        equivalent="they are not stored, and lie in mapped memory",
    ),
    of_push(
        "halves in another order",
        "part_vector.ptxh",
        "mov.b32 {%part6, %part7}, %v0w;",
        "mov.b32 {%part7, %part6}, %v0w;",
    ),
]

ENDS = [
    of_push("no wait for the others", FILE, '#include "wait.ptxh"\n'),
    of_push(
        "no fence before the word",
        FILE,
        "        @%waits fence.acq_rel.sys;\n",
        equivalent=LAUNCHES_BEFORE,
    ),
    of_push(
        "a failure before does not keep its launches from beginning",
        "state.ptxh",
        "    ld.relaxed.sys.global.u32 %told, [%window+SIGNALS_FAILED];\n",
        "    mov.b32 %told, 0;\n",
    ),
    of_push(
        "the first warp arrives whatever has failed",
        FILE,
        "FIRST_WARP:\n" + HEARD,
        "FIRST_WARP:\n",
    ),
    of_push(
        "packets are pushed whatever has failed",
        FILE,
        "        setp.ne.u32 %p, %told, 0;\n        @%p bra PUSHED;\n",
    ),
    of_push("packets are taken whatever has failed", FILE, "PUSHED:\n" + HEARD, "PUSHED:\n"),
    of_push(
        "what the first warp finds is not told to its block",
        "wait.ptxh",
        "    or.pred %late, %wrong, %wrong;\n",
    ),
    of_push(
        "the first warp of every block arrives and waits",
        FILE,
        "        or.b32 %x, %warp, %cta;\n",
        "        mov.b32 %x, %warp;\n",
        equivalent="each writes the same word before its block is counted",
    ),
    of_push(
        "the epoch stays",
        FILE,
        "        add.u32 %before, %epoch, 1;\n",
        "        mov.b32 %before, %epoch;\n",
    ),
    of_push("counted without order", FILE, "atom.acq_rel.gpu", "atom.relaxed.gpu"),
    of_push("counted without .acquire", FILE, "atom.acq_rel.gpu", "atom.release.gpu"),
    of_push("counted without .release", FILE, "atom.acq_rel.gpu", "atom.acquire.gpu"),
    of_push(
        "the count does not reset",
        FILE,
        "atom.acq_rel.gpu.global.inc.u32 %before, [%sig+SIGNALS_COUNT_OUT], %limit;",
        "atom.acq_rel.gpu.global.add.u32 %before, [%sig+SIGNALS_COUNT_OUT], 1;",
    ),
    of_push(
        "the first block to end marks it done",
        FILE,
        "        setp.ne.u32 %p, %before, %limit;\n",
        "        setp.ne.u32 %p, %before, 0;\n",
    ),
    of_push(
        "blocks of a replay are not counted",
        FILE,
        "        @%p bra REPLAYED;\n",
        "        @%p bra LEAVE;\n",
    ),
    of_push("every block ends a replay", FILE, RELAXED, "        mov.b32 %before, %limit;\n"),
    of_push(
        "the count of a replay does not reset",
        FILE,
        RELAXED,
        RELAXED.replace("inc", "add").replace("%limit", "1"),
    ),
    of_push(
        "calls are counted as replays are",
        FILE,
        "        setp.eq.u32 %p, %before, DONE_REPLAYED;\n",
        "        setp.ne.u32 %p, %before, DONE_REPLAYED;\n",
    ),
    of_push(
        "every block marks it done",
        FILE,
        "        setp.eq.u32 %p, %limit, 0;\n",
        "        setp.eq.u32 %p, 0, 0;\n",
    ),
    of_push(
        "a late warp keeps that to itself",
        FILE,
        "        bar.red.or.pred %late, 0, %late;\n",
        "        bar.red.and.pred %late, 0, %late;\n",
    ),
    of_push(
        "lost packets are told to nobody",
        FILE,
        '        @!%late bra COUNT;\n#include "tell.ptxh"\n',
        "        @!%late bra COUNT;\n",
    ),
]

PUSH = PACKETS + BOXES + ENDS
