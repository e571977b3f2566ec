"""Faults in the kernel that moves data: which rank, which bytes, where to."""

from mutation import mutation

PULL = "pull_peer"
FILE = "pull_peer.ptx"

MOVE = [
    mutation(
        "pull: everything is read from rank 0",
        FILE,
        "        mov.b64 %there, chunk;\n        add.s64 %there, %there, %here;\n",
        "        mov.b64 %there, chunk;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: every rank is told of the first part",
        "arrive_peer.ptxh",
        "    mad.lo.u64 %arg, %line, %part, %arg;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: turns beyond the last rank are left out",
        FILE,
        "        rem.u32 %r, %r, %ranks;\n",
        "        setp.ge.u32 %p, %r, %ranks;\n        @%p bra NEXT;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: the first tile is read again and again",
        FILE,
        "        add.s64 %from, %from, %at;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: a tile is stored where the first goes",
        FILE,
        "        add.s64 %to, %to, %at;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: the last tile is as long as the others",
        FILE,
        "        min.u64 %left, %left, TILE_BYTES;\n",
        "        mov.b64 %left, TILE_BYTES;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: a tile is not told from the rest of the data",
        FILE,
        "        min.u64 %left, %left, TILE_BYTES;\n",
        kernels=PULL,
        equivalent="vectors end with the tile, and where bytes go on they are the right ones",
    ),
    mutation(
        "pull: the last tile is forgotten",
        FILE,
        "        setp.ge.u64 %p, %at, %count;\n",
        "        add.u64 %from, %at, TILE_BYTES;\n        setp.gt.u64 %p, %from, %count;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: a warp skips every second item",
        FILE,
        "        add.u32 %item, %item, %step;\n",
        "        add.u32 %item, %item, %step;\n        add.u32 %item, %item, %step;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: blocks take the same items",
        FILE,
        "        mad.lo.u32 %item, %cta, %step, %warp;\n",
        "        mov.b32 %item, %warp;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: a load without its predicate",
        FILE,
        "@%valid##k ld.relaxed",
        "ld.relaxed",
        kernels=PULL,
        equivalent="what is loaded beyond the data is not stored; it lies in the window",
    ),
    mutation(
        "pull: a store without its predicate",
        FILE,
        "@%valid##k st.global",
        "st.global",
        kernels=PULL,
    ),
    mutation(
        "pull: a vector too many is valid",
        FILE,
        "setp.gt.s64 %valid##k, %rest, vectors;",
        "setp.ge.s64 %valid##k, %rest, vectors;",
        kernels=PULL,
    ),
    mutation(
        "pull: vectors to an output that does not take them",
        FILE,
        "        or.b64 %here, %from, %to;\n",
        "        mov.b64 %here, %from;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: vectors of data that do not lie on their boundaries",
        FILE,
        "        or.b64 %here, %from, %to;\n",
        "        mov.b64 %here, %to;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: the bytes behind the vectors forgotten",
        FILE,
        "        mov.b64 %left, %rest;\n",
        "        mov.b64 %left, 0;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: the bytes behind the vectors are the first ones",
        FILE,
        "        add.s64 %from, %from, %left;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: the bytes behind the vectors go to the beginning",
        FILE,
        "        add.s64 %to, %to, %left;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: the first lane's byte alone",
        FILE,
        "        add.u64 %rest, %rest, 32;\n",
        "        mov.b64 %rest, %left;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: what nobody wants is stored, at address 0",
        FILE,
        "        setp.eq.u64 %p, %to, 0;\n        @%p bra NEXT;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: one's own data are left out wherever they go",
        FILE,
        "        setp.eq.u64 %p, %from, %to;\n",
        "        setp.eq.u32 %p, %r, %rank;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: what lies where it goes is moved",
        FILE,
        "        setp.eq.u64 %p, %from, %to;\n        @%p bra NEXT;\n",
        kernels=PULL,
        equivalent="each byte is stored as it was, by the thread that has loaded it",
    ),
    mutation(
        "pull: outputs are one rank late",
        FILE,
        "        ld.param.u64 %to, [%there+MOVE_TO];\n",
        "        ld.param.u64 %to, [%there+MOVE_TO+8];\n",
        kernels=PULL,
    ),
    mutation(
        "pull: it begins with its own data",
        FILE,
        "        add.u32 %r, %r, 1;\n",
        kernels=PULL,
        equivalent="the ranks' turns are for the links' sake",
    ),
    mutation(
        "pull: ranks change within a tile",
        FILE,
        "        div.u32 %x, %x, %step;\n",
        "        div.u32 %x, %item, %step;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: ranks do not change from round to round",
        FILE,
        "        add.u32 %r, %r, %x;\n",
        kernels=PULL,
        equivalent="which warp reads from which rank is a matter of time alone",
    ),
    mutation(
        "pull: nobody is waited for",
        "wait.ptxh",
        "    setp.ge.s32 %there, %ahead, 0;\n",
        "    setp.ge.s32 %there, %ahead, -2;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: what was copied in is not released",
        "arrive_peer.ptxh",
        "    fence.acq_rel.sys;\n",
        kernels=PULL,
    ),
    mutation(
        "pull: no exit barrier",
        "twoshot_end.ptxh",
        "        @!%last bra LEAVE;\nAWAIT:\n",
        "        setp.eq.and.u32 %p, %thread, 0, %last;\n"
        "        add.u32 %before, %epoch, 2;\n"
        "        @%p st.relaxed.gpu.global.u32 [%sig+SIGNALS_EPOCH], %before;\n"
        "        @%p bra DONE;\n        bra LEAVE;\nAWAIT:\n",
        kernels=PULL,
    ),
]
