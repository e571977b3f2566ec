"""Many calls and many groups: right to the end, and the process holds what it held before.

SMFAR_TEST_CALLS (1000) and SMFAR_TEST_CYCLES (20) say how many; 10000 and 200 take some minutes.
"""

import os

import pytest
import torch
import torch.distributed as dist
from data import SUMMABLE, expected_sum, numbers, same_bits
from harness import Ranks
from holdings import Holdings
from test_collectives import device

import smfar

CALLS = int(os.environ.get("SMFAR_TEST_CALLS", "1000"))
CYCLES = int(os.environ.get("SMFAR_TEST_CYCLES", "20"))
WARM_UP = 50  # until then caches fill
MOST = 200_000
WINDOW_BYTES = 16 << 20  # two of which are leaked in fewer than CYCLES cycles, if any


def random_calls(count):
    """Sizes, types and placements at random, the same on every rank but for the placement."""
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), device()
    shared = torch.Generator().manual_seed(7)
    own = torch.Generator().manual_seed(100 + rank)
    window = {dtype: smfar.empty(MOST, dtype=dtype, device=here) for dtype in SUMMABLE}
    for iteration in range(count + WARM_UP):
        if iteration == WARM_UP:
            before = Holdings(here)
        size = int(2 ** (torch.rand(1, generator=shared) * 17))
        dtype = SUMMABLE[int(torch.randint(len(SUMMABLE), (1,), generator=shared))]
        inside = bool(torch.randint(2, (1,), generator=own))
        start = int(torch.randint(9, (1,), generator=own))
        room = window[dtype] if inside else torch.empty(MOST, dtype=dtype, device=here)
        tensor = room[start : start + size]
        tensor.copy_(numbers(rank, iteration, size, dtype))
        dist.all_reduce(tensor)
        want = expected_sum(ranks, iteration, size, dtype)
        assert same_bits(tensor.cpu(), want), (iteration, size, dtype, inside, start)
    del room, tensor
    before.expect_as_before()


@pytest.mark.timeout(180 + CALLS / 20)
def test_random_calls(ranks):
    ranks.run(random_calls, CALLS, deadline=120 + CALLS / 20)


def cycles(count):
    here, ranks = device(), dist.get_world_size()
    options = smfar.Options(window_bytes=WINDOW_BYTES)
    for turn in range(count + 2):
        if turn == 2:
            before = Holdings(here)
        group = dist.new_group(backend="smfar", pg_options=options)
        tensor = torch.full((1000,), dist.get_rank() + 1.0, device=here)
        dist.all_reduce(tensor, group=group)
        assert (tensor == ranks * (ranks + 1) / 2).all()
        dist.destroy_process_group(group)
    before.expect_as_before()


@pytest.mark.timeout(180 + 2 * CYCLES)
def test_groups_come_and_go():
    made = Ranks(2, timeout=60)
    try:
        made.run(cycles, CYCLES, deadline=120 + 2 * CYCLES)
    finally:
        made.stop()
