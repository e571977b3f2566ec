"""python -m smfar kernels: registers, spills and size of every kernel, as an assembler sees them.

Needs ptxas: PTXAS, or the one on PATH, or one of pip's packages (triton's comes with torch for
CUDA). The driver's own compiler, used where a library was built without cubins, may differ.
"""

import ctypes
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass

# and which GPUs each is for, by the number in their names
MODULES = {
    "peer": lambda number: True,
    "mc": lambda number: number >= 90,
    "mc_f8": lambda number: number in (100, 103),
}
ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass
class Kernel:
    name: str
    registers: int = 0
    stack: int = 0  # bytes per thread
    spilled: int = 0  # bytes per thread, stored and loaded
    code: int = 0  # bytes


def add_arguments(parser):
    parser.add_argument("--arch", default="sm_90", help="for which GPUs, e.g. sm_80 or sm_100")
    parser.add_argument("name", nargs="?", default="", help="only kernels whose names contain it")


def run(args):
    ptxas = find_ptxas()
    if not ptxas:
        print(
            "kernels: no ptxas found, which says what registers a kernel takes; it comes with the"
            " CUDA toolkit, with torch for CUDA, or by pip install nvidia-cuda-nvcc"
        )
        return 77
    found = []
    for module, is_for in MODULES.items():
        if not is_for(int(re.sub(r"\D", "", args.arch) or 0)):
            continue
        try:
            found += assemble(ptxas, text_of(module), args.arch)
        except subprocess.CalledProcessError as error:
            print(f"kernels: {ptxas} refused module {module} for {args.arch}: {error.stderr}")
            if module != "mc_f8" or not is_too_old(error.stderr):
                return 1
            print("kernels: an assembler of CUDA 12.9 or later takes it; going on without")
    found = [kernel for kernel in found if args.name in kernel.name]
    print(f"# {ptxas}, {args.arch}\n#{'kernel':>45} registers stack spilled   code")
    for kernel in found:
        print(
            f" {kernel.name:>45} {kernel.registers:>9} {kernel.stack:>5} {kernel.spilled:>7}"
            f" {kernel.code:>6}"
        )
    if found:
        most = max(kernel.registers for kernel in found)
        spilled = sum(1 for kernel in found if kernel.spilled)
        print(f"# {len(found)} kernels, at most {most} registers, {spilled} with spills")
    return 0 if found else 1


def find_ptxas():
    pip = pathlib.Path(sysconfig.get_path("purelib"))
    packaged = [*pip.glob("nvidia/*/bin/ptxas"), pip / "triton/backends/nvidia/bin/ptxas"]
    packaged = [str(path) for path in packaged if os.access(path, os.X_OK)]
    named = os.environ.get("PTXAS")
    return shutil.which(named or "ptxas") or next(iter(sorted(packaged)), None)


def is_too_old(said):
    """Whether an assembler refuses a text for the version of PTX that it names."""
    return "Unsupported .version" in said


def text_of(module):
    """The PTX in the library that this package runs."""
    library = ctypes.CDLL(str(pathlib.Path(__file__).with_name("libsmfar.so")))
    library.smfar_kernel_text.restype = ctypes.c_char_p
    return library.smfar_kernel_text(module.encode())


def assemble(ptxas, text, arch):
    """A list of Kernel, in the order of the text."""
    with tempfile.TemporaryDirectory(prefix="smfar-kernels-") as folder:
        source, cubin = pathlib.Path(folder, "module.ptx"), pathlib.Path(folder, "module.cubin")
        source.write_bytes(text)
        command = [ptxas, "-v", "-O3", f"-arch={arch}", "-o", str(cubin), str(source)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        sizes = code_sizes(cubin.read_bytes())
    found = read_report(said)
    for kernel in found:
        kernel.code = sizes[kernel.name]
    return found


def read_report(said):
    """What `ptxas -v` says of each kernel."""
    found = []
    for line in said.splitlines():
        if match := ENTRY.search(line):
            found.append(Kernel(match[1]))
        elif match := STACK.search(line):
            stack, stores, loads = map(int, match.groups())
            found[-1].stack, found[-1].spilled = stack, stores + loads
        elif match := REGISTERS.search(line):
            found[-1].registers = int(match[1])
    return found


def code_sizes(cubin):
    """Bytes of code by kernel, from the sections of an ELF file (little-endian, 64 bits)."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [
        struct.unpack_from("<II5Q", cubin, table + index * entry_size) for index in range(count)
    ]
    names_at = headers[names_index][4]
    sizes = {}
    for name_at, _, _, _, _, size, _ in headers:
        begin = names_at + name_at
        name = cubin[begin : cubin.index(b"\0", begin)].decode()
        if name.startswith(".text."):
            sizes[name.removeprefix(".text.")] = size
    return sizes
