"""Turns kernels.def and ptx/*.ptx into a C source that holds the PTX modules as text.

Each row of kernels.def is one run of the C preprocessor over one file of ptx/; the rows of a
module are joined under one header. With --ptxas the modules are also assembled for the GPUs we
know, and the cubins travel beside the text. Nothing here is needed at run time.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
PTX = HERE.parent.parent / "ptx"

# module: the lowest .version that its instructions need, its .target, the GPUs to assemble for
MODULES = {
    "peer": ("7.1", "sm_80", ("sm_80", "sm_90", "sm_100", "sm_103")),
    "mc": ("8.2", "sm_90", ("sm_90", "sm_100", "sm_103")),
    # floats of 8 bits in the switch: of the family of compute capabilities 10.0 and 10.3
    "mc_f8": ("8.8", "sm_100f", ("sm_100f", "sm_103f")),
}
ROW = re.compile(r"^(KERNEL|PLAIN)\(([^)]*)\)", re.M)


def rows():
    """(file, op, type) of every row of kernels.def; op and type are None for PLAIN rows."""
    for kind, text in ROW.findall((HERE / "kernels.def").read_text()):
        names = [name.strip() for name in text.split(",")]
        yield tuple(names) if kind == "KERNEL" else (names[0], None, None)


def module_of(file, _, dtype):
    """The module that a row goes into."""
    if file.endswith("_peer"):
        return "peer"
    return "mc_f8" if dtype and dtype.startswith("f8_") else "mc"


def head(name):
    """The first lines of a module."""
    version, target, _ = MODULES[name]
    return f".version {version}\n.target {target}\n.address_size 64\n"


def preprocess(cc, file, op, dtype, ptx=PTX):
    """The PTX text of one kernel, from the sources in `ptx`."""
    entry = "smfar_" + "_".join(name for name in (file, op, dtype) if name)
    defines = [f"-DENTRY={entry}"]
    if op:
        defines += [f"-DOP_{op}", f"-DTYPE_{dtype}"]
    # -undef: otherwise names such as linux and unix would be replaced
    command = cc.split() + ["-E", "-P", "-undef", "-nostdinc", "-x", "assembler-with-cpp"]
    command += ["-D__ASSEMBLER__", *defines, f"-I{ptx}", f"-I{HERE}"]
    command += ["-include", str(HERE / "kargs.h"), str(ptx / f"{file}.ptx")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"embed.py: cannot preprocess {file}.ptx:\n{done.stderr}")
    return "\n".join(line.strip() for line in done.stdout.splitlines()) + "\n"


def modules(cc):
    """{name: PTX text} of all modules."""
    texts = {}
    for name in MODULES:
        parts = [preprocess(cc, *row) for row in rows() if module_of(*row) == name]
        texts[name] = "\n".join([head(name), *parts])
    return texts


def assemble(ptxas, name, text, gpu, scratch):
    """The cubin of a module for one GPU, or None when this ptxas does not know the GPU."""
    stem = f"{name}_{gpu}"
    source, cubin = scratch / f"{stem}.ptx", scratch / f"{stem}.cubin"
    source.write_text(text)
    command = [ptxas, f"-arch={gpu}", "-O3", "-o", str(cubin), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return cubin.read_bytes()
    if "is not defined for option 'gpu-name'" in done.stderr:
        return None
    sys.exit(f"embed.py: ptxas refused the module for {gpu}:\n{done.stderr}")


def assemble_all(ptxas, texts, scratch):
    """{(module, GPU): cubin} of all that this ptxas knows, several at a time."""
    pairs = [(name, gpu) for name in texts for gpu in MODULES[name][2]]
    jobs = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
    with ThreadPoolExecutor(jobs) as pool:
        made = pool.map(
            lambda pair: assemble(ptxas, pair[0], texts[pair[0]], pair[1], scratch), pairs
        )
        return {pair: cubin for pair, cubin in zip(pairs, made, strict=True) if cubin}


def c_byte(byte):
    """As it stands in a C string: printable, or three octal digits whatever follows."""
    char = chr(byte)
    return char if 32 <= byte < 127 and char not in '"\\?' else f"\\{byte:03o}"


ESCAPED = [c_byte(byte) for byte in range(256)]


def c_array(name, data):
    """A string, which ends in a zero: a list of numbers takes a compiler 20 times as long."""
    lines = [f"static const unsigned char {name}[] ="]
    for start in range(0, len(data), 64):
        lines.append('    "' + "".join(map(ESCAPED.__getitem__, data[start : start + 64])) + '"')
    return "\n".join(lines) + ";"


def source(texts, cubins):
    """The C source: the arrays, a list of struct kernel_image, and each row's module."""
    arrays, list_rows = [], []
    for (name, gpu), data in cubins.items():
        arrays.append(c_array(f"{name}_{gpu}", data))
        list_rows.append(f'    {{"{name}", {gpu[3:].rstrip("f")}, {name}_{gpu}}},')
    for name, text in texts.items():
        arrays.append(c_array(f"{name}_ptx", text.encode()))
        list_rows.append(f'    {{"{name}", 0, {name}_ptx}},')
    return (
        "/* Generated by csrc/kernels/embed.py from kernels.def and ptx/. */\n"
        '#include "kernels/image.h"\n#include "kernels/kernel.h"\n\n'
        + "\n\n".join(arrays)
        + "\n\nconst struct kernel_image kernel_images[] = {\n"
        + "\n".join(list_rows)
        + "\n    {NULL, 0, NULL},\n};\n\n"
        + "const enum kernel_module kernel_modules[KERNELS] = {\n"
        + "".join(f"    MODULE_{module_of(*row).upper()},\n" for row in rows())
        + "};\n"
    )


def write_if_changed(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cc", default="cc", help="the C compiler, used as a preprocessor")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the C source to write")
    parser.add_argument("--ptx-dir", type=pathlib.Path, help="also write smfar_<module>.ptx here")
    parser.add_argument("--ptxas", help="assemble cubins with this ptxas")
    options = parser.parse_args()
    texts = modules(options.cc)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    cubins = assemble_all(options.ptxas, texts, options.out.parent) if options.ptxas else {}
    write_if_changed(options.out, source(texts, cubins))
    if options.ptx_dir:
        for name, text in texts.items():
            write_if_changed(options.ptx_dir / f"smfar_{name}.ptx", text)


if __name__ == "__main__":
    main()
