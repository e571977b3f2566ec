"""Reductions of 8-bit floats give, to the bit, what torch makes of the same in rank order."""

import pytest
import torch
import torch.distributed as dist
from float8 import ACTS, ALL, OP, TYPES, check, codes, wanted

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
