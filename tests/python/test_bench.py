"""The bench: columns, figures, exit status."""

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from harness import DEADLINE

from smfar import bench_collectives
from smfar.bench_ranks import interleaved, parse_size


def test_sizes():
    assert [parse_size(text) for text in ("1000", "1K", "64m", "1G")] == [
        1000,
        1 << 10,
        64 << 20,
        1 << 30,
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 11])
def test_repeats_are_balanced(count):
    """Each contender is as often at each place, and behind each other one, as any."""
    turns = list(interleaved(list(range(count)), 2 * count))
    rounds = [turns[at : at + count] for at in range(0, len(turns), count)]
    assert all(sorted(one) == list(range(count)) for one in rounds)
    assert all(one != other for one, other in pairwise(rounds)) or count == 1
    places = Counter(place for one in rounds for place in enumerate(one))
    behind = Counter(pair for one in rounds for pair in pairwise(one))
    assert set(places.values()) == {2} and len(places) == count * count
    assert set(behind.values()) <= {2} and len(behind) == count * (count - 1)


def test_bench_measures_and_writes(tmp_path):
    command = [sys.executable, "-m", "smfar", "bench", "--device", "cpu", "--ranks", "2"]
    command += ["--min", "1K", "--max", "4K", "--json", str(tmp_path / "figures.json")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.returncode == 0, ran.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    rows = figures["all_reduce"]
    assert {row["path"] for row in rows} == {"smfar window", "smfar plain", "gloo"}
    assert {row["size"] for row in rows} == {1 << 10, 4 << 10}
    for row in rows:
        assert row["wrong"] == 0
        assert row["us"] > 0
        assert row["busbw"] == row["algbw"]  # two ranks
    rates = figures["rates"]
    assert all(rates[name] > 0 for name in ("smfar", "plain C loop", "gloo"))
    assert "#wrong" in ran.stdout


def run(tmp_path, *arguments, ranks=2):
    path = tmp_path / "figures.json"
    command = [sys.executable, "-W", "ignore", "-m", "smfar", "bench", *arguments]
    command += ["--ranks", str(ranks), "--json", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    return ran, json.loads(path.read_text()) if path.exists() else None


@pytest.mark.parametrize("ranks", [2, 3])
def test_moves(tmp_path, ranks):
    ran, figures = run(tmp_path, "moves", "--max", "10K", "--repeats", "2", ranks=ranks)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows, unit = figures["moves"], 2 * ranks
    assert {row["size"] for row in rows} == {s // unit * unit for s in (256, 4096, 10 << 10)}
    for row in rows:
        factor = 1 if row["collective"] == "broadcast" else (ranks - 1) / ranks
        assert row["wrong"] == 0 and row["us"] > 0
        assert row["busbw"] == pytest.approx(factor * row["size"] / row["us"] / 1e3)
    everybody = {"smfar window", "smfar plain", "smfar, no SM", "gloo"}
    for name in bench_collectives.COLLECTIVES:
        paths = {row["path"] for row in rows if row["collective"] == name}
        assert paths == everybody - ({"smfar, no SM"} if name == "reduce_scatter" else set())


def test_moves_of_less_than_an_element_per_rank_are_refused(tmp_path):
    ran, _ = run(tmp_path, "moves", "--min", "4", ranks=3)
    assert ran.returncode == 2
    assert "--min must be 6 bytes or more" in ran.stdout


def count_planted():
    """Wrong elements of every collective: where nothing is moved, and where rank 2 spoils one."""
    field = bench_collectives.Field(24 * 2, torch.device("cpu"), dist.group.WORLD)
    found = []
    for kind in bench_collectives.COLLECTIVES.values():
        collective = kind(24, dist.get_rank(), dist.get_world_size())
        plain = bench_collectives.caller("", collective, field.plain, dist.group.WORLD)
        move, counts = plain.call, []

        def spoil(move=move):
            moved = move()
            moved[1] += dist.get_rank() == 2
            return moved

        for call in (move, spoil, lambda target=plain.target: target):
            plain.call = call
            counts.append(plain.count_wrong(collective, field.pattern[:24]))
        found.append(counts)
    return found


def test_wrong_elements_are_counted(ranks):
    n = ranks.count
    untouched = [n * 24 - 24, 24, n * 24 - 24, n * 24]  # a rank's own part is right
    for found in ranks.run(count_planted):
        assert found == [[0, 1, count] for count in untouched]
