"""kernels.def and ptx/ agree: every row has its file, every file a row, and no row comes twice. And
ptx/README.md names every file that the kernels are made of."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main():
    text = (ROOT / "csrc" / "kernels" / "kernels.def").read_text()
    rows = re.findall(r"^(?:PLAIN|KERNEL)\((\w+)(.*)\)", text, re.MULTILINE)
    files = {path.stem for path in (ROOT / "ptx").glob("*.ptx")}
    listed = {file for file, _ in rows}
    faults = [f"kernels.def lists {name}, and ptx/{name}.ptx is missing" for name in listed - files]
    faults += [f"ptx/{name}.ptx is not in kernels.def" for name in files - listed]
    faults += [f"{row} comes {rows.count(row)} times" for row in set(rows) if rows.count(row) > 1]
    faults += [
        f"{name} is neither _mc nor _peer"
        for name in listed
        if name[-3:] != "_mc" and name[-5:] != "_peer"
    ]
    readme = (ROOT / "ptx" / "README.md").read_text()
    faults += [
        f"ptx/README.md does not name {path.name}"
        for path in (ROOT / "ptx").glob("*.ptx*")
        if f"`{path.name}`" not in readme
    ]
    print("\n".join(sorted(faults)) or f"{len(rows)} kernels in {len(files)} files")
    return bool(faults or not rows)


if __name__ == "__main__":
    sys.exit(main())
