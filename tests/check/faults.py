"""docs/faults.md keeps its word: rows R01 to R48 are all there, each names a test that exists or
says why there is none, and what must not be called (so that a fault cannot occur) is not.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (R\d\d) \|(.*)\|(.*)\|(.*)\|$", re.MULTILINE)

# row: what no source of the core may contain, or only the file that is named
ABSENT = {
    "R10": r"HANDLE_TYPE_FABRIC",
    "R12": r"pidfd_getfd|PR_SET_PTRACER|process_vm_readv",
    "R14": r"shm_open|/dev/shm|mktemp",
    "R22": r"cuIpc|cudaIpc|\b_?exit\(|\babort\(\)",
}
# the watchdog answers from host memory alone: nothing it runs may call the driver
WATCHING = ("watchdog.c", "failure.c", "ring.c", "life.c")


def sources():
    for path in sorted((ROOT / "csrc").rglob("*.[ch]")):
        if not {"soft", "torch", "cuda_abi.h"} & set(path.parts):
            yield path, path.read_text()


def tests():
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.*"))
    names = set(re.findall(r"\b(test_\w+)\(", text))
    return names | {path.stem for path in (ROOT / "tests").rglob("test_*.*")}


def faults():
    rows = ROW.findall((ROOT / "docs" / "faults.md").read_text())
    wanted = [f"R{number:02}" for number in range(1, 49)]
    if [row[0] for row in rows] != wanted:
        yield f"docs/faults.md has the rows {[row[0] for row in rows]}"
    known = tests()
    for row, *_, where in rows:
        named = re.findall(r"`(test_\w+)`", where)
        yield from (f"{row} names {name}, which is no test" for name in named if name not in known)
        if not named and len(where) < 40 and row not in ABSENT:
            yield f"{row} names no test and gives no reason"
    for name in sorted(known):
        row = re.match(r"test_r(\d\d)_", name)
        if row and not any(number == f"R{row[1]}" and name in w for number, _, _, w in rows):
            yield f"{name} is not in row R{row[1]} of docs/faults.md"
    for path, text in sources():
        for row, pattern in ABSENT.items():
            if re.search(pattern, text):
                yield f"{path.name} contains {pattern}, against {row}"
        if path.name in WATCHING and re.search(r"\bCU\(|driver->|comm_enter", text):
            yield f"{path.name} calls the driver, against R46"


if __name__ == "__main__":
    found = list(faults())
    print("\n".join(found) or "all rows are kept")
    sys.exit(bool(found))
