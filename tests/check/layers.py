"""The layer rule: a folder of csrc includes only folders before it; the software switch sees the
driver's binary interface and nothing else, and nothing sees the switch. Also: a cuMulticast
function is named in one file of the core, so that switching multicast off is one decision.
"""

import re
import sys
from pathlib import Path

CSRC = Path(__file__).resolve().parents[2] / "csrc"
ORDER = ["base", "driver", "bootstrap", "memory", "kernels", "comm", "collectives", "api", "torch"]
SOFT_SEES = {"driver/cuda_abi.h", "driver/driver.def"}
MULTICAST_FILES = {"memory/multicast.c", "driver/driver.def"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def layer(name):
    folder = name.partition("/")[0] if "/" in name else Path(name).stem.partition("_")[0]
    return "public" if name == "smfar.h" else folder


def allowed(source, included):
    here, there = layer(source), layer(included)
    if here == there:
        return True
    if here == "soft":
        return included in SOFT_SEES
    if there == "public":
        return True
    return here in ORDER and there in ORDER and ORDER.index(there) < ORDER.index(here)


def faults():
    files = [path for path in CSRC.rglob("*") if path.suffix in (".c", ".h", ".cpp", ".def")]
    for path in sorted(files):
        source, text = str(path.relative_to(CSRC)), path.read_text()
        for name in INCLUDE.findall(text):
            included = (path.parent / name).resolve()
            if not included.is_relative_to(CSRC) or not included.exists():
                yield f'csrc/{source} includes "{name}", which is no file of csrc'
            elif not allowed(source, str(included.relative_to(CSRC))):
                yield f"csrc/{source} includes {included.relative_to(CSRC)}, against the order"
        core = layer(source) != "soft" and source not in MULTICAST_FILES
        if core and re.search(r"\bcuMulticast[A-Z]", text):
            yield f"csrc/{source} names a cuMulticast function; memory/multicast.c alone may"
    if not files:
        yield "csrc holds no source"


if __name__ == "__main__":
    found = list(faults())
    print("\n".join(found) or "the order holds")
    sys.exit(bool(found))
