"""Driver calls that fail in one process of a group: every process comes to the same verdict."""

import pytest
import torch
import torch.distributed as dist
from harness import TIMEOUT, Ranks, set_deadline

COUNT = 3
SHORT = 12  # seconds, where a call blocks: half of it must have room for a set-up


def sum_of_ones(timeout):
    set_deadline(timeout)
    tensor = torch.ones(1000)
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        return str(error)
    return tensor.eq(dist.get_world_size()).all().item()


def run_with(rank, faults, timeout=TIMEOUT):
    ranks = Ranks(COUNT, env_of={rank: {"SMFAR_SOFT_FAULTS": faults}})
    try:
        return ranks.run(sum_of_ones, timeout)
    finally:
        ranks.stop()


@pytest.mark.parametrize(
    "rank, faults",
    [
        (1, "cuMulticastBindMem:1:802x2"),
        (2, "cuMulticastAddDevice:1:999+"),
    ],
)
def test_sums_in_spite_of_the_fault(rank, faults):
    assert run_with(rank, faults) == [True] * COUNT


@pytest.mark.parametrize(
    "rank, faults, timeout",
    [
        (1, "cuMemCreate:1:2+", TIMEOUT),
        (0, "cuModuleLoadDataEx:1:999+", TIMEOUT),
        (1, "cuMemSetAccess:1:block", SHORT),
    ],
)
def test_one_error_on_every_rank(rank, faults, timeout):
    call, _, what = faults.split(":")
    for text in run_with(rank, faults, timeout):
        assert f"rank {rank}" in text and call in text, text
        assert "block" in what or f"({what.strip('+')})" in text, text
