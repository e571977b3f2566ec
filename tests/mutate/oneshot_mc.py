"""Faults in one-shots through the switch."""

from mutation import mutation

KERNEL = "all_reduce_oneshot_mc"
BEGIN = "oneshot_begin.ptxh"
END = "oneshot_end.ptxh"


def of_oneshot(name, file, old, new="", **more):
    return mutation("oneshot_mc: " + name, file, old, new, kernels=KERNEL, **more)


ONESHOT_MC = [
    of_oneshot("both turns use one slot", BEGIN, "        add.s64 %offset, %offset, %second;\n"),
    of_oneshot("its turn stays", END, "        add.u32 %turn, %turn, 1;\n"),
    of_oneshot(
        "its epoch stays",
        END,
        "        add.u32 %before, %epoch, 1;\n",
        "        mov.b32 %before, %epoch;\n",
    ),
    of_oneshot("counted without order", END, "atom.acq_rel.gpu", "atom.relaxed.gpu"),
    of_oneshot(
        "vectors to an output that does not take them", BEGIN, "        @%p mov.b64 %vectors, 0;\n"
    ),
    of_oneshot(
        "the last elements forgotten",
        BEGIN,
        "        sub.u64 %edge_end, %count, %edge_gap;\n",
        "        mov.b64 %edge_end, 0;\n",
    ),
    of_oneshot("it waits for nobody", "enter.ptxh", '#include "wait.ptxh"\n'),
    of_oneshot(
        "its slot is read before all blocks have filled it",
        "enter.ptxh",
        "        setp.eq.u32 %arrives, %before, %limit;\n",
        "        setp.eq.u32 %arrives, %before, 0;\n",
    ),
    of_oneshot("its slot is filled by none", "enter.ptxh", '#include "copy.ptxh"\n'),
    of_oneshot("aliases in no order", "arrive_mc.ptxh", "    fence.proxy.alias;\n"),
    of_oneshot("its word without .release", "arrive_mc.ptxh", "st.release.sys", "st.relaxed.sys"),
    of_oneshot(
        "the switch reads the other slot",
        "reduce_switch.ptxh",
        "    add.s64 %address, %address, %offset;\n",
        "    add.s64 %address, %address, %offset;\n"
        "    { .reg .b32 %s; .reg .b64 %t; ld.param.u32 %s, [args+KARGS_STRIDE];\n"
        "    cvt.u64.u32 %t, %s; xor.b64 %address, %address, %t; }\n",
    ),
    of_oneshot(
        "its results are not stored",
        "reduce_switch.ptxh",
        "#define PIECE_STORE_MC(k, r, vectors, bytes) @%valid##k st.global",
        "#define PIECE_STORE_MC(k, r, vectors, bytes) @!%valid##k st.global",
    ),
]
