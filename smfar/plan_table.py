"""The files that hold plan tables: where, and how one section takes another's place.

docs/plan.md has the form. What a table says is checked by the core, which reads it
(csrc/comm/plan_table_read.c), and so is where programs look for one.
"""

import os
import pathlib
from dataclasses import dataclass

from smfar import _C

HEAD = "smfar plan table 1"


@dataclass(frozen=True)
class Row:
    """What all-reduces of `begin` to `end` bytes take (both included; None: no end)."""

    begin: int
    end: int | None
    algorithm: str
    blocks: int = 0  # of this and the next two, 0: as the plan has it
    threads: int = 0
    chunk: int = 0

    def line(self):
        end = "end" if self.end is None else self.end
        line = f"all_reduce from={self.begin} to={end} algorithm={self.algorithm}"
        for name in ("blocks", "threads", "chunk"):
            line += f" {name}={getattr(self, name)}" if getattr(self, name) else ""
        return line


def place():
    """Where programs look for a table: SMFAR_PLAN_TABLE, or else, also where that says "0", the
    user's configuration; "" where the environment has none.

    Raises:
        ValueError: a path of more than 4095 characters.
    """
    return _C.plan_table_place()


def replace_section(text, topology, rows):
    """`text` with `rows` as all that its section for `topology` says of all-reduces. That section
    comes last; the rest is as it was.

    Args:
        text: of a table, as `read` returns it; "" makes a new one.
        topology: "ranks=2 ranks_per_gpu=1 …", as smfar.describe says.
    """
    lines = lines_of(text) or [HEAD]
    others, section, inside = [], [], False
    for line in lines:
        word, *rest = line.split(None, 1) or [""]
        if word == "topology":
            inside = fields(*rest) == fields(topology)
        if not inside:
            others.append(line)
        elif word not in ("topology", "all_reduce"):
            section.append(line)
    section += [row.line() for row in rows]
    return "\n".join([*others, f"topology {topology}", *section, ""])


def fields(topology=""):
    """Its fields in any order; the device's name comes last and takes the rest."""
    begin, _, device = topology.partition("device=")
    return sorted(begin.split()), device


def read(path):
    """The text of a table; "" where there is no file.

    Raises:
        smfar.ArgumentError: it is no table, or a row of it is wrong, for whatever topology.
    """
    if not os.path.exists(path):
        return ""
    _C.check_plan_table(str(path))
    return text_of(path)


def text_of(path):
    """Also where comments hold what is no UTF-8: the core takes any bytes."""
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return file.read()


def lines_of(text):
    """As the core counts them: other characters than "\\n" end no line."""
    return [line.partition("\r")[0] for line in text.removesuffix("\n").split("\n") if text]


def row_at(path, number):
    """The Row that line `number` of a table says, which the core has read and found right."""
    lines = lines_of(text_of(path))
    said = dict(field.split("=") for field in lines[number - 1].split()[1:])
    end = None if said["to"] == "end" else int(said["to"])
    shape = {name: int(said.get(name, 0)) for name in ("blocks", "threads", "chunk")}
    return Row(int(said["from"]), end, said["algorithm"], **shape)


def write(path, text):
    """All of it or nothing: programs may read it meanwhile."""
    place = pathlib.Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f"{place.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8", errors="surrogateescape")
    os.replace(draft, place)
