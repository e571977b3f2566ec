"""Faults in what is read, summed and written where."""

from mutation import mutation

MC = "all_reduce_twoshot_mc"
PEER = "all_reduce_twoshot_peer"
ONE_SHOT = "all_reduce_oneshot_peer"
SCATTER_MC = "reduce_scatter_mc"
SCATTER_PEER = "reduce_scatter_peer"

DATA = [
    mutation(
        "vectors through the switch: one piece for all",
        "switch.ptxh",
        "SWITCH_AT VEC(k), [address+bytes];",
        "SWITCH_AT VEC(k), [address];",
        kernels=MC,
    ),
    mutation(
        "words through the switch: the third is the second",
        "switch.ptxh",
        "SWITCH_AT %v##k##z, [%at+8];",
        "SWITCH_AT %v##k##z, [%at+4];",
        kernels=MC,
    ),
    mutation(
        "longs through the switch: the low half twice",
        "switch.ptxh",
        "SWITCH_AT %high, [%at+8];",
        "SWITCH_AT %high, [%at];",
        kernels=MC,
    ),
    mutation(
        "i64 through the switch: a minimum without its sign",
        "types.ptxh",
        "#define SWITCH_FORM ACT_INT.s64",
        "#define SWITCH_FORM ACT_INT.u64",
        kernels=MC,
    ),
    mutation(
        "bits through the switch: the low word alone",
        "types.ptxh",
        "#define SWITCH_BYTES 8\n#define SWITCH_FORM ACT_INT.b64",
        "#define SWITCH_BYTES 4\n#define SWITCH_FORM or.b32",
        kernels=MC,
    ),
    mutation(
        "bf16 words packed the wrong way round",
        "types.ptxh",
        "cvt.rn.PAIR.f32 word, high, low;",
        "cvt.rn.PAIR.f32 word, low, high;",
    ),
    mutation(
        "an average of floats unscaled",
        "types.ptxh",
        "#define FINISH_ONE(acc) ONE_SCALE(acc)",
        "#define FINISH_ONE(acc)",
    ),
    mutation(
        "narrow integers: the bytes in another order",
        "narrow.ptxh",
        "prmt.b32 word, %name##a, %name##c, 0x5410;",
        "prmt.b32 word, %name##a, %name##c, 0x1054;",
        kernels=PEER,
    ),
    mutation(
        "narrow integers: a halfword counted twice",
        "narrow.ptxh",
        "bfe.WIDE %name##b, word, 16, 16;",
        "bfe.WIDE %name##b, word, 0, 16;",
        kernels=PEER,
    ),
    mutation(
        "narrow integers: an average of a sum that has not wrapped",
        "narrow.ptxh",
        "bfe.WIDE acc, acc, 0, ELEMENT_WIDTH; ",
        "",
        kernels=PEER,
    ),
    mutation(
        "u8 has a sign",
        "types.ptxh",
        "#define ELEMENT_BITS u8\n#define WIDE u32",
        "#define ELEMENT_BITS u8\n#define WIDE s32",
        kernels=PEER,
    ),
    mutation(
        "a maximum is a minimum for integers",
        "operation.ptxh",
        "#define ACT_INT max",
        "#define ACT_INT min",
    ),
    mutation(
        "an exclusive or is none",
        "operation.ptxh",
        "#define ACT_INT xor",
        "#define ACT_INT or",
    ),
    mutation(
        "no store through the switch",
        "reduce_switch.ptxh",
        "@%valid##k multimem.st.relaxed.sys.global.v4.f32 [%address+bytes], VEC(k);",
        "",
        kernels=MC,
    ),
    mutation(
        "a store through the switch without its predicate",
        "reduce_switch.ptxh",
        "@%valid##k multimem.st",
        "multimem.st",
        kernels=MC,
    ),
    mutation(
        "a store into one's own window alone",
        "reduce_switch.ptxh",
        "@%valid##k multimem.st.relaxed.sys.global.v4.f32 [%address+bytes], VEC(k);",
        "{ .reg .b64 %own; sub.s64 %own, %address, %multicast; add.s64 %own, %own, %window; "
        "@%valid##k st.relaxed.sys.global.v4.b32 [%own+bytes], VEC(k); }",
        kernels=MC,
    ),
    mutation(
        "a vector too many is valid",
        "reduce_switch.ptxh",
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
        "reduce_switch.ptxh",
        "mad.lo.u32 %index, %cta, %step, %warp;",
        "mul.lo.u32 %index, %cta, %step;",
        kernels=MC,
    ),
    mutation(
        "peers: a store leaves out the last rank",
        "reduce_peer.ptxh",
        "    setp.lt.u32 %p, %r, %ranks;\n    @%p bra STORE;",
        "    add.u32 %left, %r, 1;\n    setp.lt.u32 %p, %left, %ranks;\n    @%p bra STORE;",
        kernels=PEER,
    ),
    mutation(
        "peers: the second load counted twice",
        "reduce_peer.ptxh",
        "    mov.b32 %r, 1;\nLOAD:",
        "    mov.b32 %r, 0;\nLOAD:",
        kernels=PEER,
    ),
    mutation(
        "peers: a load without its predicate",
        "reduce_peer.ptxh",
        "@%valid##k ld.relaxed",
        "ld.relaxed",
        kernels=PEER,
        equivalent="what is loaded beyond the chunk is not stored; it lies in the window",
    ),
    mutation(
        "edges: the gap is forgotten", "reduce_edge.ptxh", "    @%p add.u64 %at, %at, %edge_gap;\n"
    ),
    mutation(
        "edges: no store",
        "reduce_edge.ptxh",
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
    mutation(
        "chunks that lie apart are divided as if they lay alike",
        "twoshot_begin.ptxh",
        "        setp.ne.u32 %p, %placed, 2;\n        @%p bra DIVIDED;\n",
        "        bra DIVIDED;\n",
    ),
    mutation(
        "chunks that lie apart have vectors, too",
        "twoshot_begin.ptxh",
        "        mov.b32 %vector_end, 0;\n",
    ),
    mutation(
        "one-shot: both turns use one slot",
        "oneshot_begin.ptxh",
        "        add.s64 %offset, %offset, %second;\n",
        kernels=ONE_SHOT,
    ),
    mutation(
        "one-shot: its turn stays",
        "oneshot_end.ptxh",
        "        add.u32 %turn, %turn, 1;\n",
        kernels=ONE_SHOT,
    ),
    mutation(
        "one-shot: its epoch stays",
        "oneshot_end.ptxh",
        "        add.u32 %before, %epoch, 1;\n",
        "        mov.b32 %before, %epoch;\n",
        kernels=ONE_SHOT,
    ),
    mutation(
        "one-shot: counted without order",
        "oneshot_end.ptxh",
        "atom.acq_rel.gpu",
        "atom.relaxed.gpu",
        kernels=ONE_SHOT,
    ),
    mutation(
        "one-shot: vectors to an output that does not take them",
        "oneshot_begin.ptxh",
        "        @%p mov.b64 %vectors, 0;\n",
        kernels=ONE_SHOT,
    ),
    mutation(
        "one-shot: the last elements forgotten",
        "oneshot_begin.ptxh",
        "        sub.u64 %edge_end, %count, %edge_gap;\n",
        "        mov.b64 %edge_end, 0;\n",
        kernels=ONE_SHOT,
    ),
    mutation(
        "scatter: the results through the switch are not stored",
        "reduce_switch.ptxh",
        "@%valid##k st.global.v4.b32 [%result+bytes], VEC(k);",
        kernels=SCATTER_MC,
    ),
    mutation(
        "scatter: results beyond the part are stored",
        "reduce_switch.ptxh",
        "@%valid##k st.global.v4.b32 [%result+bytes], VEC(k);",
        "st.global.v4.b32 [%result+bytes], VEC(k);",
        kernels=SCATTER_MC,
    ),
    mutation(
        "scatter: every rank is told of the first part, over peers",
        "arrive_peer.ptxh",
        "    mad.lo.u64 %arg, %line, %part, %arg;\n",
        kernels=SCATTER_PEER,
    ),
    mutation(
        "scatter: every rank is told of the first part, through the switch",
        "arrive_mc.ptxh",
        "mad.lo.u64 %place, %place, %part, %offset;",
        "mov.b64 %place, %offset;",
        kernels=SCATTER_MC,
    ),
    mutation(
        "scatter: the last rank is not told of its part",
        "arrive_mc.ptxh",
        "        setp.ge.u32 %other, %lane, %ranks;\n",
        "        add.u32 %phase, %lane, 1;\n        setp.ge.u32 %other, %phase, %ranks;\n"
        "        add.u32 %phase, %epoch, PHASE;\n",
        kernels=SCATTER_MC,
    ),
    mutation(
        "scatter: a rank takes the first part for its own",
        "enter.ptxh",
        "        mad.lo.u64 %offset, %mine, %part, %offset;\n",
        kernels=SCATTER_MC,
    ),
    mutation(
        "scatter: the first part alone is copied in",
        "enter.ptxh",
        "        @%p bra COPY_PART;\n",
        kernels=SCATTER_PEER,
    ),
    mutation(
        "scatter: one part is copied in again and again",
        "enter.ptxh",
        "        add.s64 %from, %from, %src_part;\n",
        kernels=SCATTER_PEER,
    ),
    mutation(
        "scatter: vectors to an output that does not take them",
        "scatter_begin.ptxh",
        "        setp.ne.u64 %p, %x, 0;\n",
        "        setp.ne.u64 %p, 0, 0;\n",
        kernels=SCATTER_PEER,
    ),
    mutation(
        "scatter: vectors of parts that lie differently",
        "scatter_begin.ptxh",
        "        setp.eq.or.u32 %p, %placed, 2, %p;\n",
        kernels=SCATTER_PEER,
    ),
    mutation(
        "scatter: the elements before the first boundary forgotten",
        "scatter_begin.ptxh",
        "        mov.b64 %edge, 0;\n",
        "        mov.b64 %edge, %edge_split;\n",
        kernels=SCATTER_MC,
    ),
    mutation(
        "scatter: parts apart go through the switch",
        "reduce_scatter_mc.ptx",
        "        @%apart bra OVER_PEERS;\n",
        kernels=SCATTER_MC,
    ),
    mutation(
        "scatter: no exit barrier",
        "twoshot_end.ptxh",
        "        @!%last bra LEAVE;\nAWAIT:\n",
        "        setp.eq.and.u32 %p, %thread, 0, %last;\n"
        "        add.u32 %before, %epoch, 2;\n"
        "        @%p st.relaxed.gpu.global.u32 [%sig+SIGNALS_EPOCH], %before;\n"
        "        @%p bra DONE;\n        bra LEAVE;\nAWAIT:\n",
        kernels=SCATTER_PEER,
    ),
    mutation(
        "scatter: its lanes' places are not waited for",
        "arrive_mc.ptxh",
        "        bar.warp.sync 0xffffffff;\n",
        kernels=SCATTER_MC,
        equivalent="the switch runs a warp's lanes in step, and orders a block's stores as one",
    ),
]
