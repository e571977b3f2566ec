"""Builds what is compiled in smfar: the C core (libsmfar.so), the software switch
(libsmfar_soft.so) and the shim for the installed torch (_C). Metadata is in pyproject.toml.

Only files that changed are compiled again. Variables: CC, CXX, CFLAGS, CXXFLAGS, PTXAS (its cubins
are embedded beside the PTX; without it one is looked for), MAX_JOBS.
"""

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
CSRC = ROOT / "csrc"
CORE = ("base", "driver", "bootstrap", "memory", "kernels", "comm", "collectives")
TORCH_MINORS = range(9, 16)  # of torch 2; the C++ interface changes with each

C_FLAGS = ["-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]
SOFT_FLAGS = [*C_FLAGS, "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing"]
CXX_FLAGS = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall"]


def stop(sentence):
    raise SystemExit(f"smfar: {sentence}")


def version():
    return re.search(r'SMFAR_VERSION "(.+)"', (CSRC / "smfar.h").read_text())[1]


def require_torch():
    """Refuses early: before pip resolves dependencies, and so before it downloads a torch."""
    # Build isolation hides the environment that pip runs in, but torch has to be that one.
    sys.path += [p for p in map(sysconfig.get_path, ("purelib", "platlib")) if p not in sys.path]
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        stop(
            "building needs the torch that it will run with, and this Python has none: install "
            "torch 2.9 to 2.15 first (or build with `pip install --no-build-isolation .`)."
        )
    number = re.match(r"2\.(\d+)", found)
    if not number or int(number[1]) not in TORCH_MINORS:
        stop(f"torch {found} is installed, and smfar builds against torch 2.9 to 2.15 only.")


def compiler(variable, default, language):
    command = shlex.split(os.environ.get(variable, default))
    if not command or not shutil.which(command[0]):
        stop(
            f"no {language} compiler: `{' '.join(command)}` was not found; install one "
            f"(on Debian: apt-get install build-essential) or set {variable}."
        )
    return command


def run(command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    sys.stderr.write(result.stderr)
    if result.returncode != 0:
        stop(f"this failed (its messages are above): {shlex.join(map(str, command))}")


def newest(paths):
    return max(path.stat().st_mtime for path in paths)


def is_current(product, sources):
    return product.exists() and product.stat().st_mtime >= newest(sources)


def dependencies(source, compiled):
    """What the compiler read for `compiled`, by the list that it left, and this file's flags."""
    listed = compiled.with_suffix(".d")
    if not listed.exists():
        return None
    names = shlex.split(listed.read_text().partition(":")[2].replace("\\\n", ""))
    paths = [source, Path(__file__), *map(Path, names)]
    return paths if all(path.exists() for path in paths) else None


def link(library, compile_command, sources, link_flags, build_dir):
    """Compiles what is older than its source or a header of it, and links all into `library`."""

    def compile_one(source):
        name = source.relative_to(ROOT if source.is_relative_to(ROOT) else build_dir)
        compiled = build_dir / f"{str(name).replace('/', '.')}.o"
        read = dependencies(source, compiled)
        if read is None or not is_current(compiled, read):
            print(f"compiling {name}")
            run([*compile_command, "-MMD", "-c", source, "-o", compiled])
        return compiled

    library.parent.mkdir(parents=True, exist_ok=True)
    build_dir.mkdir(parents=True, exist_ok=True)
    jobs = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, sources))
    if not is_current(library, objects):
        print(f"linking {library.name}")
        run([compile_command[0], "-shared", "-pthread", *objects, *link_flags, "-o", library])


def find_ptxas():
    """PTXAS, or the one on PATH, or one of pip's packages: triton's comes with torch for CUDA."""
    if os.environ.get("PTXAS"):
        return shutil.which(os.environ["PTXAS"])
    pip = Path(sysconfig.get_path("purelib"))
    packaged = [*sorted(pip.glob("nvidia/*/bin/ptxas")), pip / "triton/backends/nvidia/bin/ptxas"]
    packaged = [str(path) for path in packaged if os.access(path, os.X_OK)]
    return shutil.which("ptxas") or next(iter(packaged), None)


