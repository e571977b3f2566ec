"""The benches on GPUs: small, so that what is looked at is that they run and what they say."""

import json
import subprocess
import sys

import pytest
import torch

gpus = torch.cuda.device_count()


def bench(tmp_path, *arguments, limit=280):
    path = tmp_path / "figures.json"
    command = [sys.executable, "-W", "ignore", "-m", "smfar", "bench", *arguments]
    ran = subprocess.run(
        [*command, "--ranks", "2", "--json", path], capture_output=True, text=True, timeout=limit
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(path.read_text())


def expect_held(rows):
    for row in rows:
        assert row.get("note") or row["sm_us"] >= 0, row
        if row.get("sm_us"):
            assert row["blocks"] > 0 and row["threads"] % 32 == 0, row


def test_times_and_what_is_held(tmp_path):
    options = ("--device", "cuda", "--min", "1K", "--max", "64K", "--step", "64", "--repeats", "3")
    rows = bench(tmp_path, *options)["all_reduce"]
    assert {row["size"] for row in rows} == {1 << 10, 64 << 10}
    assert {"smfar direct", "smfar window", "smfar plain", "torch two-shot"} <= {
        row["path"] for row in rows
    }
    assert all(row["us"] > 0 for row in rows)
    for row in rows:
        if row["path"].startswith(("smfar", "torch")):
            assert row["graph_us"] > 0, row
        if row["path"].startswith("smfar"):
            assert row["wrong"] == 0, row
    expect_held(rows)


def test_moves(tmp_path):
    options = ("moves", "--device", "cuda", "--max", "4M", "--step", "256", "--repeats", "3")
    rows = bench(tmp_path, *options)["moves"]
    assert {row["collective"] for row in rows} == {
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "all_to_all",
    }
    assert {row["size"] for row in rows} == {256, 64 << 10, 4 << 20}
    assert all(row["us"] > 0 and row["wrong"] == 0 for row in rows)
    ours = [row for row in rows if row["path"] in ("smfar window", "smfar plain")]
    assert len(ours) == 24 and all(row["graph_us"] > 0 for row in ours)
    expect_held(rows)


def test_train(tmp_path):
    options = ("train", "--params", "small", "--steps", "10", "--budgets", "1")
    rows = bench(tmp_path, *options)["train"]
    assert all(row["agrees"] and row["step_ms"] > 0 for row in rows)
    staged = {
        row["path"]: row["staged"] for row in rows if row["strategy"] == "ddp" and "staged" in row
    }
    assert staged["smfar window"] == staged["smfar window / 1"] == 0 < staged["smfar"]
    assert {row["path"] for row in rows if row["strategy"] == "fsdp"} >= set(staged)


def test_overlap(tmp_path):
    options = ("overlap", "--bytes", "1M", "--edge", "1024", "--repeats", "2")
    workloads = bench(tmp_path, *options)["overlap"]
    assert len(workloads) == 2
    for workload in workloads:
        assert workload["step_us"] > 0
        expect_held(workload["rows"])


@pytest.mark.parametrize("algorithm", [(), ("--algorithm", "split_peer")])
def test_norm(tmp_path, algorithm):
    options = ("norm", "--tokens", "3,64", "--hidden", "1024", "--repeats", "2")
    figures = bench(tmp_path, *options, *algorithm)
    assert figures["algorithm"] == (algorithm[1] if algorithm else None)
    rows = figures["norm"]
    assert len({(row["tokens"], row["path"]) for row in rows}) == 14
    assert all(row["us"] > 0 and row["wrong"] == 0 for row in rows)
    expect_held(rows)


def test_skew(tmp_path):
    rows = bench(tmp_path, "skew", "--bytes", "1M")["skew"]
    assert {row["late_ms"] for row in rows} == {0, 1, 2, 5}
    expect_held(rows)


@pytest.mark.skipif(gpus < 2, reason="needs two GPUs")
def test_held(tmp_path):
    rows = bench(tmp_path, "held", "--bytes", "4M", "--repeats", "2")["held"]
    assert [row["path"] for row in rows] == [
        "copy to one peer",
        "all-gather",
        "broadcast",
    ]
    assert all(row["ended"] and row["held_GBps"] > 0 for row in rows)


def test_held_says_that_it_needs_two_gpus():
    command = [sys.executable, "-m", "smfar", "bench", "held", "--ranks", str(max(2, gpus + 1))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 77
    assert f"need {max(2, gpus + 1)} GPUs, one each" in ran.stdout
