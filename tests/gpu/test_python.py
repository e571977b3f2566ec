"""Tests of tests/python again, on CUDA tensors: values, layouts, messages, the operator."""

import on_gpu
import pytest
import torch
from test_collectives import device

SIZES = [0, 1, 3, 17, 4097]
DTYPES = [torch.float32, torch.int64, torch.bfloat16]
ODD = [torch.bool, torch.complex64, torch.float8_e4m3fn]

CASES = [
    *[("test_values", "reduce_sizes", (dtype, SIZES, True)) for dtype in DTYPES],
    *[("test_values", "broadcast_sizes", (dtype, SIZES)) for dtype in ODD],
    *[("test_values", "gather_sizes", (dtype, SIZES)) for dtype in ODD],
    ("test_values", "reduce_complex", ()),
    ("test_values", "reduce_in_chunks", (1_500_001,)),
    ("test_values", "coalesced", ()),
    ("test_values", "functional", ()),
    *[("test_surface", "moves", (count, torch.float32)) for count in (0, 7, 70_001)],
    *[("test_surface", "moves", (1000, dtype)) for dtype in ODD],
    *[("test_surface", "unequal", (dtype,)) for dtype in DTYPES],
    *[("test_surface", "inputs_among_outputs", (70_001, place)) for place in (0, 1)],
    *[("test_surface", "reductions", (count, torch.float32)) for count in (0, 7, 70_001)],
    *[("test_messages", "ring", (count,)) for count in (0, 1, 1_000_003)],
    ("test_messages", "batch", ()),
    ("test_messages", "pipeline", ()),
    ("test_ops", "reduce_both_ways", ()),
]


def name_of(case):
    _, function, arguments = case
    return "-".join(map(str, (function, *arguments)))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_on_cuda(ranks, case):
    assert all(ranks.run(on_gpu.call, device, *case))
