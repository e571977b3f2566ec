"""Reductions of 8-bit floats give, to the bit, what torch makes of the same in rank order; sums of
e4m3 by a switch that has them are as near to it as f16 allows."""

import pytest
import torch
import torch.distributed as dist
from float8 import ACTS, ALL, OP, TYPES, check, check_near, codes, goes_through_switch, wanted

import smfar


def reduce_all_codes(multicast):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(backend="smfar", pg_options=smfar.Options(multicast=multicast))
    for dtype in TYPES:
        inputs = [codes(r, dtype) for r in range(ranks)]
        for op in ACTS:
            want = wanted(inputs, op)
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, op=op, group=group)
            check(tensor, want)
            odd = inputs[rank][1:1000].clone()  # on no boundary of a vector
            dist.all_reduce(odd, op=op, group=group)
            check(odd, want[1:1000])
            share = torch.empty(ALL // ranks, dtype=dtype)
            dist.reduce_scatter_tensor(share, inputs[rank], op=op, group=group)
            check(share, want.chunk(ranks)[rank])
            tensor = inputs[rank].clone()
            dist.reduce(tensor, 0, op=op, group=group)
            check(tensor, want if rank == 0 else inputs[rank])


@pytest.mark.parametrize("multicast", [True, False])
def test_every_pair_of_codes(ranks, multicast):
    ranks.run(reduce_all_codes, multicast)


def scale_and_sum():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in TYPES:
        tensor = torch.full((77,), rank + 1.0).to(dtype)
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
        assert (tensor.float() == 0.25 * ranks * (ranks + 1)).all()


def test_premul_sum(ranks):
    ranks.run(scale_and_sum)


def say_what_is_served():
    dist.barrier()
    assert "_peer" in smfar.explain(1000, dtype=torch.float8_e5m2, device="cpu")
    for op in (OP.PRODUCT, OP.BAND):
        with pytest.raises(NotImplementedError, match="f8_e4m3.*have sum, avg, min, max"):
            dist.all_reduce(torch.ones(4).to(torch.float8_e4m3fn), op=op)


def test_what_is_not_there(ranks):
    ranks.run(say_what_is_served)


BLACKWELL = {"SMFAR_SOFT_CC": "100"}
E4M3, E5M2 = TYPES


def explained(dtype, op=OP.SUM, group=None):
    return smfar.explain(100_000, op=op, dtype=dtype, device="cpu", group=group)


def reduce_through_switch():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    inputs = [codes(r, E4M3) for r in range(ranks)]
    room = smfar.empty(ALL, dtype=E4M3, device="cpu")
    for algorithm in ("twoshot_mc", "split_mc"):
        for tensor in (room, torch.empty_like(room)):
            tensor.copy_(inputs[rank])
            with smfar.algorithm(algorithm):
                dist.all_reduce(tensor)
            check_near(tensor, inputs)
    odd = inputs[rank][1:1000].clone()
    dist.all_reduce(odd)
    check_near(odd, [one[1:1000] for one in inputs])
    share = torch.empty(ALL // ranks, dtype=E4M3)
    dist.reduce_scatter_tensor(share, inputs[rank])
    check_near(share, [one.chunk(ranks)[rank] for one in inputs])
    tensor = inputs[rank].clone()
    dist.reduce(tensor, 1)
    if rank == 1:
        check_near(tensor, inputs)
    taken = {(path.collective, path.algorithm) for path in smfar.report(device="cpu")}
    return {"twoshot_mc", "split_mc", "pull_mc"} <= {algorithm for _, algorithm in taken}


def reduce_the_rest_over_peers():
    """What that switch does not sum, cannot sum safely, or may not in a fixed order: to the bit."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    fixed = dist.new_group(backend="smfar", pg_options=smfar.Options(deterministic=True))
    for dtype in TYPES:
        inputs = [codes(r, dtype) for r in range(ranks)]
        for op in ACTS:
            group = fixed if goes_through_switch(dtype, op) else None
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, op=op, group=group)
            check(tensor, wanted(inputs, op))
            assert "_peer" in explained(dtype, op, group)
    return explained(E4M3), explained(E4M3, OP.AVG), explained(E5M2)


def add_many():
    """How many sums come out otherwise than over peers, where f16 rounds at every step."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(5)
    inputs = [(100 * torch.randn(50_000, generator=generator)).to(E4M3) for _ in range(ranks)]
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor)
    check_near(tensor, inputs)
    return (tensor.view(torch.uint8) != wanted(inputs, OP.SUM).view(torch.uint8)).sum().item()


def test_sums_by_a_switch_that_has_them(fresh_ranks):
    ranks = fresh_ranks(4, env=BLACKWELL)
    assert all(ranks.run(reduce_through_switch))
    assert all(0 < different < 10_000 for different in ranks.run(add_many))
    for e4m3, average, e5m2 in ranks.run(reduce_the_rest_over_peers):
        assert "twoshot_mc" in e4m3 and "the switch has sum of f8_e4m3" in e4m3
        assert "no safe avg of f8_e4m3" in average
        assert "no safe sum of f8_e5m2" in e5m2


def reduce_and_explain():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    inputs = [codes(r, E4M3) for r in range(ranks)]
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor)
    check(tensor, wanted(inputs, OP.SUM))
    return explained(E4M3), smfar.describe(device="cpu")


def test_one_older_gpu_takes_them_over_peers(fresh_ranks):
    ranks = fresh_ranks(3, env=BLACKWELL, env_of={1: {"SMFAR_SOFT_CC": "90"}})
    for explanation, description in ranks.run(reduce_and_explain):
        assert "_peer" in explanation and "multicast on" in description
        for text in (explanation, description):
            assert "off: compute capability 10.0 or 10.3 is needed, and rank 1 has 9.0" in text
