"""Every pair of a type and an operation of all-reduce, inputs for it, and what torch's own
operators make of them in rank order."""

import functools
import operator

import torch
import torch.distributed as dist
from data import FLOATS, INTEGERS

OP = dist.ReduceOp
BITWISE = {OP.BAND: operator.and_, OP.BOR: operator.or_, OP.BXOR: operator.xor}
ACTS = {
    OP.SUM: operator.add,
    OP.PRODUCT: operator.mul,
    OP.MIN: torch.minimum,
    OP.MAX: torch.maximum,
    **BITWISE,
}
PAIRS = (
    [(dtype, op) for dtype in INTEGERS for op in [*ACTS, OP.AVG]]
    + [(dtype, op) for dtype in FLOATS for op in (OP.SUM, OP.AVG, OP.PRODUCT, OP.MIN, OP.MAX)]
    + [(torch.bool, op) for op in ACTS]
)


def part(rank, count, dtype):
    """Any integers, which overflow; floats whose sums and products do not round, nor averages over
    2, 4 or 8 ranks."""
    generator = torch.Generator().manual_seed(100 * count + rank)
    size = torch.empty(0, dtype=dtype).element_size()
    if not dtype.is_floating_point:
        high = 2 if dtype == torch.bool else 256
        raw = torch.randint(0, high, (count * size,), generator=generator, dtype=torch.uint8)
        return raw.view(dtype)
    powers = torch.randint(-2, 3, (count,), generator=generator).double().exp2()
    signs = 1 - 2 * torch.randint(0, 2, (count,), generator=generator)
    return (powers * signs).to(dtype)


def folded(ranks, count, dtype, op):
    """In rank order, as torch's own operators do it."""
    parts = [part(rank, count, dtype) for rank in range(ranks)]
    if op != OP.AVG:
        return functools.reduce(ACTS[op], parts)
    total = functools.reduce(operator.add, parts)
    return torch.div(total, ranks, rounding_mode=None if dtype.is_floating_point else "trunc")
