"""Faults in the barriers between ranks and between blocks: orders, epochs, counts, failures."""

from mutation import mutation

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
        "    fence.acq_rel.sys;\n#endif\n"
        "    st.relaxed.sys.global.u64 [%peer+SIGNALS_ARRIVE], %word;\n",
        "#endif\n    st.relaxed.sys.global.u64 [%peer+SIGNALS_ARRIVE], %word;\n"
        "    fence.acq_rel.sys;\n",
    ),
    mutation(
        "arrive_peer does not publish its place",
        "arrive_peer.ptxh",
        "    st.relaxed.sys.global.u64 [%peer+SIGNALS_OFFSET], %arg;\n",
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
        "released.ptxh",
        "    @%p or.b32 %abort, %abort, %x;\n",
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
        "tell.ptxh",
        "st.relaxed.sys.global.u32 [%peer+SIGNALS_FAILED], 1;",
    ),
    mutation(
        "only rank 0 is told of a failure",
        "tell.ptxh",
        "    add.s64 %arg, %arg, 8;\n",
    ),
    mutation(
        "a failure ends nobody's wait",
        "tell.ptxh",
        "st.relaxed.sys.global.u32 [%abort+PAGE_ABORT], 1;",
    ),
    mutation(
        "a failed kernel does not say what it has left",
        "tell.ptxh",
        "st.relaxed.sys.global.u64 [%place+PAGE_RELEASED], %number;",
    ),
    mutation(
        "a kernel says again and again what it has left",
        "tell.ptxh",
        "    setp.ne.u64 %p, %number, 0;\n",
        "    setp.ne.u64 %p, 0, 0;\n",
    ),
    mutation(
        "the end is marked done whatever has failed",
        "done.ptxh",
        "    setp.ne.u32 %p, %x, 0;\n",
        "    setp.ne.u32 %p, 0, 0;\n",
        kernels="all_reduce_twoshot_peer",
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
    mutation(
        "a launch after a failure goes on",
        "prologue.ptxh",
        "    @!%failed bra WELL;\n",
        "    bra WELL;\n",
    ),
]

OUT = "atom.acq_rel.gpu.global.inc.u32 %before, [%sig+SIGNALS_COUNT_OUT]"
END = "atom.acq_rel.gpu.global.inc.u32 %before, [%sig+SIGNALS_COUNT_END]"

BLOCKS = [
    mutation("no bar.sync after the copy in", "enter.ptxh", "        bar.sync 0;\n"),
    mutation(
        "copies in are counted without order",
        "enter.ptxh",
        "atom.acq_rel.gpu",
        "atom.relaxed.gpu",
    ),
    mutation(
        "copies in are counted without .acquire",
        "enter.ptxh",
        "atom.acq_rel.gpu",
        "atom.release.gpu",
    ),
    mutation(
        "copies in are counted without .release",
        "enter.ptxh",
        "atom.acq_rel.gpu",
        "atom.acquire.gpu",
    ),
    mutation(
        "count of copies in does not reset",
        "enter.ptxh",
        "atom.acq_rel.gpu.global.inc.u32 %before, [%sig+SIGNALS_COUNT_IN], %limit;",
        "atom.acq_rel.gpu.global.add.u32 %before, [%sig+SIGNALS_COUNT_IN], 1;",
    ),
    mutation(
        "copies in are counted for the block alone",
        "enter.ptxh",
        "atom.acq_rel.gpu",
        "atom.acq_rel.cta",
    ),
    mutation(
        "block 0 arrives whoever has copied last",
        "enter.ptxh",
        "setp.eq.u32 %arrives, %before, %limit;",
        "setp.eq.u32 %arrives, %cta, 0;",
    ),
    mutation(
        "nobody else of the block hears who arrives",
        "enter.ptxh",
        "        bar.red.or.pred %arrives, 0, %arrives;\n",
        "        bar.red.and.pred %arrives, 0, %arrives;\n",
    ),
    mutation(
        "every block arrives at entry",
        "enter.ptxh",
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
        "        @!%p bra AWAIT;\n#endif\n        @!%last bra LEAVE;\n",
        "        @!%p bra AWAIT;\n#endif\n        setp.eq.and.u32 %p, %thread, 0, %last;\n"
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
        "    st.release.sys.global.u64 [%place+PAGE_DONE], %number;\n",
    ),
]
