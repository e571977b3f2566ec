"""Faults in pushes through the switch."""

from mutation import mutation
from push import AWAIT, FILE, LAUNCHES_BEFORE, SECOND_SET

KERNEL = "all_reduce_push_mc"
PACKETS = "packets_mc.ptxh"
STORE = "    multimem.st.relaxed.sys.global.b64 [%all"
CLEAR = "    @%due##j st.relaxed.sys.global.b64 [%box##j"


def of_push(name, file, old, new="", **more):
    return mutation("push_mc: " + name, file, old, new, kernels=KERNEL, **more)


def in_halves(first, second):
    """A packet as two words, which may come apart."""
    words = {"data": "[%all], %data", "mark": "[%all+4], %mark"}
    return (
        "    { .reg .b32 %data, %mark; mov.b64 {%data, %mark}, %one0;\n"
        + "".join(f"    multimem.st.relaxed.sys.global.b32 {words[w]};\n" for w in (first, second))
        + "    }\n"
    )


PUSH_MC = [
    *(
        of_push(f"packet {one} is not stored", PACKETS, f"{STORE}{at}], %{one};\n")
        for one, at in (("one0", ""), ("one1", "+256"), ("one2", "+512"), ("one3", "+768"))
    ),
    *(
        of_push(f"the packet at {at or 0} is not cleared", PACKETS, f"{CLEAR}{at}], %none;", "    ")
        for at in ("", "+256", "+512", "+768")
    ),
    of_push("a packet in halves", PACKETS, f"{STORE}], %one0;\n", in_halves("data", "mark")),
    of_push(
        "a packet in halves, mark first", PACKETS, f"{STORE}], %one0;\n", in_halves("mark", "data")
    ),
    of_push("packets overlap", PACKETS, f"{STORE}+256]", f"{STORE}+128]"),
    of_push(
        "lanes are apart as over peers",
        "all_reduce_push_mc.ptx",
        "#define LANE_LOG2 3",
        "#define LANE_LOG2 4",
    ),
    of_push(
        "it does not wait for its own",
        AWAIT,
        "#define NOT_MINE(j)\n",
        "#define NOT_MINE(j) setp.ne.and.u32 %due##j, %x, %rank, %due##j;\n",
    ),
    of_push("one set of boxes", FILE, SECOND_SET),
    of_push(
        "boxes change every second phase",
        FILE,
        "        and.b32 %x, %epoch, 1;\n",
        "        shr.b32 %x, %epoch, 1;\n        and.b32 %x, %x, 1;\n",
    ),
    of_push(
        "odd ranks take the other boxes",
        FILE,
        "        and.b32 %x, %epoch, 1;\n",
        "        xor.b32 %x, %epoch, %rank;\n        and.b32 %x, %x, 1;\n",
    ),
    of_push("two sets of boxes overlap", FILE, "        mul.lo.u32 %x, %x, %ranks;\n"),
    of_push(
        "everybody pushes into box 0",
        FILE,
        "        cvt.u64.u32 %box, %rank;\n",
        "        mov.b64 %box, 0;\n",
    ),
    of_push("no wait for the others", FILE, '#include "wait.ptxh"\n'),
    of_push("nobody arrives", FILE, "#include ARRIVE\n"),
    of_push(
        "the epoch stays",
        FILE,
        "        add.u32 %before, %epoch, 1;\n",
        "        mov.b32 %before, %epoch;\n",
    ),
    of_push(
        "no fence of aliases before the word",
        FILE,
        "        @%waits fence.proxy.alias; "
        "/* cleared through another address than it is pushed to */\n",
        equivalent=LAUNCHES_BEFORE,
    ),
    of_push(
        "no fence before the word",
        FILE,
        "        @%waits fence.acq_rel.sys;\n",
        equivalent=LAUNCHES_BEFORE,
    ),
    of_push(
        "what the first warp finds is not told to its block",
        "wait.ptxh",
        "    or.pred %late, %wrong, %wrong;\n",
    ),
    of_push(
        "no mark looked at",
        AWAIT,
        "    setp.ne.u32 %p, %unlike, 0;\n",
        "    setp.ne.u32 %p, 0, 0;\n",
    ),
    of_push(
        "boxes are not put back after one lane's",
        AWAIT,
        "look for all again */\n    EACH_RANK(AWAIT_PLACE)\n",
        "look for all again */\n",
    ),
    of_push("counted without order", FILE, "atom.acq_rel.gpu", "atom.relaxed.gpu"),
    of_push(
        "the first block to end marks it done",
        FILE,
        "        setp.ne.u32 %p, %before, %limit;\n",
        "        setp.ne.u32 %p, %before, 0;\n",
    ),
    of_push(
        "a warp goes on without its packets",
        AWAIT,
        "    bra TAKEN;\nCAME:\n",
        "    setp.ne.u32 %late, 0, 0;\nCAME:\n",
    ),
]
