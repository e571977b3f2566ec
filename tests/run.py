"""Runs groups of tests and counts them together: C programs, checks, and pytest.

A program or check passes by ending with 0 and is skipped by ending with 77, its last line then
saying why. The last line printed is `N passed, N failed, N skipped`; before it there is a line for
each test that failed, with its first complaint.
"""

import argparse
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GROUPS = ("unit", "soft", "checkptx", "mutate", "check", "python", "gpu")
LIMIT_S = 3600  # of a program, or check
TEST_LIMIT_S = 600  # of a test of pytest's: by then harness.py has said more
COMPLAINTS = ("not so:", "WRONG", "ERROR: ", "runtime error: ")  # units, checkptx, sanitizers
RAISED = re.compile(r"^[\w.]+(Error|Exception|Exit)\b|did not answer|ended with exit code")
MOST_NAMED, MOST_SAID = 24, 250  # failed tests, and characters of each


class Count:
    passed = failed = skipped = 0

    def __init__(self):
        self.failures = []

    def fail(self, name, said):
        self.failed += 1
        self.failures.append(f"FAILED {name}: {said[:MOST_SAID]}")

    def lines(self):
        left = len(self.failures) - MOST_NAMED
        yield from self.failures[:MOST_NAMED]
        if left > 0:
            yield f"FAILED {left} more"
        yield f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def finish(count, name, code, output, seconds):
    lines = output.strip().splitlines() or [""]
    if code == 0:
        count.passed += 1
        print(f"ok    {name} ({seconds:.1f} s) {lines[-1]}", flush=True)
    elif code == 77:
        count.skipped += 1
        print(f"skip  {name}: {lines[-1]}", flush=True)
    else:
        complaints = [line for line in lines if any(one in line for one in COMPLAINTS)]
        count.fail(name, f"exit {code}: {[*complaints, lines[-1]][0].strip()}")
        print(f"FAIL  {name}: exit {code}", *lines, sep="\n      ", flush=True)


def run_program(count, name, command):
    start = time.monotonic()
    try:
        result = subprocess.run(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
        code, output = result.returncode, result.stdout
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode(errors="replace")  # bytes, whatever was asked for
        code, output = "none", f"{said}\nstill running after {LIMIT_S} s"
    finish(count, name, code, output, time.monotonic() - start)


def run_pytest(count, bin_dir, folder):
    report = bin_dir.parent / f"pytest-{folder}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"tests/{folder}", "-q", "-rs"]
    command += ["--timeout", str(TEST_LIMIT_S)]
    code = subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT).returncode
    if not report.exists():
        return finish(count, "pytest", code or 1, "pytest wrote no report", 0)
    before = count.failed
    for case in xml.parse(report).getroot().iter("testcase"):
        bad = [*case.iter("failure"), *case.iter("error")]
        skipped = case.find("skipped") is not None
        for one in bad:
            count.fail(f"{case.get('classname')}::{case.get('name')}", told(one.text or ""))
        count.skipped += skipped and not bad
        count.passed += not skipped and not bad
    if code != 0 and count.failed == before:  # nothing collected, or interrupted
        count.fail(f"pytest tests/{folder}", f"exit {code}")
    return None


def told(text):
    """What was raised, and where that is what ranks have raised (harness.py), the last one's."""
    first, *rest = [line[1:].strip() for line in text.splitlines() if line[:2] == "E "] or [""]
    ranks = [line for line in rest if RAISED.search(line)]
    return " … ".join([first, *ranks[-1:]])


def run_group(count, group, bin_dir, under):
    if group == "python":
        run_pytest(count, bin_dir, group)
    elif group == "gpu":
        run_program(count, "checkptx/gpu", [bin_dir / "checkptx", "--gpu", "--seed", "1"])
        run_pytest(count, bin_dir, group)
    elif group == "checkptx":
        run_program(count, "checkptx", [*under, bin_dir / "checkptx"])
        schedules = ["--schedules", "2000", "--seed", "1"]
        run_program(count, "checkptx/schedules", [*under, bin_dir / "checkptx", *schedules])
    elif group == "mutate":
        script = ROOT / "tests" / "mutate" / "run.py"
        run_program(count, group, [sys.executable, script, "--checkptx", bin_dir / "checkptx"])
    elif group == "check":
        for path in sorted((ROOT / "tests" / "check").glob("*.py")):
            run_program(count, f"check/{path.stem}", [sys.executable, path])
    else:
        for path in sorted((bin_dir / group).glob("test_*")):
            source = ROOT / "tests" / group / f"{path.name}.c"
            if source.exists():  # else a program that an earlier build left
                run_program(count, f"{group}/{path.name}", [*under, path])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, required=True, help="where the C programs are")
    parser.add_argument("--under", default="", help="an emulator and its options, for C programs")
    parser.add_argument("groups", nargs="+", choices=GROUPS)
    args = parser.parse_args()
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    os.environ.setdefault("SMFAR_PLAN_TABLE", "0")  # not the table of whoever runs the tests
    count = Count()
    for group in args.groups:
        run_group(count, group, args.bin.resolve(), args.under.split())
    print(*count.lines(), sep="\n")
    return 1 if count.failed or not count.passed else 0


if __name__ == "__main__":
    sys.exit(main())
