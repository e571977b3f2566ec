"""Multicast: used by default, and never touched when anything switches it off."""

import pytest
import torch
import torch.distributed as dist
from data import expected_sum, numbers, same_bits

import smfar

MULTICAST_CALLS = [
    "cuMulticastCreate",
    "cuMulticastAddDevice",
    "cuMulticastBindMem",
    "cuMulticastBindAddr",
    "cuMulticastUnbind",
    "cuMulticastGetGranularity",
]
SWITCHES = {
    "SMFAR_MULTICAST": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "SMFAR_SOFT_MULTICAST": "0",
}


def reduce_and_tell(group_options=None):
    """All-reduces, and tells what ran: multicast calls, multimem loads, algorithms, description."""
    group = None
    if group_options is not None:
        group = dist.new_group(backend="smfar", pg_options=smfar.Options(**group_options))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    inside = smfar.empty(50_000, device="cpu", group=group)
    for iteration, tensor in enumerate([torch.empty(4097), inside]):
        tensor.copy_(numbers(rank, iteration, tensor.numel(), torch.float32))
        dist.all_reduce(tensor, group=group)
        assert same_bits(tensor, expected_sum(ranks, iteration, tensor.numel(), torch.float32))
    return {
        "calls": sum(smfar.soft_call_count(name) for name in MULTICAST_CALLS),
        "loads": sum(kernel.multimem_loads for kernel in smfar.soft_stats()),
        "algorithms": {p.algorithm for p in smfar.report(group) if p.collective == "all_reduce"},
        "description": smfar.describe(group),
        "explanation": smfar.explain(inside, group=group),
    }


def test_multicast_is_the_default(fresh_ranks):
    for told in fresh_ranks(2).run(reduce_and_tell):
        assert told["calls"] > 0
        assert told["loads"] > 0  # of larger tensors, and of set-up
        assert told["algorithms"] == {"push_mc", "twoshot_mc"}
        assert "twoshot_mc" in told["explanation"]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_variable_switches_it_off(fresh_ranks, name):
    for told in fresh_ranks(2, env={name: SWITCHES[name]}).run(reduce_and_tell):
        assert_off(told)
        if name != "SMFAR_SOFT_MULTICAST":  # that one makes a machine that has none
            assert name in told["description"]


def test_one_rank_switches_it_off_for_all(fresh_ranks):
    ranks = fresh_ranks(3, env_of={1: {"SMFAR_MULTICAST": "0"}})
    for told in ranks.run(reduce_and_tell):
        assert_off(told)


def test_an_option_switches_it_off(fresh_ranks):
    for told in fresh_ranks(2).run(reduce_and_tell, {"multicast": False}):
        assert_off(told)


def assert_off(told):
    assert told["calls"] == 0
    assert told["loads"] == 0
    assert told["algorithms"] <= {"push_peer", "oneshot_peer", "twoshot_peer"}


def unequal_offsets():
    rank = dist.get_rank()
    whole, count = smfar.empty(60_000, device="cpu"), 50_000  # too many to be pushed
    part = whole[8 * rank : 8 * rank + count]
    part.copy_(numbers(rank, 0, count, torch.float32))
    dist.all_reduce(part)
    assert same_bits(part, expected_sum(dist.get_world_size(), 0, count, torch.float32))
    return smfar.explain(part)


def test_unequal_offsets_are_explained(fresh_ranks):
    for text in fresh_ranks(3).run(unequal_offsets):
        assert "offset" in text, text


def budget(blocks):
    options = smfar.Options(sm_budget=blocks)
    group = dist.new_group(backend="smfar", pg_options=options)
    tensor = torch.ones(100_000)
    dist.all_reduce(tensor, group=group)
    (path,) = [p for p in smfar.report(group) if p.collective == "all_reduce"]
    assert path.calls == 1
    assert path.bytes == 400_000
    assert path.staged_bytes == 400_000
    assert path.reason
    return path.blocks


def test_the_budget_bounds_the_blocks(ranks):
    assert all(blocks == 1 for blocks in ranks.run(budget, 1))
    assert all(1 <= blocks <= 3 for blocks in ranks.run(budget, 3))
