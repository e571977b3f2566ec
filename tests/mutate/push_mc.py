"""Faults in pushes through the switch."""

from dataclasses import replace

from mutation import mutation
from push import AWAIT, FILE, LAUNCHES_BEFORE, PUSH
from push_wait import PUSH_WAIT

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


# Faults in what both pushes are made of.
AS_OVER_PEERS = [
    "one set of boxes",
    "boxes change every second phase",
    "odd ranks take the other boxes",
    "two sets of boxes overlap",
    "everybody pushes into box 0",
    "no wait for the others",
    "the epoch stays",
    "no fence before the word",
    "what the first warp finds is not told to its block",
    "no mark looked at",
    "boxes are not put back after one lane's",
    "counted without order",
    "the first block to end marks it done",
    "a warp goes on without its packets",
]


def over_peers(name):
    """The same fault, planted for this kernel."""
    (found,) = [one for one in PUSH + PUSH_WAIT if one.name == f"push: {name}"]
    return replace(found, name=f"push_mc: {name}", kernels=KERNEL)


PUSH_MC = [
    *map(over_peers, AS_OVER_PEERS),
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
    of_push("nobody arrives", FILE, "#include ARRIVE\n"),
    of_push(
        "no fence of aliases before the word",
        FILE,
        "        @%waits fence.proxy.alias; "
        "/* cleared through another address than it is pushed to */\n",
        equivalent=LAUNCHES_BEFORE,
    ),
]
