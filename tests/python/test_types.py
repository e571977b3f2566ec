"""All-reduce of every type under every op, beside gloo in the same run, through the switch and over
peers. What gloo does not serve, or serves without a rule, has its expected values here."""

import functools

import pytest
import torch
import torch.distributed as dist
from data import FLOATS, bits, same_bits
from pairs import BITWISE, OP, PAIRS, folded, part

import smfar

COUNTS = [0, 1, 37, 4099]


@functools.cache
def group_of(backend, multicast):
    if backend == "gloo":
        return dist.new_group(backend="gloo")
    return dist.new_group(backend="smfar", pg_options=smfar.Options(multicast=multicast))


def is_known_to_gloo(dtype, op):
    if dtype == torch.int16:
        return False
    return op != OP.AVG and (dtype, op) != (torch.bool, OP.SUM)


def expected(count, dtype, op):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    want = folded(ranks, count, dtype, op)
    if is_known_to_gloo(dtype, op):
        beside = part(rank, count, dtype)
        dist.all_reduce(beside, op=op, group=group_of("gloo", None))
        assert same_bits(beside, want), f"gloo differs: {dtype} {op} {count}"
    return want


def reduce_pairs(multicast, algorithm):
    rank, group = dist.get_rank(), group_of("smfar", multicast)
    for number, (dtype, op) in enumerate(PAIRS):
        for count in COUNTS:
            tensor = part(rank, count, dtype)
            if number % 2:  # in the window; else staged
                tensor = smfar.empty(count, dtype=dtype, device="cpu", group=group).copy_(tensor)
            with smfar.algorithm(algorithm):
                dist.all_reduce(tensor, op=op, group=group)
            assert same_bits(tensor, expected(count, dtype, op)), (dtype, op, count)


@pytest.mark.parametrize(
    ("multicast", "algorithm"), [(True, None), (True, "twoshot_mc"), (False, None)]
)
def test_every_type_and_op(ranks, multicast, algorithm):
    ranks.run(reduce_pairs, multicast, algorithm)


def is_in_switch(dtype, op):
    if op in BITWISE or dtype == torch.bool:
        return True
    if dtype in (torch.int32, torch.int64):
        return op != OP.PRODUCT
    return dtype in FLOATS and (op == OP.SUM or (op == OP.AVG and dtype != torch.float16))


def explain_pairs():
    dist.barrier()
    for dtype, op in PAIRS:
        said = smfar.explain(200_000, op=op, dtype=dtype, device="cpu")
        path = "twoshot_mc" if is_in_switch(dtype, op) else "_peer"  # which depends on the size
        assert path in said, (dtype, op, said)


def test_explain_knows_the_path_of_every_pair(ranks):
    ranks.run(explain_pairs)


def reduce_nans(multicast):
    """A NaN of any rank, in any place of the order, is there; -0 is below 0."""
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), group_of("smfar", multicast)
    for dtype in FLOATS:
        for op, extreme in ((OP.MIN, 0), (OP.MAX, ranks - 1)):
            tensor = torch.full((ranks + 33,), float(rank)).to(dtype)
            tensor[rank] = float("nan")
            dist.all_reduce(tensor, op=op, group=group)
            assert tensor[:ranks].isnan().all(), (dtype, op, tensor)
            assert (tensor[ranks:] == extreme).all(), (dtype, op, tensor)
            zeros = torch.full((40,), -0.0 if rank == 1 else 0.0).to(dtype)
            dist.all_reduce(zeros, op=op, group=group)
            assert (zeros.signbit() == (op == OP.MIN)).all(), (dtype, op)
        for op in (OP.SUM, OP.PRODUCT):
            tensor = torch.full((40,), float("inf") if rank == 0 else 0.0).to(dtype)
            dist.all_reduce(tensor, op=op, group=group)
            assert (tensor.isinf() if op == OP.SUM else tensor.isnan()).all(), (dtype, op)


@pytest.mark.parametrize("multicast", [True, False])
def test_nans_and_infinities(ranks, multicast):
    ranks.run(reduce_nans, multicast)


def sum_large_halves(multicast):
    """Made in fp32: what overflows on the way, and comes back, is right."""
    rank, group = dist.get_rank(), group_of("smfar", multicast)
    tensor = torch.full((99,), 60000.0 if rank < 2 else -60000.0).half()
    dist.all_reduce(tensor, group=group)
    assert (tensor == 0).all()
    tensor = torch.full((99,), 60000.0).half()
    dist.all_reduce(tensor, op=OP.AVG, group=group)
    assert (tensor == 60000).all()


@pytest.mark.parametrize("multicast", [True, False])
def test_sums_of_halves_are_made_in_fp32(ranks, multicast):
    ranks.run(sum_large_halves, multicast)


def sum_bools(multicast):
    rank, group = dist.get_rank(), group_of("smfar", multicast)
    tensor = torch.ones(21, dtype=torch.bool)
    dist.all_reduce(tensor, group=group)
    assert bits(tensor).tolist() == [1] * 21
    tensor.fill_(rank == 1)
    dist.all_reduce(tensor, group=group)
    assert bits(tensor).tolist() == [1] * 21


@pytest.mark.parametrize("multicast", [True, False])
def test_a_sum_of_bools_says_whether_any_is_true(ranks, multicast):
    ranks.run(sum_bools, multicast)


def scale_and_sum(multicast):
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), group_of("smfar", multicast)
    for dtype in [*FLOATS, torch.complex64, torch.complex128]:
        for factor in (0.5, torch.tensor([0.5]), torch.tensor(0.5, dtype=torch.float64)):
            tensor = torch.full((77,), rank + 1).to(dtype)
            dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor), group=group)
            assert (tensor == 0.5 * ranks * (ranks + 1) / 2).all(), (dtype, factor, tensor)
    third = torch.full((5,), 1.0, dtype=torch.float64)
    dist.all_reduce(third, op=dist._make_nccl_premul_sum(1 / 3), group=group)
    assert (third == ranks * (1 / 3)).all(), "the factor is a double"


@pytest.mark.parametrize("multicast", [True, False])
def test_premul_sum(ranks, multicast):
    ranks.run(scale_and_sum, multicast)


def reduce_complex(multicast):
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), group_of("smfar", multicast)
    for dtype in (torch.complex64, torch.complex128):
        for op in (OP.SUM, OP.AVG):
            tensor = torch.full((33,), complex(rank, -rank)).to(dtype)
            dist.all_reduce(tensor, op=op, group=group)
            total = ranks * (ranks - 1) / 2 / (ranks if op == OP.AVG else 1)
            assert (tensor == complex(total, -total)).all(), (dtype, op)


@pytest.mark.parametrize("multicast", [True, False])
def test_complex_numbers(ranks, multicast):
    ranks.run(reduce_complex, multicast)
