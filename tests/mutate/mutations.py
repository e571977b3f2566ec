"""Faults to plant in the kernels: what stands in a file of ptx/, and what is put there instead.

Each text stands exactly once in its file. Some cannot be seen from outside;
each of these says why.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    old: str
    new: str
    kernels: str = ""  # a file of ptx/ to look at alone; "" looks at all
    equivalent: str = ""  # why nobody can see it


def mutation(name, file, old, new="", **more):
    return Mutation(name, file, old, new, **more)


MC = "all_reduce_twoshot_mc"
PEER = "all_reduce_twoshot_peer"

ARRIVE_MC = "    multimem.st.release.sys.global.u64 [%signals+SIGNALS_ARRIVE], %word;\n"
NEVER_AHEAD = (
    "no word of a line is ever ahead: the phase after the next needs this rank's next arrival, "
    "which comes after all its blocks have read this phase"
)

BARRIER = [
    mutation(
        "arrive_mc without .release",
        "arrive_mc.ptxh",
        "multimem.st.release.sys",
        "multimem.st.relaxed.sys",
    ),
    mutation(
        "arrive_mc releases to its GPU alone",
        "arrive_mc.ptxh",
        "multimem.st.release.sys",
        "multimem.st.release.gpu",
    ),
    mutation("arrive_mc without fence.proxy.alias", "arrive_mc.ptxh", "    fence.proxy.alias;\n"),
    mutation(
        "arrive_mc fences aliases after the release",
        "arrive_mc.ptxh",
        "    fence.proxy.alias;\n" + ARRIVE_MC,
        ARRIVE_MC + "    fence.proxy.alias;\n",
    ),
    mutation(
        "arrive_mc does not publish its place",
        "arrive_mc.ptxh",
        "    multimem.st.relaxed.sys.global.u64 [%signals+SIGNALS_OFFSET], %offset;\n",
    ),
    mutation(
        "arrive_mc writes the other parity's line",
        "arrive_mc.ptxh",
        "shl.b32 %line32, %line32, 7;",
        "xor.b32 %line32, %line32, 1; shl.b32 %line32, %line32, 7;",
    ),
    mutation(
        "arrive_mc writes one line for both parities",
        "arrive_mc.ptxh",
        "shl.b32 %line32, %line32, 7;",
        "mov.b32 %line32, 0;",
    ),
    mutation(
        "arrive_mc writes the next rank's word",
        "arrive_mc.ptxh",
        "shl.b32 %mine, %rank, 3;",
        "add.u32 %mine, %rank, 1; shl.b32 %mine, %mine, 3;",
    ),
    mutation(
        "arrive_mc without its hash",
        "arrive_mc.ptxh",
        "mov.b64 %word, {%hash, %phase};",
        "mov.b64 %word, {%rank, %phase};",
    ),
    mutation(
        "arrive_mc a phase early",
        "arrive_mc.ptxh",
        "mov.b64 %word, {%hash, %phase};",
        "add.u32 %mine, %phase, 1; mov.b64 %word, {%hash, %mine};",
    ),
    mutation("arrive_peer without its fence", "arrive_peer.ptxh", "    fence.acq_rel.sys;\n"),
    mutation(
        "arrive_peer fences for its GPU alone",
        "arrive_peer.ptxh",
        "fence.acq_rel.sys",
        "fence.acq_rel.gpu",
    ),
    mutation(
        "arrive_peer fences after it has arrived",
        "arrive_peer.ptxh",
        "    fence.acq_rel.sys;\n    st.relaxed.sys.global.u64 [%peer+SIGNALS_ARRIVE], %word;\n",
        "    st.relaxed.sys.global.u64 [%peer+SIGNALS_ARRIVE], %word;\n    fence.acq_rel.sys;\n",
    ),
    mutation(
        "arrive_peer does not publish its place",
        "arrive_peer.ptxh",
        "    st.relaxed.sys.global.u64 [%peer+SIGNALS_OFFSET], %offset;\n",
    ),
    mutation(
        "arrive_peer leaves out the last rank",
        "arrive_peer.ptxh",
        "setp.ge.u32 %other, %lane, %ranks;",
        "add.u32 %line32, %lane, 1; setp.ge.u32 %other, %line32, %ranks;",
    ),
    mutation(
        "arrive_peer writes the other parity's line",
        "arrive_peer.ptxh",
        "shl.b32 %line32, %line32, 7;",
        "xor.b32 %line32, %line32, 1; shl.b32 %line32, %line32, 7;",
    ),
    mutation("wait without .acquire", "wait.ptxh", "ld.acquire.sys", "ld.relaxed.sys"),
    mutation("wait acquires from its GPU alone", "wait.ptxh", "ld.acquire.sys", "ld.acquire.gpu"),
    mutation(
        "wait does not wait",
        "wait.ptxh",
        "    setp.ge.s32 %there, %ahead, 0;\n",
        "    setp.ge.s32 %there, %ahead, -2;\n",
    ),
    mutation(
        "wait asks for equal epochs",
        "wait.ptxh",
        "setp.ge.s32 %there, %ahead, 0;",
        "setp.eq.s32 %there, %ahead, 0;",
        equivalent=NEVER_AHEAD,
    ),
    mutation(
        "wait compares epochs without a sign",
        "wait.ptxh",
        "setp.ge.s32 %there, %ahead, 0;",
        "setp.ge.u32 %there, %got, %phase;",
    ),
    mutation(
        "wait leaves out the last rank",
        "wait.ptxh",
        "    setp.ge.u32 %p, %lane, %ranks;\n    @%p bra VERDICT;\n",
        "    add.u32 %line32, %lane, 1;\n    setp.ge.u32 %p, %line32, %ranks;\n"
        "    @%p bra VERDICT;\n",
    ),
    mutation(
        "wait compares hashes at any epoch",
        "wait.ptxh",
        "setp.ne.and.u32 %p, %theirs, %hash, %p;",
        "setp.ne.u32 %p, %theirs, %hash;",
        equivalent=NEVER_AHEAD,
    ),
    mutation("wait compares no hashes", "wait.ptxh", "@%p mov.u32 %code, ERROR_MISMATCH;"),
    mutation(
        "wait without its deadline",
        "wait.ptxh",
        "    setp.lt.u64 %p, %now, %limit;\n",
        "    setp.ge.u64 %p, %now, 0;\n",
    ),
    mutation(
        "wait does not look at the abort word",
        "wait.ptxh",
        "ld.relaxed.sys.global.u32 %abort, [%page+PAGE_ABORT];",
        "mov.b32 %abort, 0;",
    ),
    mutation(
        "record without .release",
        "wait.ptxh",
        "st.release.sys.global.u32 [%record+PAGE_ERROR+ERROR_CODE]",
        "st.relaxed.sys.global.u32 [%record+PAGE_ERROR+ERROR_CODE]",
    ),
    mutation(
        "record without its peer",
        "wait.ptxh",
        "    st.relaxed.sys.global.u32 [%record+PAGE_ERROR+ERROR_PEER], %lane;\n".replace(
            "    st", "        st"
        ),
        "",
    ),
    mutation(
        "later launches are not told of a failure",
        "wait.ptxh",
        "st.relaxed.gpu.global.u32 [%sig+SIGNALS_FAILED], 1;",
    ),
    mutation(
        "wait's block does not meet",
        "wait.ptxh",
        "    bar.red.or.pred %failed, 0, %wrong;\n",
        "    mov.pred %failed, %wrong;\n",
    ),
    mutation(
        "a failed wait goes on",
        "wait.ptxh",
        "    bar.red.or.pred %failed, 0, %wrong;\n",
        "    bar.red.and.pred %failed, 0, %wrong;\n",
    ),
    mutation(
        "wait does not see places that differ",
        "wait.ptxh",
        "vote.sync.ballot.b32 %far, %q, 0xffffffff;",
        "mov.b32 %far, 0;",
    ),
    mutation(
        "wait does not see places that differ modulo 16",
        "wait.ptxh",
        "vote.sync.ballot.b32 %unlike, %q, 0xffffffff;",
        "mov.b32 %unlike, 0;",
    ),
    mutation(
        "barrier_mc keeps its epoch",
        "barrier_mc.ptx",
        "add.u32 %next, %epoch, 1;",
        "mov.b32 %next, %epoch;",
        kernels="barrier_mc",
    ),
    mutation(
        "barrier_peer keeps its epoch",
        "barrier_peer.ptx",
        "add.u32 %next, %epoch, 1;",
        "mov.b32 %next, %epoch;",
        kernels="barrier_peer",
    ),
    mutation("a launch after a failure goes on", "prologue.ptxh", "    @%failed bra LEAVE;\n"),
]

OUT = "atom.acq_rel.gpu.global.inc.u32 %before, [%sig+SIGNALS_COUNT_OUT]"
END = "atom.acq_rel.gpu.global.inc.u32 %before, [%sig+SIGNALS_COUNT_END]"

BLOCKS = [
    mutation("no bar.sync after the copy in", "twoshot_begin.ptxh", "        bar.sync 0;\n"),
    mutation(
        "copies in are counted without order",
        "twoshot_begin.ptxh",
        "atom.acq_rel.gpu",
        "atom.relaxed.gpu",
    ),
    mutation(
        "copies in are counted without .acquire",
        "twoshot_begin.ptxh",
        "atom.acq_rel.gpu",
        "atom.release.gpu",
    ),
    mutation(
        "copies in are counted without .release",
        "twoshot_begin.ptxh",
        "atom.acq_rel.gpu",
        "atom.acquire.gpu",
    ),
    mutation(
        "count of copies in does not reset",
        "twoshot_begin.ptxh",
        "atom.acq_rel.gpu.global.inc.u32 %before, [%sig+SIGNALS_COUNT_IN], %limit;",
        "atom.acq_rel.gpu.global.add.u32 %before, [%sig+SIGNALS_COUNT_IN], 1;",
    ),
    mutation(
        "copies in are counted for the block alone",
        "twoshot_begin.ptxh",
        "atom.acq_rel.gpu",
        "atom.acq_rel.cta",
    ),
    mutation(
        "block 0 arrives whoever has copied last",
        "twoshot_begin.ptxh",
        "setp.eq.u32 %arrives, %before, %limit;",
        "setp.eq.u32 %arrives, %cta, 0;",
    ),
    mutation(
        "nobody else of the block hears who arrives",
        "twoshot_begin.ptxh",
        "        bar.red.or.pred %arrives, 0, %arrives;\n",
        "        bar.red.and.pred %arrives, 0, %arrives;\n",
    ),
    mutation(
        "every block arrives at entry",
        "twoshot_begin.ptxh",
        "        setp.eq.u32 %arrives, %cta, 0;\n        setp.eq.u64",
        "        setp.eq.u32 %arrives, 0, 0;\n        setp.eq.u64",
        equivalent="a rank has nothing to order before its entry without a copy, and writes "
        "the same word again",
    ),
    mutation(
        "no bar.sync before counting out",
        "twoshot_end.ptxh",
        "        bar.sync 0;\n        setp.ne.u32 %last, 0, 0;\n",
        "        setp.ne.u32 %last, 0, 0;\n",
    ),
    mutation(
        "counted out without order", "twoshot_end.ptxh", OUT, OUT.replace("acq_rel", "relaxed")
    ),
    mutation(
        "counted out without .acquire", "twoshot_end.ptxh", OUT, OUT.replace("acq_rel", "release")
    ),
    mutation(
        "counted out without .release", "twoshot_end.ptxh", OUT, OUT.replace("acq_rel", "acquire")
    ),
    mutation(
        "count out does not reset",
        "twoshot_end.ptxh",
        "atom.acq_rel.gpu.global.inc.u32 %before, [%sig+SIGNALS_COUNT_OUT], %limit;",
        "atom.acq_rel.gpu.global.add.u32 %before, [%sig+SIGNALS_COUNT_OUT], 1;",
    ),
    mutation(
        "every block arrives at exit",
        "twoshot_end.ptxh",
        "setp.eq.u32 %last, %before, %limit;",
        "setp.eq.u32 %last, 0, 0;",
    ),
    mutation(
        "the first block to end arrives",
        "twoshot_end.ptxh",
        "setp.eq.u32 %last, %before, %limit;",
        "setp.eq.u32 %last, %before, 0;",
    ),
    mutation(
        "the last block does not wait",
        "twoshot_end.ptxh",
        "        @!%p bra AWAIT;\n        @!%last bra LEAVE;\n",
        "        @!%p bra AWAIT;\n        setp.eq.and.u32 %p, %thread, 0, %last;\n"
        "        add.u32 %before, %epoch, 2;\n"
        "        @%p st.relaxed.gpu.global.u32 [%sig+SIGNALS_EPOCH], %before;\n"
        "        bra LEAVE;\n",
    ),
    mutation(
        "an exit that publishes",
        "twoshot_end.ptxh",
        "#define PUBLISH 0",
        "#define PUBLISH 1",
        equivalent="every rank publishes the same place again",
    ),
    mutation("exit in the entry's phase", "twoshot_end.ptxh", "#define PHASE 2", "#define PHASE 1"),
    mutation(
        "a launch leaves its epoch as it was",
        "twoshot_end.ptxh",
        "add.u32 %before, %epoch, 2;",
        "mov.b32 %before, %epoch;",
    ),
    mutation(
        "a launch counts one phase",
        "twoshot_end.ptxh",
        "add.u32 %before, %epoch, 2;",
        "add.u32 %before, %epoch, 1;",
    ),
    mutation(
        "no bar.sync before copies out are counted",
        "twoshot_end.ptxh",
        "        bar.sync 0;\n        setp.ne.u32 %p, %thread, 0;\n        @%p bra LEAVE;\n",
        "        setp.ne.u32 %p, %thread, 0;\n        @%p bra LEAVE;\n",
    ),
    mutation(
        "copies out are counted without order",
        "twoshot_end.ptxh",
        END,
        END.replace("acq_rel", "relaxed"),
    ),
    mutation(
        "copies out are counted without .acquire",
        "twoshot_end.ptxh",
        END,
        END.replace("acq_rel", "release"),
    ),
    mutation(
        "copies out are counted without .release",
        "twoshot_end.ptxh",
        END,
        END.replace("acq_rel", "acquire"),
    ),
    mutation(
        "the host is told done without .release", "done.ptxh", "st.release.sys", "st.relaxed.sys"
    ),
    mutation(
        "the host is told done by whichever block ends first",
        "twoshot_end.ptxh",
        "setp.ne.u32 %p, %before, %limit;",
        "setp.ne.u32 %p, %before, 0;",
    ),
    mutation(
        "the host is not told done",
        "done.ptxh",
        "    @%tell st.release.sys.global.u64 [%place+PAGE_DONE], %number;\n",
    ),
]


DATA = [
    mutation(
        "f32 through the switch: one piece for all",
        "types.ptxh",
        "multimem.ld_reduce.relaxed.sys.global.add.v4.f32 VEC(k), [address+piece];",
        "multimem.ld_reduce.relaxed.sys.global.add.v4.f32 VEC(k), [address];",
        kernels=MC,
    ),
    mutation(
        "i32 through the switch: max for add",
        "types.ptxh",
        "multimem.ld_reduce.relaxed.sys.global.add.u32 %v##k##z",
        "multimem.ld_reduce.relaxed.sys.global.max.u32 %v##k##z",
        kernels=MC,
    ),
    mutation(
        "i64 through the switch: the low half twice",
        "types.ptxh",
        "add.u64 %high, [%at+8];",
        "add.u64 %high, [%at];",
        kernels=MC,
    ),
    mutation(
        "bf16 words packed the wrong way round",
        "types.ptxh",
        "cvt.rn.bf16x2.f32 word, high, low;",
        "cvt.rn.bf16x2.f32 word, low, high;",
    ),
    mutation(
        "an average of floats unscaled",
        "types.ptxh",
        "#define FINISH_ONE(sum) ONE_SCALE(sum)",
        "#define FINISH_ONE(sum)",
    ),
    mutation(
        "no store through the switch",
        "all_reduce_twoshot_mc.ptx",
        "@%valid##k multimem.st.relaxed.sys.global.v4.f32 [%address+bytes], VEC(k);",
        "",
        kernels=MC,
    ),
    mutation(
        "a store through the switch without its predicate",
        "all_reduce_twoshot_mc.ptx",
        "@%valid##k multimem.st",
        "multimem.st",
        kernels=MC,
    ),
    mutation(
        "a store into one's own window alone",
        "all_reduce_twoshot_mc.ptx",
        "@%valid##k multimem.st.relaxed.sys.global.v4.f32 [%address+bytes], VEC(k);",
        "{ .reg .b64 %own; sub.s64 %own, %address, %multicast; add.s64 %own, %own, %window; "
        "@%valid##k st.relaxed.sys.global.v4.b32 [%own+bytes], VEC(k); }",
        kernels=MC,
    ),
    mutation(
        "a vector too many is valid",
        "all_reduce_twoshot_mc.ptx",
        "setp.gt.s32 %valid##k, %left, vectors;",
        "setp.ge.s32 %valid##k, %left, vectors;",
        kernels=MC,
    ),
    mutation(
        "chunks apart go through the switch",
        "all_reduce_twoshot_mc.ptx",
        "        @%apart bra OVER_PEERS;\n",
        "",
        kernels=MC,
    ),
    mutation(
        "warps take the same tiles",
        "all_reduce_twoshot_mc.ptx",
        "mad.lo.u32 %index, %cta, %step, %warp;",
        "mul.lo.u32 %index, %cta, %step;",
        kernels=MC,
    ),
    mutation(
        "peers: a store leaves out the last rank",
        "twoshot_peer.ptxh",
        "    setp.lt.u32 %p, %r, %ranks;\n    @%p bra STORE;",
        "    add.u32 %left, %r, 1;\n    setp.lt.u32 %p, %left, %ranks;\n    @%p bra STORE;",
        kernels=PEER,
    ),
    mutation(
        "peers: the second load counted twice",
        "twoshot_peer.ptxh",
        "    mov.b32 %r, 1;\nLOAD:",
        "    mov.b32 %r, 0;\nLOAD:",
        kernels=PEER,
    ),
    mutation(
        "peers: a load without its predicate",
        "twoshot_peer.ptxh",
        "@%valid##k ld.relaxed",
        "ld.relaxed",
        kernels=PEER,
        equivalent="what is loaded beyond the chunk is not stored; it lies in the window",
    ),
    mutation(
        "edges: the gap is forgotten", "twoshot_edge.ptxh", "    @%p add.u64 %at, %at, %edge_gap;\n"
    ),
    mutation(
        "edges: no store",
        "twoshot_edge.ptxh",
        "    st.relaxed.sys.global.ELEMENT_BITS [%address], %element;\n",
    ),
    mutation(
        "copy: a store without its predicate",
        "copy.ptxh",
        "@%valid##k st.global.v4.b32",
        "st.global.v4.b32",
    ),
    mutation(
        "copy: the last elements forgotten",
        "copy.ptxh",
        "    shl.b64 %vectors, %vectors, VECTOR_LOG2;\n",
        "    mov.b64 %index, %count;\n",
    ),
    mutation(
        "every rank does the edges", "twoshot_begin.ptxh", "        @%p mov.b64 %edge_end, 0;\n"
    ),
    mutation(
        "a share begins one vector late",
        "twoshot_begin.ptxh",
        "        cvt.u32.u64 %vector, %tail;\n",
        "        cvt.u32.u64 %vector, %tail;\n        setp.ne.u32 %p, %vector, 0;\n"
        "        @%p add.u32 %vector, %vector, 1;\n",
    ),
]

ALL = BARRIER + BLOCKS + DATA
