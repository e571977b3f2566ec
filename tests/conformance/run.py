"""Runs PyTorch's own tests of process groups with smfar and with a peer, and compares.

The peer is gloo, with --device cuda NCCL. Ends with 1 when smfar fails a test that the peer passes
and that is not among the exceptions, when an exception passes after all, or when time ran out; with
77 where nothing can be run. Ranks live on from test to test, and after a failure they are replaced;
with --jobs, as always on GPUs, each test has ranks of its own.
"""

import argparse
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE), str(HERE.parent / "python")]

from jobs import Record, run_all  # noqa: E402
from page import last_line, table, verdict  # noqa: E402
from runner import Runner  # noqa: E402
from suite import names  # noqa: E402

MANY_RANKS = 8  # for the tests that want so many


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


def one_by_one(options, chosen):
    """({backend: results}, none left)"""
    results = {}
    for backend in options.backends:
        first = run_backend(backend, chosen, options.ranks, options.verbose)
        results[backend] = run_again(backend, first, options.verbose)
    return results, 0


def several_at_once(options, chosen, peer):
    """({backend: results}, how many are left)"""
    import torch

    about = {"torch": torch.__version__, "device": options.device, "ranks": options.ranks}
    try:
        record = Record(options.json, about)
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)

    def write():
        with record.lock:
            write_page(options, peer, record.of(peer), record.of("smfar"))

    limit = time.monotonic() + options.seconds
    left = run_all(
        record, chosen, options.backends, options.ranks, peer, options.jobs, limit, write
    )
    return {backend: record.of(backend) for backend in options.backends}, left


def write_page(options, peer, theirs, ours):
    if options.out and theirs and ours:
        options.out.write_text(table(peer, theirs, ours, options.ranks, MANY_RANKS))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--ranks", type=int, help="default: 4, with --device cuda 2")
    parser.add_argument("--out", type=Path, help="write the page here")
    parser.add_argument("--only", nargs="*", help="these tests, or those whose name holds this")
    parser.add_argument("--backends", nargs="*", help="default: the peer and smfar")
    parser.add_argument("--jobs", type=int, help="so many tests at once, in processes of their own")
    parser.add_argument("--seconds", type=float, default=3600, help="with --jobs: no longer")
    parser.add_argument("--json", type=Path, help="with --jobs: outcomes; those in it stay")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    options.peer = {"cpu": "gloo", "cuda": "nccl"}[options.device]
    if options.device == "cuda":
        options.jobs = options.jobs or 4
    options.ranks = options.ranks or {"cpu": 4, "cuda": 2}[options.device]
    options.backends = options.backends or [options.peer, "smfar"]
    return options


def what_is_missing(options):
    """Why nothing can be run here; None if all is well."""
    try:
        import numpy  # noqa: F401
        import torch
    except ImportError as error:
        return f"PyTorch's tests need the package {error.name}"
    gpus = torch.cuda.device_count()
    if options.device == "cuda" and gpus < options.ranks:
        return f"{options.ranks} ranks need a GPU each, and this machine has {gpus}"
    return None


def main():
    options = arguments()
    missing = what_is_missing(options)
    if missing:
        print(f"conformance: {missing}")
        return 77
    os.environ["WORLD_SIZE"] = str(options.ranks)
    peer = options.peer
    chosen = names("smfar", peer)
    chosen = [n for n in chosen if not options.only or any(p in n for p in options.only)]
    if options.jobs:
        results, left = several_at_once(options, chosen, peer)
    else:
        results, left = one_by_one(options, chosen)
    theirs, ours = results.get(peer, {}), results.get("smfar", {})
    write_page(options, peer, theirs, ours)
    faults = list(verdict(peer, theirs, ours))
    passed = sum(outcome == "passed" for outcome, _ in ours.values())
    print("\n".join([*faults, f"smfar passes {passed} of {len(ours)}, {len(faults)} faults"]))
    if left:
        print(f"{left} are left: the same command goes on")
    return bool(faults or left)


if __name__ == "__main__":
    sys.exit(main())
