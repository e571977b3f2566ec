"""What the built libraries export: libsmfar.so the functions of smfar.h and no other name, the
software switch the driver's names, cuGetProcAddress_v2 and its own counters.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def exported(library):
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", "--format=posix", library],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {line.split()[0].partition("@")[0] for line in listing.splitlines()}


def core_names():
    text = (ROOT / "csrc" / "smfar.h").read_text()
    return set(re.findall(r"SMFAR_EXPORT[^;(]*?\b(smfar_\w+)\(", text))


def switch_names():
    lists = ("driver/driver.def", "soft/graphs.def")
    listed = "".join((ROOT / "csrc" / name).read_text() for name in lists)
    counters = (ROOT / "csrc" / "soft" / "soft.h").read_text()
    return {
        *re.findall(r"^(?:REQUIRED|OPTIONAL)\((\w+)", listed, re.MULTILINE),
        *re.findall(r"\b(soft_\w+)\(", counters),
        "cuGetProcAddress_v2",
    }


def differences(name, expected, allowed=frozenset()):
    library = ROOT / "smfar" / name
    if not library.exists():
        yield f"{library} is not built: make lib"
        return
    found = exported(library)
    for symbol in sorted(expected - found):
        yield f"{name} does not export {symbol}"
    for symbol in sorted(found - expected - allowed):
        yield f"{name} exports {symbol}"


def main():
    if not shutil.which("nm"):
        print("no nm (binutils)")
        return 77
    # a driver has the versioned names too, which cuda.h maps the plain ones to
    versioned = {f"{name}_v{n}" for name in switch_names() for n in (2, 3)}
    faults = [
        *differences("libsmfar.so", core_names()),
        *differences("libsmfar_soft.so", switch_names(), versioned),
    ]
    print("\n".join(faults) or f"{len(core_names())} and {len(switch_names())} names")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
