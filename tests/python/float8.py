"""8-bit floats in which every code of one rank meets every code of another, and what torch makes of
them in rank order: widened to float32, added, averaged or compared there, and converted back."""

import functools

import torch
import torch.distributed as dist
from data import same_bits

import smfar

OP = dist.ReduceOp
TYPES = [torch.float8_e4m3fn, torch.float8_e5m2]
ALL = 256 * 256


def lower(a, b):
    """-0 is below +0, of which torch.minimum takes any."""
    least = torch.where((a == b) & a.signbit(), a, b)
    return torch.where(a == b, least, torch.minimum(a, b))


def higher(a, b):
    return -lower(-a, -b)


ACTS = {OP.SUM: torch.add, OP.AVG: torch.add, OP.MIN: lower, OP.MAX: higher}


def codes(rank, dtype):
    """Rank 0 goes through all codes while rank 1 holds one; the others have any."""
    i = torch.arange(ALL)
    if rank >= 2:
        i = torch.randint(0, 256, (ALL,), generator=torch.Generator().manual_seed(rank))
    return (i // 256 if rank == 1 else i % 256).to(torch.uint8).view(dtype)


def wanted(inputs, op):
    total = functools.reduce(ACTS[op], [tensor.float() for tensor in inputs])
    if op == OP.AVG:
        total = total * (1 / len(inputs))
    if inputs[0].dtype == torch.float8_e4m3fn:
        total = total.clamp(-448, 448)  # which torch does itself from 2.13 on
    return total.to(inputs[0].dtype)


def goes_through_switch(dtype, op, group=None, device="cpu"):
    return (dtype, op) == (
        torch.float8_e4m3fn,
        OP.SUM,
    ) and "8-bit floats in the switch: on" in smfar.describe(group, device)


def check_near(got, inputs):
    """A sum of e4m3 by the switch: n - 1 additions in f16, in any order, and one rounding."""
    wide = torch.stack([tensor.double() for tensor in inputs])
    total = wide.sum(0)
    added = (len(inputs) - 1) * 2.0**-11 * wide.abs().sum(0)
    bound = (added + 2.0**-4 * (total.abs() + added) + 2.0**-10) * (1 + 2.0**-6)
    nan = total.isnan()
    assert torch.equal(got.float().isnan(), nan)
    assert ((got.double() - total.clamp(-448, 448)).abs() <= bound)[~nan].all()


def check(got, want):
    """One NaN is as good as another."""
    nan = want.float().isnan()
    assert torch.equal(got.float().isnan(), nan)
    assert same_bits(got.view(torch.uint8)[~nan], want.view(torch.uint8)[~nan])
