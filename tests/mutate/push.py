"""Faults in pushes over peers: their packets, their boxes, and packets that are lost."""

from mutation import mutation

KERNEL = "all_reduce_push_peer"
FILE = "push.ptxh"
PEER = "packets_peer.ptxh"
AWAIT = "await_packets.ptxh"


def of_push(name, file, old, new="", **more):
    return mutation("push: " + name, file, old, new, kernels=KERNEL, **more)


AND_FLAG = "and.b32 %set##j, %set##j, %flag;"


def without_flag(word, one):
    """One packet of the four is taken whatever its flag."""
    move = f"    mov.b64 {{%v##j##{word}, %flag}}, %one##j##{one};"
    return of_push(f"the flag of packet {one} not tested", AWAIT, f"{move} {AND_FLAG}", move)


PACKETS = [
    of_push(
        "no flag tested", AWAIT, "    setp.ne.u32 %p, %set, 0;\n", "    setp.ne.u32 %p, 1, 0;\n"
    ),
    of_push(
        "the flag of packet 0 not tested",
        AWAIT,
        "    mov.b64 {%v##j##x, %set##j}, %one##j##0; \\\n",
        "    mov.b64 {%v##j##x, %set##j}, %one##j##0; mov.b32 %set##j, 1; \\\n",
    ),
    without_flag("y", 1),
    without_flag("z", 2),
    without_flag("w", 3),
    of_push(
        "any flag will do",
        AWAIT,
        "    mov.b64 {%v##j##w, %flag}, %one##j##3; " + AND_FLAG,
        "    mov.b64 {%v##j##w, %flag}, %one##j##3; or.b32 %set##j, %set##j, %flag;",
    ),
    of_push(
        "one rank's flags will do",
        AWAIT,
        "    and.b32 %set, %set, %set##j;\n",
        "    or.b32 %set, %set, %set##j;\n",
    ),
    of_push(
        "only the last rank's flags are looked at",
        AWAIT,
        "    and.b32 %set, %set, %set##j;\n",
        "    mov.b32 %set, %set##j;\n",
    ),
    of_push(
        "the wait is for one rank more",
        AWAIT,
        "    setp.lt.u32 %due##j, %x, %ranks; \\\n",
        "    setp.le.u32 %due##j, %x, %ranks; \\\n",
    ),
    of_push(
        "the wait is for one rank less",
        AWAIT,
        "    setp.lt.u32 %due##j, %x, %ranks; \\\n",
        "    { .reg .b32 %y; add.u32 %y, %x, 1; setp.lt.u32 %due##j, %y, %ranks; } \\\n",
    ),
    of_push(
        "its own packets are waited for",
        AWAIT,
        "#define NOT_MINE(j) setp.ne.and.u32 %due##j, %x, %rank, %due##j;\n",
        "#define NOT_MINE(j)\n",
    ),
    of_push(
        "data for a flag",
        FILE,
        "        mov.b64 %one1, {%v0y, %set};\n",
        "        mov.b64 %one1, {%v0y, %v0y};\n",
    ),
    of_push(
        "two packets of one word",
        FILE,
        "        mov.b64 %one1, {%v0y, %set};\n",
        "        mov.b64 %one1, {%v0x, %set};\n",
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
        "    shl.b64 %at, %at, 10;\n",
        "    shl.b64 %at, %at, 9;\n",
    ),
]

BOXES = [
    of_push("one set of boxes", FILE, "        add.s64 %boxes, %boxes, %at;\n"),
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
        "            setp.lt.u64 %p, %left, VECTOR_ELEMENTS;\n",
        "            setp.ne.u32 %p, 0, 0;\n",
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
        "arrive_peer.ptxh",
        "    fence.acq_rel.sys;\n",
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
        "every block marks it done",
        FILE,
        "        setp.eq.u32 %p, %limit, 0;\n",
        "        setp.eq.u32 %p, 0, 0;\n",
    ),
    of_push(
        "the abort word is not looked at",
        AWAIT,
        "    ld.relaxed.sys.global.u32 %abort, [%page+PAGE_ABORT];\n",
        "    mov.b32 %abort, 0;\n",
    ),
    of_push(
        "no deadline",
        AWAIT,
        "    setp.ge.u64 %late, %now, %limit;\n",
        "    setp.ne.u64 %late, 0, 0;\n",
    ),
    of_push(
        "record without .release",
        AWAIT,
        "st.release.sys.global.u32 [%record+PAGE_ERROR+ERROR_CODE]",
        "st.relaxed.sys.global.u32 [%record+PAGE_ERROR+ERROR_CODE]",
    ),
    of_push(
        "record without its peer",
        AWAIT,
        "        st.relaxed.sys.global.u32 [%record+PAGE_ERROR+ERROR_PEER], %missing;\n",
    ),
    of_push(
        "a warp goes on without its packets",
        AWAIT,
        "    bra TAKEN;\nCAME:\n",
        "    setp.ne.u32 %late, 0, 0;\nCAME:\n",
    ),
    of_push(
        "the rank that was told to be missing is the first of the four",
        AWAIT,
        "        EACH_RANK_DOWN(AWAIT_MISSING)\n",
        "        mov.b32 %missing, %r;\n",
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
