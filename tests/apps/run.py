"""Runs applications that others have written, over smfar and over gloo, and compares the two: they
are as pip installs them, and their programs here differ in the backend's name alone.

Makes an environment of its own beside the one given, whose torch it uses. Exits with 77 when the
packages cannot be had.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = ["lightning==2.6.6", "accelerate==1.15.0"]
APPS = ["lightning_app.py", "accelerate_app.py"]
LIMIT_S = 300
# runs in the new environment: are they there, and of the right versions?
MISSING = """
import importlib.metadata as m, sys
for wanted in sys.argv[1:]:
    name, version = wanted.split("==")
    try: found = m.version(name)
    except m.PackageNotFoundError: found = ""
    if found != version: print(wanted)
"""


def environment(folder):
    """Its Python, or None. pip keeps to the torch that is there; another may be gigabytes."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "shared.pth").write_text("\n".join(shared) + "\n")
    command = [str(python), "-c", MISSING, *PACKAGES]
    asked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if not asked:
        return python
    print("installing", *asked, flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write(f"torch=={torch.__version__}\n")
        constraints.flush()
        install = [python, "-m", "pip", "install", "--quiet", "-c", constraints.name, *asked]
        return python if subprocess.run(install).returncode == 0 else None


def run(python, app, backend, ranks):
    """What each rank ended with."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", HERE / app, backend, folder]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        env["CUDA_VISIBLE_DEVICES"] = ""
        done = subprocess.run(
            list(map(str, command)),
            env=env,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
        if done.returncode != 0:
            raise SystemExit(f"{app} over {backend}: exit {done.returncode}\n{done.stdout}")
        return [torch.load(f"{folder}/rank{rank}.pt") for rank in range(ranks)]


def differences(app, ours, theirs):
    """What is wrong, in words."""
    found = []
    if ours[0]["backend"] != "smfar" or theirs[0]["backend"] != "gloo":
        found.append(f"{app}: ran over {ours[0]['backend']} and {theirs[0]['backend']}")
    for rank, mine in enumerate(ours):
        if not torch.equal(mine["parameters"], ours[0]["parameters"]):
            found.append(f"{app}: the parameters of rank {rank} are not those of rank 0")
        for name in sorted(set(mine) - {"backend"}):
            a, b = mine[name].double(), theirs[rank][name].double()
            if a.shape != b.shape:
                found.append(f"{app}: rank {rank}: {name} has shape {a.shape}, gloo's {b.shape}")
            elif not torch.allclose(a, b, rtol=1e-3, atol=1e-4):
                most = (a - b).abs().max()
                found.append(f"{app}: rank {rank}: {name} differs by {most} from gloo's")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / "build" / "apps")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    args = parser.parse_args()
    python = environment(args.venv.resolve())
    if python is None:
        print(f"pip cannot install {' '.join(PACKAGES)}")
        return 77
    faults = []
    for app in APPS:
        for ranks in args.ranks:
            ours, theirs = (run(python, app, backend, ranks) for backend in ("smfar", "gloo"))
            new = differences(app, ours, theirs)
            losses = ours[0]["losses"]
            print(
                f"{'FAIL' if new else 'ok'}    {app} with {ranks} ranks: {len(losses)} steps, "
                f"loss {losses[0]:.4f} to {losses[-1]:.4f}; gloo's {theirs[0]['losses'][-1]:.4f}",
                flush=True,
            )
            faults += new
    print("\n".join(faults) or "as over gloo")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
