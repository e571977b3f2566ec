"""Faults in how a push waits for packets: their marks, whose are awaited, and when it gives up."""

from push import AWAIT, FILE, of_push

RELEASED = "released.ptxh"
VOTE = "    vote.sync.any.pred %late, %late, 0xffffffff;\n"


def looks_at(word, one):
    return (
        f"    mov.b64 {{%v##j##{word}, %x}}, %one##j##{one}; xor.b32 %x, %x, %hash; "
        "or.b32 %unlike##j, %unlike##j, %x; \\\n"
    )


FIRST = "    mov.b64 {%v##j##x, %x}, %one##j##0; xor.b32 %unlike##j, %x, %hash; \\\n"
LOOKS = FIRST + looks_at("y", 1) + looks_at("z", 2) + looks_at("w", 3)


def without_mark(word, one):
    """One packet of the four is taken whatever its mark."""
    move = f"    mov.b64 {{%v##j##{word}, %x}}, %one##j##{one}; \\\n"
    return of_push(f"the mark of packet {one} not looked at", AWAIT, looks_at(word, one), move)


MARKS = [
    of_push(
        "no mark looked at",
        AWAIT,
        "    setp.ne.u32 %p, %unlike, 0;\n",
        "    setp.ne.u32 %p, 0, 0;\n",
    ),
    of_push(
        "the mark of packet 0 not looked at",
        AWAIT,
        FIRST,
        FIRST.replace("xor.b32 %unlike##j, %x, %hash", "mov.b32 %unlike##j, 0"),
    ),
    without_mark("y", 1),
    without_mark("z", 2),
    without_mark("w", 3),
    of_push(
        "one mark of four will do",
        AWAIT,
        LOOKS,
        LOOKS.replace(" or.b32 %unlike##j", " min.u32 %unlike##j"),
    ),
    of_push(
        "any mark will do",
        AWAIT,
        LOOKS,
        LOOKS.replace("xor.b32 %x, %x, %hash", "min.u32 %x, %x, 1; xor.b32 %x, %x, 1").replace(
            "xor.b32 %unlike##j, %x, %hash", "min.u32 %x, %x, 1; xor.b32 %unlike##j, %x, 1"
        ),
    ),
    of_push(
        "packets of all calls have one mark",
        FILE,
        "    mov.b32 %index, %first;\n    {\n        .reg .b64 %box, %one0",
        "    mov.b32 %hash, 1;\n    mov.b32 %index, %first;\n    {\n        .reg .b64 %box, %one0",
    ),
    of_push(
        "only the last rank's marks are looked at",
        AWAIT,
        "    or.b32 %unlike, %unlike, %unlike##j;\n",
        "    mov.b32 %unlike, %unlike##j;\n",
    ),
]

WHOSE = [
    of_push(
        "the wait is for one rank more",
        AWAIT,
        "    setp.lt.and.u32 %due##j, %x, %ranks, %live; \\\n",
        "    setp.le.and.u32 %due##j, %x, %ranks, %live; \\\n",
    ),
    of_push(
        "the wait is for one rank less",
        AWAIT,
        "    setp.lt.and.u32 %due##j, %x, %ranks, %live; \\\n",
        "    { .reg .b32 %y; add.u32 %y, %x, 1; setp.lt.and.u32 %due##j, %y, %ranks, %live; } \\\n",
    ),
    of_push(
        "lanes without a vector wait for packets",
        AWAIT,
        "    setp.lt.and.u32 %due##j, %x, %ranks, %live; \\\n",
        "    setp.lt.u32 %due##j, %x, %ranks; \\\n",
    ),
    of_push(
        "its own packets are waited for",
        AWAIT,
        "#define NOT_MINE(j) setp.ne.and.u32 %due##j, %x, %rank, %due##j;\n",
        "#define NOT_MINE(j)\n",
    ),
    of_push(
        "lanes go on one by one",
        AWAIT,
        "    vote.sync.ballot.b32 %x, %p, 0xffffffff;\n    setp.ne.u32 %p, %x, 0;\n",
        "    activemask.b32 %x;\n",
    ),
    of_push(
        "one lane's packets are taken for all", AWAIT, "    @!%apart bra CAME;\n", "    bra CAME;\n"
    ),
    of_push(
        "boxes are not put back after one lane's",
        AWAIT,
        "look for all again */\n    EACH_RANK(AWAIT_PLACE)\n",
        "look for all again */\n",
    ),
    of_push(
        "one lane's packets are looked for again and again",
        AWAIT,
        "    setp.ne.u32 %apart, 0, 0;\n    bra POLL;\n",
        "    bra POLL;\n",
    ),
    of_push(
        "the lane that is looked for is counted from the other end",
        AWAIT,
        "    brev.b32 %x, %x;\n",
    ),
    of_push(
        "lanes look beside one lane's packets",
        AWAIT,
        "    sub.s32 %x, %x, %lane;\n",
    ),
    of_push(
        "all lanes' packets are looked for, however late they are",
        AWAIT,
        "    setp.lt.u32 %p, %polls, FULL_POLLS;\n    @%p bra POLL;\n",
        "    bra APART;\n",
        equivalent="it is for the sake of who computes meanwhile",
    ),
]

GIVING_UP = [
    of_push(
        "lanes hear one by one of a failure",
        AWAIT,
        VOTE + "    @%late bra TAKEN;\n",
        "    @%late bra TAKEN;\n",
    ),
    of_push(
        "lanes give up one by one",
        AWAIT,
        VOTE + "    @!%late bra POLL;\n",
        "    @!%late bra POLL;\n",
        equivalent="the switch reads its clock for all lanes of a warp at once",
    ),
    of_push(
        "a failed rank is waited for",
        RELEASED,
        "    ld.relaxed.sys.global.u32 %abort, [%window+SIGNALS_FAILED];\n",
        "    mov.b32 %abort, 0;\n",
        equivalent="who fails sets the abort word, too, which is looked at 8 ms later",
    ),
    of_push(
        "the abort word is not looked at",
        RELEASED,
        "    @%p or.b32 %abort, %abort, %x;\n",
    ),
    of_push(
        "the abort word is looked at each time",
        RELEASED,
        "setp.ge.u64 %p, %gone, 8000000;",
        "setp.ge.u64 %p, %gone, 0;",
        equivalent="that takes time alone",
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
        "lanes that miss nothing say who is missing",
        AWAIT,
        "    setp.eq.u32 %p, %unlike, 0;\n    @%p bra TAKEN;\n",
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
]

PUSH_WAIT = MARKS + WHOSE + GIVING_UP
