"""python -m smfar tune: a poor choice is found and corrected; what becomes a row, and of a file."""

import argparse
import os
import subprocess
import sys

import pytest
import torch
from harness import DEADLINE
from test_plan_table import taken, write

import smfar  # noqa: F401  registers the backend
from smfar import plan_table, tune
from smfar.plan_table import Row

MANY = 1 << 20  # of float32: 1,024 steps of 4 KiB
OTHERS = [
    "topology ranks=3 ranks_per_gpu=1 multicast=off device=x",
    "reduce from=0 to=9 algorithm=y",
]


def run_tune(*arguments, **variables):
    env = {key: value for key, value in os.environ.items() if key != "SMFAR_PLAN_TABLE"}
    command = [sys.executable, "-m", "smfar", "tune", "--device", "cpu", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=2 * DEADLINE, env=env | variables
    )


def plant(folder):
    """At the user's place: as many steps for this size as can be."""
    place = folder / "smfar" / "plan_table"
    _, _, described = taken("0")
    section = described[described.index("topology ") :].splitlines()[0]
    place.parent.mkdir(exist_ok=True)
    poor = "all_reduce from=0 to=end algorithm=twoshot_peer blocks=1 threads=32 chunk=4096"
    write(place, section, poor)
    return section


def use():
    path, explained, described = taken(None, MANY)
    return path.algorithm, path.blocks, path.threads, explained, described


def test_a_poor_choice_is_corrected_where_programs_find_it(fresh_ranks, tmp_path):
    env = {"SMFAR_PLAN_TABLE": "", "XDG_CONFIG_HOME": str(tmp_path)}
    ranks = fresh_ranks(2, env=env)
    section = ranks.run(plant, tmp_path)[0]
    for algorithm, blocks, threads, explained, described in ranks.run(use):
        assert (algorithm, blocks, threads) == ("twoshot_peer", 1, 32)
        assert "steps of 1024 elements" in explained
        assert f"1 row of {tmp_path}/smfar/plan_table" in described
    size = 4 * MANY
    ran = run_tune(
        *("--ranks", 2, "--min", size, "--max", size, "--blocks", "2,4", "--repeats", 8),
        XDG_CONFIG_HOME=str(tmp_path),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "twoshot_peer 1x32" in ran.stdout and "taken" in ran.stdout, ran.stdout
    assert f"{tmp_path}/smfar/plan_table is written" in ran.stdout
    assert section in (tmp_path / "smfar" / "plan_table").read_text()
    for algorithm, blocks, threads, explained, _ in ranks.run(use):
        assert (algorithm, blocks, threads) != ("twoshot_peer", 1, 32)
        assert "steps of 1024 elements" not in explained


def test_a_table_that_cannot_be_written_is_printed(monkeypatch, capsys):
    found = {"topology": "ranks=2 device=x", "rows": [], "sizes": []}
    monkeypatch.setattr(tune, "launch", lambda *_: found)
    args = argparse.Namespace(device="cpu", ranks=[2], min=2, max=2, out="/proc/no/t", json=None)
    assert tune.run(args) == 1
    said = capsys.readouterr()
    assert "topology ranks=2 device=x\n" in said.out
    assert "/proc/no/t cannot be written" in said.err


def test_a_file_that_is_no_table_is_left_alone(tmp_path):
    path = tmp_path / "notes"
    path.write_text("shopping\n")
    ran = run_tune("--out", path)
    assert ran.returncode == 1
    assert f'{path}:1: "shopping" is not "smfar plan table 1"' in ran.stderr
    assert "mend or remove it, or give --out" in ran.stderr
    assert path.read_text() == "shopping\n"


def test_a_table_with_a_wrong_row_is_refused_before_anything_is_measured(tmp_path):
    path = tmp_path / "table"
    lines = ["smfar plan table 1", *OTHERS]
    path.write_text("\n".join(lines))
    ran = run_tune("--out", path)
    assert ran.returncode == 1
    assert f"{path}:3: algorithm=y: reduce of 3 ranks" in ran.stderr
    assert not ran.stdout
    assert path.read_text() == "\n".join(lines)


def test_what_is_no_file_is_refused_without_being_opened_for_ever(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        ran = run_tune("--out", path)
        assert ran.returncode == 1
        assert f"{path} cannot be read: it is no regular file" in ran.stderr


def test_without_a_home_a_file_must_be_named():
    ran = run_tune(HOME="", XDG_CONFIG_HOME="")
    assert ran.returncode == 2
    assert "give --out FILE" in ran.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: tests/gpu runs it")
def test_without_a_gpu_it_says_so():
    ran = run_tune("--device", "cuda")
    assert ran.returncode == 77
    assert "tune --device cuda: this machine has no GPU" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ranks", "1"), "--ranks: 1 is below 2"),
        (("--blocks", "2,x"), "--blocks: invalid list of whole numbers value: '2,x'"),
        (("--repeats", "3"), "--repeats: 3 is below 4"),
        (("--min", "0"), "--min must be 2 bytes or more"),
        (("--min", "64M"), "--max no less than --min"),
    ],
)
def test_numbers_that_cannot_be_are_refused(arguments, said):
    ran = run_tune(*arguments)
    assert ran.returncode == 2
    assert said in ran.stderr


