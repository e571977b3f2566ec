"""The bench: columns, figures, exit status."""

import json
import subprocess
import sys

from smfar.bench_ranks import parse_size


def test_sizes():
    assert [parse_size(text) for text in ("1000", "1K", "64m", "1G")] == [
        1000,
        1 << 10,
        64 << 20,
        1 << 30,
    ]


def test_bench_measures_and_writes(tmp_path):
    command = [sys.executable, "-m", "smfar", "bench", "--device", "cpu", "--ranks", "2"]
    command += ["--min", "1K", "--max", "4K", "--json", str(tmp_path / "figures.json")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
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
