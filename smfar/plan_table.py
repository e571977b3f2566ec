"""The files that hold plan tables: where, and how one section takes another's place.

docs/plan.md has the form. What a table says is checked by the core, which reads it
(csrc/comm/plan_table_read.c).
"""

import os
import pathlib
from dataclasses import dataclass

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
    user's configuration. csrc/comm/plan_table.c has the same."""
    named = os.environ.get("SMFAR_PLAN_TABLE", "")
    if named and named.lower() not in ("0", "false", "off"):
        return named
    config = os.environ.get("XDG_CONFIG_HOME", "")
    folder = config if config.startswith("/") else os.path.expanduser("~/.config")
    return os.path.join(folder, "smfar", "plan_table")


def replace_section(text, topology, rows):
    """`text` with `rows` as all that its section for `topology` says of all-reduces. That section
    comes last; the rest is as it was.

    Args:
        text: of a table; "" makes a new one.
        topology: "ranks=2 ranks_per_gpu=1 …", as smfar.describe says.

    Raises:
        ValueError: the text is no table of this version.
    """
    lines = text.splitlines() or [HEAD]
    if lines[0] != HEAD:
        raise ValueError(f'it begins with "{lines[0][:40]}", not with "{HEAD}"')
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
    """The text; "" where there is no file."""
    try:
        return pathlib.Path(path).read_text()
    except FileNotFoundError:
        return ""


def row_at(path, number):
    """The Row that line `number` of a table says, which the core has read and found right."""
    said = dict(field.split("=") for field in read(path).splitlines()[number - 1].split()[1:])
    end = None if said["to"] == "end" else int(said["to"])
    shape = {name: int(said.get(name, 0)) for name in ("blocks", "threads", "chunk")}
    return Row(int(said["from"]), end, said["algorithm"], **shape)


def write(path, text):
    """All of it or nothing: programs may read it meanwhile."""
    place = pathlib.Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f"{place.name}.{os.getpid()}")
    draft.write_text(text)
    os.replace(draft, place)
