"""Faults in the kernels that normalise rows."""

from mutation import mutation

MC = "rms_norm_mc"
PEER = "rms_norm_peer"
SPLIT_MC = "rms_norm_split_mc"
SPLIT_PEER = "rms_norm_split_peer"

NORM = [
    mutation(
        "norm: the mean of one element more",
        "norm_scale.ptxh",
        "    div.rn.f32 %squares, %squares, %x;\n",
        "    add.f32 %x, %x, 0f3F800000;\n    div.rn.f32 %squares, %squares, %x;\n",
        kernels=PEER,
    ),
    mutation(
        "norm: the last exchange of lanes forgotten",
        "norm_scale.ptxh",
        "ADD_LANES(2) ADD_LANES(1)",
        "ADD_LANES(2)",
        kernels=PEER,
    ),
    mutation(
        "norm: no barrier of the group",
        "norm_scale.ptxh",
        "    bar.sync %y, %group;\n",
        kernels=PEER,
    ),
    mutation(
        "norm: groups begin with one another's rows",
        "norm_begin.ptxh",
        "        mul.lo.u32 %row_step, %ctas, %row_step;\n",
        "        mov.b32 %row_step, %ctas;\n",
        kernels=PEER,
    ),
    mutation(
        "norm: first rows at the chunk's begin on every rank",
        "norm_begin.ptxh",
        "        add.u32 %row, %row, %x;\n",
        kernels=MC,
    ),
    mutation(
        "norm: the residual's place does not matter",
        "norm_begin.ptxh",
        "        xor.b64 %unlike, %residual, %offset;\n",
        "        mov.b64 %unlike, 0;\n",
        kernels=PEER,
    ),
    mutation(
        "norm: sums of elements are not rounded before the residual",
        "norm_edge.ptxh",
        "    @%p bra ADDED;\n    ONE_WIDEN(%acc, %element)\n",
        "    @%p bra ADDED;\n    ONE_WIDEN(%acc, %element)\n    add.f32 %acc, %acc, 0f3F800000;\n",
        kernels=PEER,
    ),
    mutation(
        "norm: an element's sum goes to one rank alone",
        "norm_edge.ptxh",
        "    setp.lt.u32 %p, %r, %ranks;\n    @%p bra STORE;\nSPREAD:",
        "SPREAD:",
        kernels=PEER,
    ),
    mutation(
        "norm: the residual is added to the first vector alone",
        "norm_types.ptxh",
        "ld.global.v4.b32 VEC(k##9), [%residual_at+bytes];",
        "ld.global.v4.b32 VEC(k##9), [%residual_at];",
        kernels=PEER,
    ),
    mutation(
        "norm: squares of vectors that are not there",
        "norm_types.ptxh",
        "    mov.b32 %v##k##r##z, 0; mov.b32 %v##k##r##w, 0;\n",
        "    mov.b32 %v##k##r##z, 0;\n",
        kernels=PEER,
    ),
    mutation(
        "norm: own sums stay where they are",
        "norm_types.ptxh",
        "    @%wanted st.global.v4.b32 [%residual_at+bytes], VEC(vec); \\\n",
        kernels=PEER,
    ),
    mutation(
        "norm: a long row's end is kept nowhere",
        "norm_types.ptxh",
        "    st.global.v4.b32 [%own_tile+bytes], VEC(vec); \\\n",
        kernels=PEER,
    ),
    mutation(
        "norm: what was kept in the window is not ordered before the switch's store",
        "norm_finish.ptxh",
        "    @!%inside fence.proxy.alias;\n",
        kernels=MC,
    ),
    mutation(
        "norm: weights of vectors from the first on",
        "norm_finish.ptxh",
        "    mad.lo.u64 %weight_at, %weight_at, %weight_step, %weight_begin;\n",
        "    mov.b64 %weight_at, %weight_begin;\n",
        kernels=MC,
    ),
    mutation(
        "norm: weights of an odd place as a vector",
        "norm_finish.ptxh",
        "    setp.ne.u64 %scalar, %place, 0;\n",
        "    setp.ne.u32 %scalar, 0, 0;\n",
        kernels=PEER,
    ),
    mutation(
        "norm: elements' weights all of the size of a half",
        "norm_finish.ptxh",
        "    @%is_f64 mov.b32 %r, 8;\n",
        kernels=PEER,
    ),
    mutation(
        "norm: the next tile begins where this one ends",
        "norm_finish.ptxh",
        "    add.u32 %index, %index, %step;\n    bra VECTOR;\n",
        "    bra VECTOR;\n",
        kernels=MC,
    ),
    mutation(
        "norm: tiles of sums to the next rank alone",
        "norm_spread.ptxh",
        "    setp.lt.u32 %p, %r, %ranks;\n    @%p bra SPREAD;\n",
        kernels=PEER,
    ),
    mutation(
        "norm: sums through the switch go over the chunk",
        "norm_switch.ptxh",
        "    add.s64 %address, %multicast, %spread;\n",
        "    add.s64 %address, %multicast, %offset;\n",
        kernels=MC,
    ),
    mutation(
        "norm: the second result is not copied out",
        "twoshot_end.ptxh",
        "        setp.eq.u64 %p, %to, 0;\n",
        "        setp.eq.u64 %p, 0, 0;\n",
        kernels=PEER,
    ),
    mutation(
        "split norm: those behind me come one place late",
        "norm_slots.ptxh",
        "        @%p sub.u32 %other, %other, 1;\n",
        kernels=SPLIT_PEER,
    ),
    mutation(
        "split norm: my own input is looked for in the slot",
        "norm_slots.ptxh",
        "        @%mine mov.b64 %at, %src;\n",
        kernels=SPLIT_PEER,
    ),
    mutation(
        "split norm: warps do not wait for the addresses",
        "norm_slots.ptxh",
        "        bar.sync 0;\n",
        kernels=SPLIT_PEER,
    ),
    mutation(
        "split norm: vectors of a residual that does not give them",
        "norm_slots.ptxh",
        "        or.b64 %all, %all, %residual;\n",
        kernels=SPLIT_PEER,
    ),
    mutation(
        "split norm: no results of vectors",
        "norm_finish.ptxh",
        "    st.global.v4.b32 [%address], VEC(0);\n",
        kernels=SPLIT_PEER,
    ),
    mutation(
        "split norm: groups begin with one another's rows",
        "norm_split_begin.ptxh",
        "    mul.lo.u32 %row_step, %ctas, %row_step;\n",
        "    mov.b32 %row_step, %ctas;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split norm through the switch: every leg is the chunk's first",
        "split_places.ptxh",
        "        add.s64 %offset, %offset, %at;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split norm through the switch: every leg over peers is the chunk's first",
        "split_places.ptxh",
        "        @%inside add.s64 %base, %base, %at;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split norm through the switch: the residual's place does not matter",
        "norm_places.ptxh",
        "        @%p mov.b32 %placed, 2;\n",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split norm through the switch: offsets equal modulo 16 are equal",
        "rms_norm_split_mc.ptx",
        "setp.eq.u32 %together, %placed, 0;\n        @%together bra SWITCH;",
        "setp.ne.u32 %together, %placed, 2;\n        @%together bra SWITCH;",
        kernels=SPLIT_MC,
    ),
    mutation(
        "split norm through the switch: no results of vectors",
        "norm_finish.ptxh",
        "    st.global.v4.b32 [%address], VEC(0);\n",
        kernels=SPLIT_MC,
    ),
]
