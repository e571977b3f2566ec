"""Makes the Python environment that `make` works in: torch, what the tests need, and smfar itself
in place. Does only what is not done yet. Standard library only; runs under any Python >= 3.10.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# also what the environment is asked, so: no f-string, no import that a bare Python lacks
TORCH_FITS = """
import sys, importlib.metadata as m
try: parts = m.version("torch").split(".")[:2]
except m.PackageNotFoundError: sys.exit(1)
sys.exit(not (parts[0] == "2" and 9 <= int(parts[1]) <= 15))
"""
MISSING = """
import importlib.metadata as m, sys
for name in sys.argv[1:]:
    try: version = m.version(name)
    except m.PackageNotFoundError: version = "0"
    if version == "0" or name == "setuptools" and int(version.split(".")[0]) < 77: print(name)
"""
TOOLS = ["setuptools", "numpy", "scikit-learn", "ruff", "clang-format"]
TOOLS += ["pytest", "pytest-timeout", "expecttest"]  # the last for PyTorch's own tests

# what pyproject.toml needs of setuptools; one clang-format, since releases format differently
PINNED = {"setuptools": "setuptools>=77", "clang-format": "clang-format==19.1.7"}


def call(*command):
    result = subprocess.run([str(part) for part in command], cwd=ROOT)
    if result.returncode != 0:
        raise SystemExit(f"smfar: this failed: {' '.join(map(str, command))}")


def has_torch(python):
    return subprocess.run([str(python), "-c", TORCH_FITS]).returncode == 0


def make_environment(venv):
    python = venv / "bin" / "python"
    if not python.exists():
        shared = ["--system-site-packages"] if has_torch(sys.executable) else []
        print(f"making {venv}" + (" beside the torch that is installed" if shared else ""))
        call(sys.executable, "-m", "venv", *shared, venv)
    return python


def install_torch(python, torch):
    if has_torch(python):
        return
    requirement = f"torch=={torch}" if torch[:1].isdigit() else torch
    print(
        f"installing {requirement}. torch's CPU build is about 200 MB to download, a CUDA build "
        "several GB, and pip's default on x86-64 Linux is a CUDA build. To choose, install torch "
        "2.9 to 2.15 yourself for the python3 on PATH and run make again."
    )
    call(python, "-m", "pip", "install", "--quiet", *requirement.split())
    if not has_torch(python):
        raise SystemExit(f"smfar: {requirement} is outside torch 2.9 to 2.15")


def install_tools(python):
    asked = [str(python), "-c", MISSING, *TOOLS]
    missing = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    if missing:
        exact = [PINNED.get(name, name) for name in missing]
        print(f"installing {' '.join(exact)}")
        call(python, "-m", "pip", "install", "--quiet", *exact)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--torch", required=True, help="a version, or a pip requirement")
    args = parser.parse_args()
    if sys.version_info < (3, 10):  # noqa: UP036 (this runs before any tool has checked it)
        raise SystemExit("smfar: Python 3.10 or later is needed")
    python = make_environment(args.venv)
    install_torch(python, args.torch)
    install_tools(python)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    os.environ["PYTHONWARNINGS"] = "ignore"  # setuptools warns of what editable means
    call(*pip, "--editable", ROOT)


if __name__ == "__main__":
    main()
