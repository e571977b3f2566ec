"""Every collective on CUDA tensors over peer memory: values, streams, placement, errors.

Rank r uses GPU r modulo the number of GPUs, so one GPU serves any number of ranks.
"""

import pytest
import torch
import torch.distributed as dist
from data import MOVABLE, SUMMABLE, anything, expected_average, expected_sum, numbers, same_bits
from float8 import ACTS, TYPES, check, check_near, codes, goes_through_switch, wanted
from pairs import OP, PAIRS, folded, part

import smfar

SIZES = [0, 1, 3, 17, 4097, 1_000_003]


def device():
    index = dist.get_rank() % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def reduce_sizes(dtype, average):
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), device()
    op = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
    expected = expected_average if average else expected_sum
    for iteration, count in enumerate(SIZES):
        tensor = numbers(rank, iteration, count, dtype).to(here)
        work = dist.all_reduce(tensor, op=op, async_op=iteration % 2 == 1)
        if work:
            work.wait()
        torch.testing.assert_close(tensor.cpu(), expected(ranks, iteration, count, dtype))


@pytest.mark.parametrize("average", [False, True], ids=["sum", "avg"])
@pytest.mark.parametrize("dtype", SUMMABLE, ids=str)
def test_all_reduce(ranks, dtype, average):
    ranks.run(reduce_sizes, dtype, average)


def reduce_pairs():
    """Also a NaN where the order would lose it, and a factor that lies on the GPU."""
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), device()
    for dtype, op in PAIRS:
        for count in (1, 37, 70_001):
            tensor = part(rank, count, dtype).to(here)
            dist.all_reduce(tensor, op=op)
            assert same_bits(tensor.cpu(), folded(ranks, count, dtype, op)), (dtype, op, count)
        if dtype.is_floating_point and op in (OP.MIN, OP.MAX):
            tensor = torch.zeros(33, dtype=dtype, device=here)
            tensor[rank] = float("nan")
            dist.all_reduce(tensor, op=op)
            assert tensor.isnan().sum() == ranks, (dtype, op)
    tensor = torch.full((99,), rank + 1.0, device=here)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(torch.tensor([0.5], device=here)))
    assert (tensor == 0.25 * ranks * (ranks + 1)).all()


def test_every_type_and_op(ranks):
    ranks.run(reduce_pairs)


def reduce_float8():
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), device()
    for dtype in TYPES:
        inputs = [codes(r, dtype) for r in range(ranks)]
        for op in ACTS:
            tensor = inputs[rank].to(here)
            dist.all_reduce(tensor, op=op)
            if goes_through_switch(dtype, op, device=here):
                check_near(tensor.cpu(), inputs)
            else:
                check(tensor.cpu(), wanted(inputs, op))


def test_every_pair_of_codes_of_8_bit_floats(ranks):
    ranks.run(reduce_float8)


def reduce_in_window(plain_ranks):
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), device()
    for iteration, count in enumerate([1, 4099, 300_001]):
        room = smfar.empty(count + 8, dtype=torch.float32, device=here)
        tensor = torch.empty(count, device=here) if rank in plain_ranks else room[:count]
        tensor.copy_(numbers(rank, iteration, count, torch.float32))
        room[count:] = 7
        dist.all_reduce(tensor)
        want = expected_sum(ranks, iteration, count, torch.float32)
        assert same_bits(tensor.cpu(), want), count
        assert (room[count:] == 7).all()


@pytest.mark.parametrize("plain_ranks", [(), (0,)], ids=["all in the window", "rank 0 plain"])
def test_all_reduce_in_the_window(ranks, plain_ranks):
    ranks.run(reduce_in_window, plain_ranks)


def move(dtype):
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), device()
    for iteration, count in enumerate([0, 1, 17, 65_537]):
        mine = anything(rank, iteration, count, dtype).to(here)
        parts = [torch.zeros_like(mine) for _ in range(ranks)]
        dist.all_gather(parts, mine)
        for source, gathered in enumerate(parts):
            assert same_bits(gathered.cpu(), anything(source, iteration, count, dtype))
        root = iteration % ranks
        dist.broadcast(mine, root)
        assert same_bits(mine.cpu(), anything(root, iteration, count, dtype))


@pytest.mark.parametrize("dtype", MOVABLE, ids=str)
def test_data_moves_bit_for_bit(ranks, dtype):
    ranks.run(move, dtype)


def reduce_behind_a_slow_stream():
    """Sync and async calls on the default and a side stream see what was enqueued before them."""
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), device()
    side = torch.cuda.Stream()
    for iteration in range(20):
        tensor = torch.zeros(100_000, device=here)
        side.wait_stream(torch.cuda.current_stream())
        stream = side if iteration % 2 else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            tensor.fill_(rank + 1)
            work = dist.all_reduce(tensor, async_op=iteration % 3 == 0)
            if work:
                work.wait()
            tensor.add_(1)
        torch.cuda.current_stream().wait_stream(side)
        assert (tensor == ranks * (ranks + 1) / 2 + 1).all(), iteration


def test_streams_keep_their_order(ranks):
    ranks.run(reduce_behind_a_slow_stream)


def differ():
    rank, here = dist.get_rank(), device()
    tensor = torch.ones(1000 + rank, device=here)
    with pytest.raises(RuntimeError, match="rank 0 called .* rank|rank . called .* rank 0 called"):
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        dist.barrier(device_ids=[here.index])
    return True


def test_different_sizes_are_an_error_on_every_rank():
    from harness import Ranks

    ranks = Ranks(2, timeout=20)
    try:
        assert all(ranks.run(differ))
    finally:
        ranks.stop()
