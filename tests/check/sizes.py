"""Sizes, the earliest sign that a part with a name is missing: files under 500 lines, functions of
at most 80, their median under 15 and nine in ten under 40.
"""

import ast
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("csrc", "ptx", "smfar", "tests", "examples", "scripts")
SUFFIXES = (".c", ".h", ".cpp", ".def", ".ptx", ".ptxh", ".py")
FILE_LINES, FUNCTION_LINES = 500, 80
ONE_LINE = re.compile(r"^[A-Za-z_][^=;]*\) (?:const )?\{ .*\}$")
NOT_A_FUNCTION = re.compile(r"^(?:typedef|struct|union|enum|namespace|class|extern \"C\")\b[^()]*$")


def c_functions(lines):
    """(head, lines) of each; a function begins at column 0 and ends with a brace there."""
    head, opened = None, False
    for number, line in enumerate(lines):
        if ONE_LINE.match(line):
            yield line, 1
        elif re.match(r"[A-Za-z_]", line) and not line.endswith((";", ":")):
            if head is None or lines[number - 1][-1:] not in ",(":
                head, opened = number, False
            opened = line.endswith("{")
        elif line.endswith("{") and head is not None:
            opened = True
        elif line.startswith("}"):
            if opened and line == "}" and not NOT_A_FUNCTION.match(lines[head]):
                yield lines[head], number - head + 1
            head, opened = None, False


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.end_lineno - node.lineno + 1


def functions(path, text):
    if path.suffix == ".py":
        return list(python_functions(text))
    return list(c_functions(text.splitlines())) if path.suffix in (".c", ".cpp") else []


def main():
    faults, sizes = [], []
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    for path in sorted(path for path in paths if path.suffix in SUFFIXES):
        text, name = path.read_text(), path.relative_to(ROOT)
        if text.count("\n") >= FILE_LINES:
            faults.append(f"{name} has {text.count(chr(10))} lines")
        for function, lines in functions(path, text):
            sizes.append(lines)
            if lines > FUNCTION_LINES:
                faults.append(f"{name}: {function} has {lines} lines")
    median, tenth = statistics.median(sizes), statistics.quantiles(sizes, n=10)[-1]
    if median >= 15 or tenth >= 40:
        faults.append(f"the median function has {median:.0f} lines, one in ten over {tenth:.0f}")
    print("\n".join(faults) or f"{len(sizes)} functions, median {median:.0f}, 90 % <= {tenth:.0f}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
