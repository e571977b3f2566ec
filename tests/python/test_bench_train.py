"""The bench that trains: what it says of gloo and smfar, and that it finds what differs."""

import argparse
import json
import math
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from harness import DEADLINE

from smfar import bench_train


def test_losses_agree_and_fall(tmp_path):
    path = tmp_path / "figures.json"
    command = [sys.executable, "-W", "ignore", "-m", "smfar", "bench", "train", "--device", "cpu"]
    command += ["--params", "small", "--steps", "10", "--budgets", "1", "--json", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = json.loads(path.read_text())["train"]
    paths = ["gloo", "smfar", "smfar window", "smfar window / 1"]
    assert [row["path"] for row in rows if row["strategy"] == "ddp"] == paths
    paths += ["smfar copy engines"]
    assert [row["path"] for row in rows if row["strategy"] == "fsdp"] == paths
    for row in rows:
        assert row["agrees"] and row["step_ms"] > 0
        assert len(row["losses"]) == row["steps"] == bench_train.WARM_STEPS + 10
        assert row["losses"][-1] < row["losses"][0] - 0.05
    staged = [row["staged"] for row in rows if row["strategy"] == "ddp" and "staged" in row]
    assert staged[0] == 2 * rows[0]["parameters"]  # bytes of bf16
    assert staged[1:] == [0, 0]


@pytest.mark.parametrize(
    ("loss", "same"), [(10.0, True), (10.09, True), (9.89, False), (math.nan, False)]
)
def test_losses_that_differ(loss, same):
    assert bench_train.alike(loss, 10.0) == same


def one_rank_goes_astray():
    """What the bench says of replicas before and after."""
    args = argparse.Namespace(device="cpu", params="small")
    trainer = bench_train.Trainer(bench_train.Variant("ddp", "", ours=False), args)
    trainer.run(2)
    before = trainer.replicas_agree()
    if dist.get_rank() == 1:
        with torch.no_grad():
            trainer.model.module.head.weight[3, 4] += 0.01
    return before, trainer.replicas_agree()


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_replicas_that_differ(ranks):
    assert ranks.run(one_rank_goes_astray) == [(True, False)] * 2