def kernels_image(build_dir):
    """The C source that holds the PTX modules and, when there is an assembler, their cubins."""
    image = build_dir / "kernels_image.c"
    embed = CSRC / "kernels" / "embed.py"
    read = [embed, *embed.parent.glob("k*.def"), *embed.parent.glob("k*.h")]
    if not is_current(image, [*read, *(ROOT / "ptx").glob("*.ptx*")]):
        ptxas = find_ptxas()
        if ptxas:
            print(f"assembling kernels with {ptxas}")
        else:
            print("no ptxas found: drivers will compile the kernels")
        build_dir.mkdir(parents=True, exist_ok=True)
        run(
            [sys.executable, embed, "--cc", shlex.join(compiler("CC", "cc", "C")), "--out", image]
            + (["--ptxas", ptxas] if ptxas else [])
        )
        image.touch()
    return image


def build_core(out, build_dir):
    sources = sorted(path for folder in CORE for path in (CSRC / folder).glob("*.c"))
    cc = compiler("CC", "cc", "C") + C_FLAGS + shlex.split(os.environ.get("CFLAGS", ""))
    cc += ["-I", CSRC]  # for the generated source
    link(
        out / "libsmfar.so",
        cc,
        [*sources, *sorted(CSRC.glob("api*.c")), kernels_image(build_dir / "core")],
        ["-ldl", "-Wl,-soname,libsmfar.so", "-Wl,-z,defs"],
        build_dir / "core",
    )


def build_soft(out, build_dir):
    cc = compiler("CC", "cc", "C") + SOFT_FLAGS + shlex.split(os.environ.get("CFLAGS", ""))
    link(
        out / "libsmfar_soft.so",
        cc,
        sorted((CSRC / "soft").glob("*.c")),
        ["-lm", "-ldl", "-Wl,-soname,libsmfar_soft.so", "-Wl,-z,defs"],
        build_dir / "soft",
    )


def build_shim(out, build_dir):
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # an older smfar is of no use here
    cxx = compiler("CXX", "c++", "C++") + CXX_FLAGS + shlex.split(os.environ.get("CXXFLAGS", ""))
    from torch.utils import cpp_extension

    for path in [*cpp_extension.include_paths(), sysconfig.get_path("include")]:
        cxx += ["-isystem", path]
    libraries = [f"-L{path}" for path in [*cpp_extension.library_paths(), out]]
    libraries += ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python", "-lsmfar"]
    link(
        out / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}",
        cxx,
        sorted((CSRC / "torch").glob("*.cpp")),
        [*libraries, "-Wl,-rpath,$ORIGIN"],
        build_dir / f"torch-{importlib.metadata.version('torch')}-py{sys.version_info.minor}",
    )


class BuildLibraries(build_ext):
    """Puts the three libraries, and the header of the C interface, into the package: in place, or
    into the wheel."""

    def products(self):
        names = ["libsmfar.so", "libsmfar_soft.so", "smfar.h"]
        names += [f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"]
        return [Path("smfar") / name for name in names]

    def run(self):
        compiler("CC", "cc", "C")
        compiler("CXX", "c++", "C++")
        out = ROOT / "smfar" if self.inplace else Path(self.build_lib).resolve() / "smfar"
        build_dir = ROOT / "build" / f"lib-{sysconfig.get_platform()}"
        build_core(out, build_dir)
        build_soft(out, build_dir)
        build_shim(out, build_dir)
        shutil.copyfile(CSRC / "smfar.h", out / "smfar.h")

    def get_outputs(self):
        return [str(Path(self.build_lib) / product) for product in self.products()]

    def get_output_mapping(self):
        outputs = zip(self.get_outputs(), self.products(), strict=True)
        return {built: str(product) for built, product in outputs} if self.inplace else {}


if __name__ == "__main__":
    # egg_info and sdist only describe; everything else ends in a build
    if {"dist_info", "editable_wheel", "bdist_wheel", "build", "build_ext"} & set(sys.argv):
        require_torch()
    setup(
        version=version(),
        ext_modules=[Extension("smfar._C", [])],  # tells setuptools that wheels are not pure
        cmdclass={"build_ext": BuildLibraries},
    )
