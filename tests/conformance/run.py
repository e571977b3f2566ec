"""Runs PyTorch's own tests of process groups with smfar and with gloo, and compares.

Ends with 1 when smfar fails a test that gloo passes and that is not among the exceptions, or when
an exception passes after all. Ranks live on from test to test; after a failure they are replaced.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE), str(HERE.parent / "python")]

from exceptions import EXCEPTIONS  # noqa: E402
from harness import Ranks  # noqa: E402
from suite import names, run_one, skip_reason  # noqa: E402

DEADLINE = 150.0
MANY_RANKS = 8  # for the tests that want so many


def rank_part(backend, other, name, ranks, folder):
    return run_one(backend, other, name, int(os.environ["CONFORMANCE_RANK"]), ranks, folder)


class Runner:
    """The ranks of one backend."""

    def __init__(self, backend, ranks):
        self.backend, self.count = backend, ranks
        env_of = {rank: {"CONFORMANCE_RANK": str(rank)} for rank in range(ranks)}
        env = {"OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "OFF"}
        os.environ["WORLD_SIZE"] = str(ranks)  # some tests decide by it when they are defined
        self.ranks = Ranks(ranks, init=False, env=env, env_of=env_of)

    def run(self, name):
        """(outcome, why) of one test on all ranks."""
        other = "gloo"
        reason = skip_reason(self.backend, other, name)
        if reason and reason.startswith("Only MPI") and self.backend == "smfar":
            other = "mpi"
            reason = skip_reason(self.backend, other, name)
        if reason:
            return "skipped", reason
        with tempfile.TemporaryDirectory(prefix="smfar-conformance-") as folder:
            for name_of_folder in ("barrier", "test_dir", "init_dir"):
                (Path(folder) / name_of_folder).mkdir()
            try:
                answers = self.ranks.run(
                    rank_part, self.backend, other, name, self.count, folder, deadline=DEADLINE
                )
            except AssertionError as error:
                return "failed", str(error)
        failed = [f"rank {r}: {why}" for r, (what, why) in enumerate(answers) if what == "failed"]
        if failed:
            self.ranks.stop()
            return "failed", "\n".join(failed)
        skipped = [why for what, why in answers if what == "skipped"]
        return ("skipped", skipped[0]) if skipped else ("passed", "")


def last_line(text):
    text = text.partition("To execute this test")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def run_backend(backend, chosen, ranks, verbose):
    runner, results = Runner(backend, ranks), {}
    for name in chosen:
        begin = time.monotonic()
        results[name] = runner.run(name)
        outcome, why = results[name]
        if outcome != "skipped" or verbose:
            seconds = time.monotonic() - begin
            print(f"{backend:5} {outcome:7} {seconds:5.1f} s {name} {last_line(why)}", flush=True)
        if outcome == "failed" and verbose:
            print(why.partition("To execute this test")[0], flush=True)
    runner.ranks.stop()
    return results


def run_again(backend, results, verbose):
    """With more ranks, what asks for them."""
    names_of_few = [name for name, (_, why) in results.items() if "small world size" in why]
    if names_of_few:
        results.update(run_backend(backend, names_of_few, MANY_RANKS, verbose))
    return results


def table(gloo, smfar, ranks):
    """docs/conformance.md."""
    count = {}
    rows = []
    for name in sorted(smfar):
        theirs, ours, why = gloo[name][0], smfar[name][0], smfar[name][1]
        if ours == "failed":
            why = EXCEPTIONS.get(name, last_line(why))
        if ours == "skipped":
            ours, why = "not applicable", last_line(why)
        theirs = "not applicable" if theirs == "skipped" else theirs
        count[theirs, ours] = count.get((theirs, ours), 0) + 1
        rows.append(f"| `{name}` | {theirs} | {ours} | {why.replace('|', '/')} |")
    summary = [f"| {a} | {b} | {n} |" for (a, b), n in sorted(count.items())]
    return "\n".join(
        [
            "# PyTorch's own tests of process groups",
            "",
            "`make conformance` runs `distributed_test.py` of the installed torch with gloo and",
            f"with smfar on CPU tensors, {ranks} ranks ({MANY_RANKS} where a test wants more),",
            "and writes this page. Tests that are for CUDA devices or name another backend are not",
            "applicable; what asks for gloo or for MPI by name is run with smfar all the same.",
            "",
            "| gloo | smfar | tests |",
            "|---|---|---|",
            *summary,
            "",
            "| test | gloo | smfar | reason |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def verdict(gloo, smfar):
    """Faults: differences that are no exception, and exceptions that are none."""
    for name, (outcome, why) in smfar.items():
        worse = outcome == "failed" and gloo.get(name, ("passed",))[0] == "passed"
        if worse and name not in EXCEPTIONS:
            yield f"{name} passes with gloo and fails with smfar: {last_line(why)}"
        if outcome == "passed" and name in EXCEPTIONS:
            yield f"{name} passes; it is no exception any more"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--out", type=Path, help="write the page here")
    parser.add_argument("--only", nargs="*", help="these tests, or those whose name holds this")
    parser.add_argument("--backends", nargs="*", default=["gloo", "smfar"])
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    os.environ["WORLD_SIZE"] = str(options.ranks)
    chosen = [n for n in names("smfar") if not options.only or any(p in n for p in options.only)]
    results = {}
    for backend in options.backends:
        first = run_backend(backend, chosen, options.ranks, options.verbose)
        results[backend] = run_again(backend, first, options.verbose)
    gloo, smfar = results.get("gloo", {}), results.get("smfar", {})
    if options.out and gloo and smfar:
        options.out.write_text(table(gloo, smfar, options.ranks))
    faults = list(verdict(gloo, smfar))
    passed = sum(outcome == "passed" for outcome, _ in smfar.values())
    print("\n".join([*faults, f"smfar passes {passed} of {len(smfar)}, {len(faults)} faults"]))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
