"""Some of PyTorch's own tests of process groups; `make conformance` runs them all, gloo's too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import DEADLINE

CONFORMANCE = Path(__file__).resolve().parents[1] / "conformance"
sys.path.append(str(CONFORMANCE))

from runner import Runner  # noqa: E402

NAMES = [
    "test_all_gather",
    "test_all_gather_coalesced_simple",
    "test_all_gather_object_default_pg",
    "test_all_reduce_coalesced_full_group_sum",
    "test_all_reduce_product",
    "test_all_to_all",
    "test_all_to_all_single_equal_split",
    "test_all_to_all_single_unequal_split",
    "test_all_to_all_single_unequal_split_complex",
    "test_barrier",
    "test_broadcast",
    "test_DistributedDataParallelCPU",
    "test_gather",
    "test_gather_object",
    "test_irecv",
    "test_isend",
    "test_reduce_max",
    "test_reduce_sum",
    "test_scatter",
    "test_scatter_object_list",
    "test_send_recv",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
]


@pytest.fixture(scope="module")
def runner():
    made = Runner("smfar", 4)
    yield made
    made.ranks.stop()


@pytest.mark.parametrize("name", NAMES)
def test_of_pytorch(runner, name):
    outcome, why = runner.run(name)
    if outcome == "skipped":
        pytest.skip(why)
    assert outcome == "passed", why


# a Python that finds no expecttest: machines with GPUs may have torch alone
WITHOUT_EXPECTTEST = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "expecttest" else find(name, *rest)
"""


def test_tests_at_once_go_on_where_they_stopped(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EXPECTTEST)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    file = tmp_path / "outcomes.json"
    command = [sys.executable, CONFORMANCE / "run.py", "--jobs", "2", "--ranks", "2"]
    command += ["--only", "test_get_backend", "--json", file, "--out", tmp_path / "page.md"]

    def run(*more):
        return subprocess.run(
            [*command, *more], capture_output=True, text=True, timeout=2 * DEADLINE
        )

    short = run("--seconds", "1")
    assert short.returncode == 1
    assert "2 are left" in short.stdout
    whole = run()
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert "smfar passes 1 of 1, 0 faults" in whole.stdout
    results = json.loads(file.read_text())["results"]
    assert [results[b]["test_get_backend"][0] for b in ("gloo", "smfar")] == ["passed"] * 2
    assert "| `test_get_backend` | passed | passed |  |" in (tmp_path / "page.md").read_text()
    other = run("--ranks", "3")
    assert other.returncode == 2
    assert "remove it" in other.stderr


def test_on_gpus_every_rank_needs_one():
    command = [sys.executable, CONFORMANCE / "run.py", "--device", "cuda", "--ranks", "99"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert ran.returncode == 77
    assert "99 ranks need a GPU each" in ran.stdout
