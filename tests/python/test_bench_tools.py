"""The benches' command lines, where there is no GPU, and the pictures."""

import json
import subprocess
import sys

import pytest
import torch
from harness import DEADLINE

SMFAR = [sys.executable, "-m", "smfar"]
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: tests/gpu runs them")


def run(*arguments):
    return subprocess.run([*SMFAR, *arguments], capture_output=True, text=True, timeout=DEADLINE)


@no_gpu
@pytest.mark.parametrize(
    "bench",
    [
        *("overlap", "skew", "held", "train", "norm --algorithm split_peer"),
        *("--device=cuda", "moves --device=cuda"),
    ],
)
def test_without_a_gpu_a_bench_says_so(bench):
    ran = run("bench", *bench.split())
    assert ran.returncode == 77
    assert "this machine has no GPU" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--step", "1"), "--step: 1 is below 2"),
        (("overlap", "--ranks", "1"), "--ranks: 1 is below 2"),
        (("moves", "--collective", "all_gather,scatter"), "'scatter' is none of all_gather, "),
        (("train", "--steps", "1"), "--steps: 1 is below 10"),
        (("held", "--repeats", "many"), "--repeats: invalid whole number value: 'many'"),
        (("norm", "--algorithm", "split"), 'algorithm "split" is none of twoshot_mc, split_mc'),
    ],
)
def test_numbers_that_cannot_be_are_refused(arguments, said):
    ran = run("bench", *arguments)
    assert ran.returncode == 2
    assert said in ran.stderr


def row(path, **figures):
    return {"path": path, **figures}


FIGURES = {
    "ranks": 2,
    "gpus": 2,
    "gpu": "some GPU",
    "bytes": 64 << 20,
    "all_reduce": [
        row(
            path,
            size=1 << power,
            us=10.0 + power,
            spread=2.0,
            sm_us=80.0 * power,
            blocks=24,
            threads=512,
        )
        for path in ("smfar window", "torch two-shot")
        for power in (10, 20)
    ],
    "moves": [
        row(
            "nccl", collective="all_gather", size=4096, us=40.0, spread=1.0, busbw=0.1, host_us=39.0
        )
    ],
    "train": [
        row("smfar", strategy="ddp", step_ms=80.0, spread=1.0, loss=9.0, off=0.001, staged=0.0)
    ],
    "overlap": [
        {
            "workload": "8192x8192x8192",
            "step_us": 1390.0,
            "rows": [
                row("split_peer / 4", slowdown=1.5, sm_us=300.0),
                row("nccl", slowdown=-0.2, note="the profiler recorded no kernel here"),
            ],
        }
    ],
    "skew": [row("nccl", late_ms=ms, sm_us=100.0 + 1000 * ms) for ms in (0, 1)],
    "held": [
        row("copy to one peer", free_GBps=395.0, held_GBps=394.0),
        row("all-gather", free_GBps=380.0, ended=False),
    ],
}


def test_tables_of_every_bench(tmp_path):
    (tmp_path / "figures.json").write_text(json.dumps(FIGURES))
    ran = run("bench", "table", f"{tmp_path}/figures.json")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert "8192x8192x8192: 1390.0 µs a step alone" in lines
    assert "| 1024 | torch two-shot | 20.0 ± 1.0 | – | – | – | – | 24 x 512 | 800.0 | – |" in lines
    assert "| all_gather | 4096 | nccl | 40.0 ± 0.5 | 0.1 | – | – | 39.0 | – | – | – |" in lines
    assert "| ddp | smfar | 80.00 ± 0.50 | – | 9.0000 | +0.1000% | 0 | – | – |" in lines
    assert any(line.startswith("| split_peer / 4 | – | +1.5 % |") for line in lines)
    assert "| nccl | 1 | – | 1100.0 | – |" in lines
    assert "| all-gather | – | 380.0 | – | – |" in lines


def test_files_of_something_else_are_refused(tmp_path):
    (tmp_path / "empty.json").write_text("")
    for path in (tmp_path / "empty.json", tmp_path / "missing.json"):
        ran = run("bench", "table", str(path))
        assert ran.returncode == 1
        assert f"{path} does not hold what a bench's --json writes" in ran.stderr
    (tmp_path / "other.json").write_text('{"ranks": 2}')
    ran = run("bench", "table", f"{tmp_path}/other.json")
    assert ran.returncode == 1
    assert "no figures of a bench" in ran.stderr


def test_a_picture_of_every_bench(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    assert matplotlib.__version__
    (tmp_path / "figures.json").write_text(json.dumps(FIGURES))
    ran = run("bench", "plot", f"{tmp_path}/figures.json", "--out", f"{tmp_path}/picture.svg")
    assert ran.returncode == 0, ran.stderr
    picture = (tmp_path / "picture.svg").read_text()
    for text in (
        "All-reduce, 2 ranks, 2 some GPU",
        "SM-µs",
        "8192x8192x8192",
        "One rank late",
        "All-gather, 2",
    ):
        assert text in picture, text


def test_figures_of_something_else_are_refused(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "other.json").write_text('{"ranks": 2}')
    ran = run("bench", "plot", f"{tmp_path}/other.json", "--out", f"{tmp_path}/picture.svg")
    assert ran.returncode == 1
    assert "no figures of a bench" in ran.stderr
