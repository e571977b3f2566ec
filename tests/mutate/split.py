"""Faults in the kernels that meet nobody: copies inside a GPU, and halves of split all-reduces."""

from mutation import mutation

SPLIT_MC = "all_reduce_split_mc"
SPLIT_PEER = "all_reduce_split_peer"
STORE = "@%valid##k st.global.v4.b32 [%result+bytes], VEC(k);"
TO = "    add.s64 %result, %address, %dst;\n"

SPLIT = [
    mutation("split through the switch: no store", "reduce_switch.ptxh", STORE, kernels=SPLIT_MC),
    mutation(
        "split through the switch: a store without its predicate",
        "reduce_switch.ptxh",
        STORE,
        STORE.removeprefix("@%valid##k "),
        kernels=SPLIT_MC,
    ),
    mutation(
        "split through the switch: results where the first vector would be without elements before",
        "reduce_switch.ptxh",
        TO,
        TO + "    sub.s64 %result, %result, %lead;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split through the switch: every leg is the chunk's first",
        "split_places.ptxh",
        "        add.s64 %offset, %offset, %at;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split through the switch: the chunk lies where the window begins",
        "reduce_switch.ptxh",
        "    add.s64 %address, %address, %offset;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split through the switch: offsets equal modulo 16 are equal",
        "all_reduce_split_mc.ptx",
        "setp.ne.u32 %apart, %placed, 0;",
        "setp.eq.u32 %apart, %placed, 2;",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split through the switch: offsets apart are not told",
        "apart.ptxh",
        "    @%p st.relaxed.sys.global.u64 [%place+PAGE_APART], %sequence;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split through the switch: a block's work is every block's",
        "reduce_switch.ptxh",
        "    mad.lo.u32 %index, %cta, %step, %warp;\n",
        "    mov.b32 %index, %warp;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split begin: all chunks lie where mine does",
        "split_places.ptxh",
        "        @%inside ld.relaxed.sys.global.u64 %place, [%arg+PAGE_PLACE];\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split begin: every leg over peers is the chunk's first",
        "split_places.ptxh",
        "        @%inside add.s64 %base, %base, %at;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split begin: goes on after an abort",
        "split_places.ptxh",
        "        setp.ne.u32 %failed, %abort, 0;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split begin: one warp alone leaves after an abort",
        "split_places.ptxh",
        "        bar.red.or.pred %failed, 0, %failed;\n",
        "        bar.sync 0;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split begin: leaves without telling",
        "split_places.ptxh",
        '#include "tell.ptxh"\n',
        kernels=SPLIT_MC,
    ),
    mutation(
        "split begin: nobody's offset differs modulo 16",
        "split_places.ptxh",
        "        add.u32 %far, %far, %unlike;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split begin: ranks that lie apart are counted, not noticed",
        "split_places.ptxh",
        "        min.u32 %far, %far, 1;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split begin: unlike offsets take vectors",
        "split_begin.ptxh",
        "        @%p mov.b64 %edge_split, %count;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split begin: vectors begin where the leg does",
        "split_begin.ptxh",
        "        shl.b64 %lead, %edge_split, ELEMENT_LOG2;\n",
        "        mov.b64 %lead, 0;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split begin: alignment is the chunk's, not the leg's",
        "split_begin.ptxh",
        "        neg.s64 %lead, %offset;\n",
        "        ld.param.u64 %lead, [args+KARGS_OFFSET];\n        neg.s64 %lead, %lead;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split begin: the last elements forgotten",
        "split_begin.ptxh",
        "        sub.u64 %edge_end, %count, %edge_gap;\n",
        "        mov.b64 %edge_end, %edge_split;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split over peers: those behind me come one place late",
        "all_reduce_split_peer.ptx",
        "        @%p sub.u32 %other, %other, 1;\n",
        kernels=SPLIT_PEER,
    ),
    mutation(
        "split over peers: my own input is looked for in the slot",
        "all_reduce_split_peer.ptx",
        "        @%mine mov.b64 %at, %src;\n",
        kernels=SPLIT_PEER,
    ),
    mutation(
        "split over peers: warps do not wait for the addresses",
        "all_reduce_split_peer.ptx",
        "        bar.sync 0;\n",
        kernels=SPLIT_PEER,
    ),
    mutation(
        "split over peers: vectors of an input that does not give them",
        "all_reduce_split_peer.ptx",
        "        or.b64 %both, %src, %dst;\n",
        "        mov.b64 %both, %dst;\n",
        kernels=SPLIT_PEER,
    ),
    mutation(
        "split over peers: vectors to an output that does not take them",
        "all_reduce_split_peer.ptx",
        "        or.b64 %both, %src, %dst;\n",
        "        mov.b64 %both, %src;\n",
        kernels=SPLIT_PEER,
    ),
    mutation(
        "split over peers: the last elements forgotten",
        "all_reduce_split_peer.ptx",
        "        sub.u64 %edge_end, %count, %edge_gap;\n",
        "        mov.b64 %edge_end, 0;\n",
        kernels=SPLIT_PEER,
    ),
    mutation(
        "a copy inside a GPU counts words",
        "stage_peer.ptx",
        "#define TYPE_u8\n",
        "#define TYPE_i32\n",
        kernels="stage_peer",
    ),
    mutation(
        "a copy inside a GPU goes the wrong way",
        "stage_peer.ptx",
        "    ld.param.u64 %from, [args+KARGS_SRC];\n    ld.param.u64 %to, [args+KARGS_DST];\n",
        "    ld.param.u64 %to, [args+KARGS_SRC];\n    ld.param.u64 %from, [args+KARGS_DST];\n",
        kernels="stage_peer",
    ),
]
