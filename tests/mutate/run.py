"""Plants one fault after the other in the kernels and has checkptx look for it.

Each mutation of mutations.py is applied to a copy of ptx/, the modules are built of that as for
the library, and checkptx runs schedules in the software switch's checked mode, up to --seeds of
them, until one goes wrong. Fails when a fault is not found, or one that nobody can see is.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "csrc" / "kernels"))

import embed  # noqa: E402
import mutations  # noqa: E402

LIMIT_S = 300


def users(name, ptx):
    """The kernels' files that include file `name`, itself included."""
    found = {name}
    while True:
        texts = {path.name: path.read_text() for path in ptx.iterdir() if path.suffix != ".md"}
        named = {of for of, text in texts.items() for part in found if f'"{part}"' in text}
        if named <= found:
            return {part.removesuffix(".ptx") for part in found if part.endswith(".ptx")}
        found |= named


class Modules:
    """The text of the shipped modules, row by row: a mutation rebuilds only what it meets."""

    def __init__(self, cc):
        self.cc = cc
        self.rows = {row: embed.preprocess(cc, *row) for row in embed.rows()}

    def write(self, folder, ptx, changed):
        for name in embed.MODULES:
            parts = [embed.head(name)]
            for row, text in self.rows.items():
                if embed.module_of(*row) == name:
                    parts.append(
                        embed.preprocess(self.cc, *row, ptx) if row[0] in changed else text
                    )
            (folder / f"smfar_{name}.ptx").write_text("\n".join(parts))


def plant(mutation, ptx):
    path = ptx / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        sys.exit(
            f"{mutation.name}: the text stands {text.count(mutation.old)} times in {path.name}"
        )
    path.write_text(text.replace(mutation.old, mutation.new))


def look(checkptx, modules, mutation, seeds, seed):
    """(caught, schedules or what else happened, seconds)"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ptx = folder / "ptx"
        shutil.copytree(embed.PTX, ptx)
        plant(mutation, ptx)
        modules.write(folder, ptx, users(mutation.file, ptx))
        command = [checkptx, "--schedules", seeds, "--seed", seed, "--ptx", folder]
        if mutation.kernels:
            command += ["--kernel", mutation.kernels]
        start = time.monotonic()
        try:
            done = subprocess.run(
                list(map(str, command)),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
            )
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            code, output = None, f"still running after {LIMIT_S} s"
        seconds = time.monotonic() - start
    ran = re.search(r": (\d+) schedules, (\d+) faults", output)
    if code == 0 and ran:
        return False, f"not in {ran[1]}", seconds
    if code == 1 and ran:
        return True, f"schedule {ran[1]}", seconds
    if code == 1 and re.search("^WRONG (?!rig)", output, re.MULTILINE):  # its modules were loaded
        return True, "ends the run", seconds
    return None, output.strip().splitlines()[-1] if output.strip() else f"exit {code}", seconds


def report(mutation, caught, how, seconds):
    good = caught is not None and caught != bool(mutation.equivalent)
    verdict = "caught" if caught else "equal " if mutation.equivalent and good else "MISSED"
    if caught is None or (caught and not good):
        verdict = "WRONG "
    why = f" ({mutation.equivalent})" if mutation.equivalent else ""
    print(
        f"{verdict}  {how:16} {seconds:6.1f} s  {mutation.file:26} {mutation.name}{why}", flush=True
    )
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkptx", type=Path, default=ROOT / "build" / "test" / "bin" / "checkptx"
    )
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--seeds", type=int, default=1000, help="schedules for each fault")
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--only", default="", help="mutations whose name or file contains this")
    args = parser.parse_args()
    chosen = [m for m in mutations.ALL if args.only in m.name or args.only in m.file]
    modules = Modules(args.cc)
    good = 0
    with ThreadPoolExecutor(2) as pool:
        looks = [
            pool.submit(look, args.checkptx, modules, m, args.seeds, args.seed) for m in chosen
        ]
        for mutation, looked in zip(chosen, looks, strict=True):
            good += report(mutation, *looked.result())
    equal = sum(bool(m.equivalent) for m in chosen)
    print(f"{len(chosen)} mutations ({equal} that nobody can see), {len(chosen) - good} wrong")
    return good != len(chosen) or not chosen


if __name__ == "__main__":
    sys.exit(main())