def side(low, high, row=None):
    return {"us": (low + high) / 2, "low": low, "high": high, "row": row} | (row or {})


def row(algorithm, blocks, **more):
    return {"begin": 1, "end": 2, "algorithm": algorithm, "blocks": blocks} | more


def test_faster_means_by_more_than_the_spread():
    assert tune.is_faster(side(7, 8.9), side(9, 200))
    assert not tune.is_faster(side(7, 9), side(9, 91))
    assert not tune.is_faster(side(7, 9.5), side(9, 20))
    assert not tune.is_faster(side(10, 11), side(8, 9))


def test_rows_of_what_was_found():
    push, twoshot = row("push_peer", 4), row("twoshot_peer", 8)
    kept = row("twoshot_peer", 2, chunk=8192)
    lines = [
        {"size": 1 << 10, "old": side(9, 9), "new": side(5, 5, push), "changed": True},
        {"size": 1 << 12, "old": side(9, 9), "new": side(5, 5, push), "changed": True},
        {"size": 1 << 14, "old": side(9, 9), "changed": False},
        {"size": 1 << 16, "old": side(9, 9), "new": side(8, 8, twoshot), "changed": False},
        {"size": 1 << 18, "old": side(9, 9), "new": side(5, 5, push), "changed": True},
        {"size": 1 << 20, "old": side(9, 9, kept), "new": side(8, 8), "changed": False},
        {"size": 1 << 22, "old": side(9, 9, kept), "new": side(5, 5), "changed": True},
    ]
    assert tune.rows_of(lines, argparse.Namespace(step=4, ranks=2)) == [
        Row(513, 8192, "push_peer", 4),
        Row(131073, 262144, "push_peer", 4),  # the most that it takes
        Row(524289, 2097152, "twoshot_peer", 2, chunk=8192),
    ]


def test_a_section_takes_the_place_of_its_own_alone(tmp_path):
    mine = "ranks=2 ranks_per_gpu=1 multicast=on device=Some GPU"
    rows = [Row(0, 99, "push_peer", 3, threads=64), Row(100, None, "split_peer", chunk=8192)]
    text = plan_table.replace_section("", mine, [Row(0, None, "twoshot_mc", 2)])
    text = plan_table.replace_section(text + "\n".join([*OTHERS, ""]), mine, rows)
    assert text.splitlines() == [
        "smfar plan table 1",
        *OTHERS,
        f"topology {mine}",
        "all_reduce from=0 to=99 algorithm=push_peer blocks=3 threads=64",
        "all_reduce from=100 to=end algorithm=split_peer chunk=8192",
    ]
    plan_table.write(tmp_path / "new" / "table", text)
    assert plan_table.row_at(tmp_path / "new" / "table", 5) == rows[0]
    assert plan_table.row_at(tmp_path / "new" / "table", 6) == rows[1]


def test_a_section_is_known_by_its_fields_and_keeps_what_was_not_measured():
    mine = "ranks=2 ranks_per_gpu=1 multicast=on device=Some GPU"
    pull = "reduce_scatter from=0 to=9 algorithm=pull_peer"
    lines = ["smfar plan table 1", "topology multicast=on  ranks=2 ranks_per_gpu=1 device=Some GPU"]
    lines += ["all_reduce from=0 to=9 algorithm=push_peer", "# by hand", pull, *OTHERS, ""]
    text = plan_table.replace_section("\n".join(lines), mine, [Row(0, 99, "twoshot_peer")])
    assert text.splitlines() == [
        "smfar plan table 1",
        *OTHERS,
        f"topology {mine}",
        "# by hand",
        pull,
        "all_reduce from=0 to=99 algorithm=twoshot_peer",
    ]
    assert plan_table.replace_section(text, mine + "2", []).startswith(text)


def test_comments_may_hold_any_bytes(tmp_path):
    path, mine = tmp_path / "table", "ranks=2 ranks_per_gpu=1 multicast=on device=Some GPU"
    said = b"smfar plan table 1\n# caf\xe9\n# a page\x0c and a line\xe2\x80\xa8 end here\r\n"
    path.write_bytes(said)
    text = plan_table.replace_section(plan_table.read(path), mine, [Row(0, None, "twoshot_mc", 2)])
    plan_table.write(path, text)
    assert path.read_bytes().startswith(said.replace(b"\r", b"") + b"topology")
    assert plan_table.read(path) == text  # which the core has found right
    assert plan_table.row_at(path, 5) == Row(0, None, "twoshot_mc", 2)


def test_where_programs_look(monkeypatch):
    monkeypatch.setenv("SMFAR_PLAN_TABLE", "my/table")
    assert plan_table.place() == "my/table"
    monkeypatch.setenv("SMFAR_PLAN_TABLE", "/x" * 2500)
    with pytest.raises(ValueError, match="path has 5000 characters, and there is room for 4095"):
        plan_table.place()
    monkeypatch.setenv("SMFAR_PLAN_TABLE", "0")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/some/where")
    assert plan_table.place() == "/some/where/smfar/plan_table"
    monkeypatch.delenv("SMFAR_PLAN_TABLE")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert plan_table.place() == "/home/me/.config/smfar/plan_table"
    monkeypatch.delenv("HOME")  # what the password file says is not asked
    assert plan_table.place() == ""
