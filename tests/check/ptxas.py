"""Every shipped kernel assembles, for every target and with every assembler found, and uses neither
spills nor a stack. `--find` prints the assemblers.

An assembler is looked for in PTXAS and PTXAS12, on PATH, and in pip's CUDA compiler packages and
triton.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {
    "smfar_mc.ptx": ("sm_90", "sm_100", "sm_103"),
    "smfar_mc_f8.ptx": ("sm_100f", "sm_103f"),
    "smfar_peer.ptx": ("sm_80", "sm_90", "sm_100", "sm_103"),
}
ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
SPACE = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def assemblers():
    """Paths, each assembler once, with the version it prints of itself."""
    pip = Path(sysconfig.get_path("purelib"))
    packaged = [*pip.glob("nvidia/*/bin/ptxas"), *pip.glob("triton/backends/nvidia/bin/ptxas")]
    named = [os.environ.get("PTXAS"), os.environ.get("PTXAS12"), shutil.which("ptxas")]
    found = {}
    for path in [*filter(None, named), *sorted(packaged)]:
        said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
        release = re.search(r"release (\d+\.\d+)", said)
        if release:
            found.setdefault(release[1], str(path))
    return found


def knows(ptxas, target):
    said = subprocess.run([ptxas, "--help"], capture_output=True, text=True).stdout
    return f"'{target}'" in said


def assemble(ptxas, module, target):
    """Faults, and registers per kernel."""
    result = subprocess.run(
        [ptxas, "-v", f"-arch={target}", "-o", "/dev/null", module], capture_output=True, text=True
    )
    if result.returncode != 0:
        return [f"{module.name} for {target}: {result.stderr.strip()[:2000]}"], {}
    faults, registers, entry = [], {}, "?"
    for line in result.stderr.splitlines():
        if match := ENTRY.search(line):
            entry = match[1]
        elif (match := SPACE.search(line)) and any(map(int, match.groups())):
            faults.append(f"{entry} for {target}: {match[0]}")
        elif match := REGISTERS.search(line):
            registers[entry] = int(match[1])
    if not registers:
        faults.append(f"{module.name} for {target}: the assembler named no kernel")
    return faults, registers


def check_all(found, folder):
    faults, skipped, most = [], [], 0
    for version, ptxas in found.items():
        for module, targets in TARGETS.items():
            for target in targets:
                if not knows(ptxas, target):
                    skipped.append(f"{version} has no {target}")
                    continue
                bad, registers = assemble(ptxas, folder / module, target)
                faults += [f"ptxas {version}: {fault}" for fault in bad]
                most = max([most, *registers.values()])
    return faults, sorted(set(skipped)), most


def main():
    found = assemblers()
    if "--find" in sys.argv:
        print("\n".join(found.values()))
        return 0
    if not found:
        print("no ptxas (it comes with the CUDA toolkit, or pip install nvidia-cuda-nvcc)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        embed = [sys.executable, ROOT / "csrc" / "kernels" / "embed.py"]
        embed += ["--cc", os.environ.get("CC") or "cc", "--out", f"{folder}/image.c"]
        subprocess.run([*embed, "--ptx-dir", folder], check=True)
        faults, skipped, most = check_all(found, Path(folder))
    without = "" if any(version.startswith("12.") for version in found) else "; no 12.x found"
    print(
        "\n".join(faults)
        or f"ptxas {', '.join(found)}: no spill, at most {most} registers"
        + without
        + "".join(f"; {line}" for line in skipped)
    )
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
