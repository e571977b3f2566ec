"""Checks the models of the barrier and of the push, barrier.pml and push.pml, with spin: variants
in which properties must hold, and variants with a planted fault, of which they must find the
consequence named. Ends with 0 when every variant gave what was expected, 1 when one did not, 77
when there is no spin. Words given as arguments select variants by name; the push's begin with it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LIMIT_S = 300
STAGED = "STAGED_IN=7 STAGED_OUT=7"

HOLDS = "holds"
RACE = "race"  # read too early, or overwritten while still read
SPOILT = "spoilt"  # a launch ended well with wrong data, another rank having failed
STUCK = "stuck"  # some launch never ends
FALSE = "false alarm"  # a rank failed although nothing was wrong
MISSED = "missed"  # a rank did not notice that another was missing or different
AHEAD = "ahead"  # a wait found a word of a later phase than its own

# What a failed assertion means: a piece of its text, as spin prints it.
MEANING = (
    ("good||lost", RACE),
    ("violated fresh", RACE),
    ("violated right", RACE),
    ("!(last)", RACE),
    ("offset[", RACE),
    ("violated good", SPOILT),
    ("spoilt[", SPOILT),
    ("(done[r]<2)", MISSED),
    ("(failed[r]&&mismatch", MISSED),
    ("!(failed[r])&&", FALSE),
    ("!(mismatch)", FALSE),
    ("word[", AHEAD),
    ("invalid end state", STUCK),
)

BARRIER = (
    # name, options, what it must give
    ("in the window, 2 ranks of 2 blocks", "", HOLDS),
    ("in the window, 2 ranks of 3 blocks", "B=3 L=1", HOLDS),
    ("in the window, 3 ranks of 1 block", "N=3 B=1", HOLDS),
    ("staged, 2 ranks of 2 blocks", STAGED, HOLDS),
    ("staged, 3 ranks of 1 block", f"N=3 B=1 {STAGED}", HOLDS),
    ("copied in, not out", "STAGED_IN=7", HOLDS),
    ("staged beside not staged, 1 block beside 2", "STAGED_IN=1 STAGED_OUT=1 SMALL=2", HOLDS),
    ("staged beside not staged, 2 blocks beside 1", "STAGED_IN=1 STAGED_OUT=1 SMALL=1", HOLDS),
    ("over peers, without the alias fence", f"MULTICAST=0 NO_FENCE {STAGED}", HOLDS),
    ("a broadcast between two all-reduces", "COPIES=4", HOLDS),
    ("the same, staged, 3 ranks", f"N=3 B=1 COPIES=4 {STAGED}", HOLDS),
    ("words overtake one another", "OVERTAKE", HOLDS),
    ("a rank is missing, waits time out", "MISSING TIMEOUT", HOLDS),
    ("the same, staged, 3 ranks", f"MISSING TIMEOUT N=3 B=1 L=1 AT=1 {STAGED}", HOLDS),
    ("any wait may time out", "TIMEOUT L=2", HOLDS),
    ("any wait may time out, 3 launches of 1 block", "TIMEOUT B=1", HOLDS),
    ("any wait may time out, staged", f"TIMEOUT L=1 {STAGED}", HOLDS),
    ("any wait may time out, staged, 2 launches of 1 block", f"TIMEOUT B=1 L=2 {STAGED}", HOLDS),
    ("any wait may time out, a broadcast in between", "TIMEOUT B=1 COPIES=4", HOLDS),
    ("one rank's waits may time out, 3 ranks", "TIMEOUT ONLY=0 N=3 B=1 L=1", HOLDS),
    ("a rank is missing, the host aborts", "MISSING ABORT", HOLDS),
    ("the host aborts, staged", f"ABORT L=1 {STAGED}", HOLDS),
    ("the host aborts, staged, 2 launches of 1 block", f"ABORT B=1 L=2 {STAGED}", HOLDS),
    ("the host aborts, 3 ranks", "ABORT AT_ONCE N=3 B=1 L=1", HOLDS),
    ("a rank has another hash", "ODD_HASH", HOLDS),
    ("a rank has another hash, staged, 3 ranks", f"ODD_HASH N=3 B=1 {STAGED}", HOLDS),
    ("a rank has another hash, waits time out", "ODD_HASH TIMEOUT L=2", HOLDS),
    # two lines: a wait finds its own phase and no later one; one line does not give that
    ("two lines: no wait finds a later phase", "NEVER_AHEAD", HOLDS),
    ("two lines: the same, staged", f"NEVER_AHEAD {STAGED}", HOLDS),
    ("two lines: the same, with time-outs", "NEVER_AHEAD TIMEOUT L=2", HOLDS),
    ("two lines: a wait for equality would do", "WAIT_EQUAL", HOLDS),
    ("two lines: hashes could always be compared", "HASH_ALWAYS", HOLDS),
    ("one line: a wait finds a later phase", "ONE_LINE NEVER_AHEAD", AHEAD),
    ("one line: a wait for equality", "ONE_LINE WAIT_EQUAL", STUCK),
    ("one line: hashes always compared", "ONE_LINE HASH_ALWAYS", FALSE),
    ("one line: what the kernels do", "ONE_LINE", HOLDS),
    # planted faults
    ("fault: arriving without release", "NO_RELEASE", RACE),
    ("fault: waiting without acquire", "NO_ACQUIRE", RACE),
    ("fault: no alias fence", f"NO_FENCE {STAGED}", RACE),
    ("fault: no alias fence, in the window", "NO_FENCE", RACE),
    ("fault: alias fence after the release", f"FENCE_AFTER {STAGED}", RACE),
    ("fault: entry count relaxed", f"RELAXED_COUNT_IN {STAGED}", RACE),
    ("fault: exit count relaxed", "RELAXED_COUNT_OUT", RACE),
    ("fault: end count relaxed", f"RELAXED_COUNT_END {STAGED}", RACE),
    ("fault: the host is told before all have copied", f"DONE_EARLY {STAGED}", RACE),
    ("fault: block 0 arrives at the entry", f"NO_COUNT_IN {STAGED}", RACE),
    ("fault: block 0 arrives at the exit", "NO_COUNT_OUT", RACE),
    ("fault: only block 0 waits at the entry", "ONE_BLOCK_WAITS", RACE),
    ("fault: nobody waits at the exit", "NO_EXIT_WAIT", RACE),
    ("fault: the count does not reset itself", "COUNT_STAYS", RACE),
    ("fault: offsets follow the word", "OFFSET_LATE", RACE),
    ("fault: the epoch is written after the entry", "EPOCH_EARLY", STUCK),
    ("fault: the epoch is not written", "EPOCH_STAYS", FALSE),
    ("fault: hashes are not compared", "NO_HASH ODD_HASH", MISSED),
    ("fault: waits do not time out", "MISSING", STUCK),
    ("fault: waits do not see the abort word", "MISSING ABORT NO_ABORT", STUCK),
    ("fault: launches after a failure go on", "TIMEOUT NO_FAILED_CHECK", FALSE),
    ("fault: done without a look at failures", "TIMEOUT DONE_BLIND B=1 L=1", SPOILT),
    ("fault: the same, with a broadcast", "TIMEOUT DONE_BLIND B=1 L=2 COPIES=4", RACE),
    ("fault: a failure is told to its own rank alone", "TIMEOUT TELL_SELF B=1 L=1", SPOILT),
    ("fault: a failure is told after the launch", "TIMEOUT TELL_LATE B=1 L=1", SPOILT),
)

PUSH = (
    ("push: 2 ranks of 1 block, 2 packets", "B=1 L=4", HOLDS),
    ("push: 2 ranks of 2 blocks, 1 packet", "C=1", HOLDS),
    ("push: 2 ranks of 2 blocks, 2 packets", "L=2", HOLDS),
    ("push: 2 blocks beside 1, 2 packets", "SMALL=2", HOLDS),
    ("push: in a graph, where the end count is relaxed", "REPLAYED C=1", HOLDS),
    ("push: 3 ranks of 1 block, packets alone fly", "N=3 B=1 C=1 WORDS_AT_ONCE", HOLDS),
    ("push: through the switch", "TO_ITSELF B=1 L=4", HOLDS),
    ("push: a two-shot between", "B=1 L=5 TWOSHOTS=8", HOLDS),
    ("push: two barriers between", "B=1 L=5 BARRIERS=20", HOLDS),
    ("push: a rank is missing, waits time out", "MISSING TIMEOUT B=1", HOLDS),
    ("push: any wait may time out", "TIMEOUT B=1 L=2", HOLDS),
    ("push: any wait may time out, 4 launches", "TIMEOUT B=1 C=1 L=4", HOLDS),
    ("push: any wait may time out, a barrier between", "TIMEOUT B=1 C=1 BARRIERS=4", HOLDS),
    ("push: the host aborts", "ABORT B=1", HOLDS),
    ("push: the host aborts, 2 blocks", "ABORT AT_ONCE C=1 L=2 WORDS_AT_ONCE", HOLDS),
    ("push: a rank has another hash", "ODD_HASH B=1", HOLDS),
    ("push: a rank has another hash, waits time out", "ODD_HASH TIMEOUT B=1 C=1", HOLDS),
    # planted faults
    ("push fault: one set of boxes", "ONE_SET B=1 C=1", RACE),
    ("push fault: phases wrap at an odd number", "WRAP=15 B=1 C=1", RACE),
    ("push fault: the epoch is not written", "EPOCH_STAYS B=1 C=1", RACE),
    ("push fault: packets are not cleared", "NO_CLEAR B=1 C=1", RACE),
    ("push fault: no wait for the phase", "NO_WAIT B=1 C=1", RACE),
    ("push fault: arriving without release", "NO_RELEASE B=1 C=1", RACE),
    ("push fault: waiting without acquire", "NO_ACQUIRE B=1 C=1", RACE),
    ("push fault: flags are not looked at", "NO_FLAG B=1 C=1", RACE),
    ("push fault: one flag for two packets", "ONE_FLAG B=1", RACE),
    ("push fault: its own packet is not awaited", "OWN_AT_ONCE TO_ITSELF B=1 C=1", RACE),
    ("push fault: end count relaxed", "RELAXED_COUNT_OUT", RACE),
    ("push fault: packets of any call are taken", "ANY_MARK ODD_HASH B=1 C=1", RACE),
    ("push fault: hashes are not compared", "NO_HASH ODD_HASH B=1 C=1", MISSED),
    ("push fault: waits do not time out", "MISSING B=1 C=1", STUCK),
    ("push fault: polls do not give up", "TIMEOUT ONLY=0 POLLS_BLIND L=2", STUCK),
    ("push fault: launches after a failure go on", "TIMEOUT NO_FAILED_CHECK B=1 C=1", RACE),
)

CASES = [("barrier.pml", *case) for case in BARRIER] + [("push.pml", *case) for case in PUSH]


def meaning(said):
    """What pan found."""
    if (
        re.search(r"max search depth|out of memory|Search not completed", said)
        and "pan:1" not in said
    ):
        return "too large"
    if found := re.search(r"^pan:1: (.*)$", said, re.MULTILINE):
        return next((kind for text, kind in MEANING if text in found[1]), found[1])
    return HOLDS if "errors: 0" in said else None


def run(command, folder):
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, f"no end within {LIMIT_S} s", "")


def check(model, options, cc):
    """What a variant gives, its states, and the seconds that the search took."""
    with tempfile.TemporaryDirectory() as folder:
        for path in FOLDER.glob("*.pml"):
            shutil.copy(path, folder)
        flags = [f"-D{option}" for option in options.split()]
        made = run(["spin", *flags, "-a", model], folder)
        if not Path(folder, "pan.c").exists():
            return made.stdout + made.stderr, 0, 0
        search = ["-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", "-DMEMLIM=2048"]
        built = run([cc, "-O1", "-w", *search, "-o", "pan", "pan.c"], folder)
        if built.returncode != 0:
            return built.stderr, 0, 0
        start = time.monotonic()
        said = run(["./pan", "-m100000"], folder).stdout
        seconds = time.monotonic() - start
    states = re.search(r"(\d+) states, stored", said)
    return meaning(said) or said, int(states[1]) if states else 0, seconds


def main():
    if not shutil.which("spin"):
        print("model: skipped, no spin (it is a package of Debian and Ubuntu)")
        return 77
    cc = os.environ.get("CC") or "cc"
    cases = [c for c in CASES if all(word in c[1] for word in sys.argv[1:])]
    surprises = 0
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda case: check(case[0], case[2], cc), cases)
        for (_, name, _, expected), (got, states, seconds) in zip(cases, results, strict=True):
            mark = "ok  " if got == expected else "FAIL"
            print(f"{mark}  {name:<54} {got:<12} {states:>9} states {seconds:6.1f} s", flush=True)
            if got != expected:
                surprises += 1
                print(f"      expected: {expected}", flush=True)
    print(f"model: {len(cases) - surprises} of {len(cases)} variants gave what they must")
    return bool(surprises or not cases)


if __name__ == "__main__":
    sys.exit(main())
