"""Every collective's values: dtypes, sizes, where tensors lie, how many ranks."""

import pytest
import torch
import torch.distributed as dist
from data import (
    MOVABLE,
    SIZES,
    SUMMABLE,
    anything,
    expected_average,
    expected_sum,
    numbers,
    poison,
    same_bits,
)

import smfar

ALL_COUNTS = pytest.mark.parametrize("ranks", [1, 2, 3, 4], indirect=True)


def reduce_sizes(dtype, sizes, average):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    op = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
    for iteration, count in enumerate(sizes):
        tensor = numbers(rank, iteration, count, dtype)
        dist.all_reduce(tensor, op=op)
        if average:
            want = expected_average(ranks, iteration, count, dtype)
            torch.testing.assert_close(tensor, want)
        else:
            assert same_bits(tensor, expected_sum(ranks, iteration, count, dtype)), count


@ALL_COUNTS
@pytest.mark.parametrize("dtype", SUMMABLE, ids=str)
def test_all_reduce_sums_at_every_size(ranks, dtype):
    ranks.run(reduce_sizes, dtype, SIZES, False)


@pytest.mark.parametrize("dtype", SUMMABLE, ids=str)
def test_all_reduce_averages(ranks, dtype):
    ranks.run(reduce_sizes, dtype, [0, 1, 17, 4097], True)


def reduce_complex():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = numbers(rank, 0, 2 * 77, torch.float32).view(77, 2)
    tensor = torch.view_as_complex(parts)
    dist.all_reduce(tensor)
    want = torch.view_as_complex(expected_sum(ranks, 0, 2 * 77, torch.float32).view(77, 2))
    assert torch.equal(tensor, want)


def test_all_reduce_sums_complex_numbers(ranks):
    ranks.run(reduce_complex)


def reduce_fractions():
    """Sums that round: close to the exact sum, and equal to the bit on all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def part(of):
        return torch.randn(50_001, generator=torch.Generator().manual_seed(of))

    tensor = part(rank)
    dist.all_reduce(tensor)
    want = sum(part(of).double() for of in range(ranks))
    torch.testing.assert_close(tensor.double(), want, atol=1e-5, rtol=1e-5)
    return tensor


def test_all_reduce_gives_every_rank_the_same_bits(ranks):
    first, *others = ranks.run(reduce_fractions)
    assert all(same_bits(first, other) for other in others)


def reduce_in_window(count, offset_step, plain_ranks):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for iteration in range(3):
        whole = poison(smfar.empty(count + 64, device="cpu"))
        kept = whole.clone()
        start = rank * offset_step
        part = torch.empty(count) if rank in plain_ranks else whole[start : start + count]
        part.copy_(numbers(rank, iteration, count, torch.float32))
        dist.all_reduce(part)
        assert same_bits(part, expected_sum(ranks, iteration, count, torch.float32))
        if rank not in plain_ranks:
            assert same_bits(whole[:start], kept[:start])
            assert same_bits(whole[start + count :], kept[start + count :])


@pytest.mark.parametrize("count", [1, 1000, 200_001])
@pytest.mark.parametrize("offset_step", [0, 1, 8])
@pytest.mark.parametrize("plain_ranks", [(), (0,), (1, 2)])
def test_all_reduce_wherever_tensors_lie(ranks, count, offset_step, plain_ranks):
    ranks.run(reduce_in_window, count, offset_step, plain_ranks)


def reduce_in_chunks(count):
    from datetime import timedelta

    options = smfar.Options(window_bytes=4 << 20, timeout=timedelta(seconds=30))
    group = dist.new_group(backend="smfar", pg_options=options)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensor = numbers(rank, 0, count, torch.float32)
    dist.all_reduce(tensor, group=group)
    assert same_bits(tensor, expected_sum(ranks, 0, count, torch.float32))
    gathered = poison(torch.empty(ranks * count))
    dist.all_gather_into_tensor(gathered, numbers(rank, 1, count, torch.float32), group=group)
    assert torch.equal(
        gathered, torch.cat([numbers(r, 1, count, torch.float32) for r in range(ranks)])
    )
    dist.destroy_process_group(group)


def test_tensors_larger_than_a_chunk(ranks):
    ranks.run(reduce_in_chunks, 1_500_001)


def broadcast_sizes(dtype, sizes):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for root in range(ranks):
        for iteration, count in enumerate(sizes):
            want = anything(root, iteration, count, dtype)
            tensor = want.clone() if rank == root else poison(torch.empty(count, dtype=dtype))
            dist.broadcast(tensor, root)
            assert same_bits(tensor, want), (root, count)


@pytest.mark.parametrize("dtype", MOVABLE, ids=str)
def test_broadcast(ranks, dtype):
    ranks.run(broadcast_sizes, dtype, [0, 1, 3, 17, 4097])


@ALL_COUNTS
def test_broadcast_at_every_size(ranks):
    ranks.run(broadcast_sizes, torch.float32, SIZES)


def gather_sizes(dtype, sizes):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for iteration, count in enumerate(sizes):
        mine = anything(rank, iteration, count, dtype)
        want = [anything(other, iteration, count, dtype) for other in range(ranks)]
        parts = [poison(torch.empty(count, dtype=dtype)) for _ in range(ranks)]
        dist.all_gather(parts, mine)
        assert all(same_bits(part, one) for part, one in zip(parts, want, strict=True)), count
        whole = poison(torch.empty(ranks * count, dtype=dtype))
        dist.all_gather_into_tensor(whole, mine)
        rows = whole.view(ranks, count)
        assert all(same_bits(row, one) for row, one in zip(rows, want, strict=True)), count
        assert same_bits(mine, want[rank])


@pytest.mark.parametrize("dtype", MOVABLE, ids=str)
def test_all_gather(ranks, dtype):
    ranks.run(gather_sizes, dtype, [0, 1, 3, 17, 4097])


@ALL_COUNTS
def test_all_gather_at_every_size(ranks):
    ranks.run(gather_sizes, torch.float32, SIZES)


def coalesced():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensors = [numbers(rank, i, count, torch.float32) for i, count in enumerate([3, 0, 1025])]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for i, tensor in enumerate(tensors):
        assert same_bits(tensor, expected_sum(ranks, i, tensor.numel(), torch.float32))
    inputs = [numbers(rank, 9, 5, torch.int64), numbers(rank, 10, 5, torch.int64)]
    outputs = [poison(torch.empty(ranks * 5, dtype=torch.int64)) for _ in inputs]
    with dist._coalescing_manager():
        for output, one in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, one)
    for iteration, output in zip((9, 10), outputs, strict=True):
        want = torch.cat([numbers(r, iteration, 5, torch.int64) for r in range(ranks)])
        assert torch.equal(output, want)


def test_coalesced_collectives(ranks):
    ranks.run(coalesced)


def functional():
    import torch.distributed._functional_collectives as functional_collectives

    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    tensor = numbers(rank, 0, 33, torch.float32)
    total = functional_collectives.all_reduce(tensor, "sum", group)
    assert torch.equal(total + 0, expected_sum(ranks, 0, 33, torch.float32))
    whole = functional_collectives.all_gather_tensor(tensor, 0, group)
    want = torch.cat([numbers(r, 0, 33, torch.float32) for r in range(ranks)])
    assert torch.equal(whole + 0, want)


def test_functional_collectives(ranks):
    ranks.run(functional)


def objects():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = [None] * ranks
    dist.all_gather_object(found, {"rank": rank, "text": "x" * rank})
    assert found == [{"rank": r, "text": "x" * r} for r in range(ranks)]
    sent = [["from", 1]] if rank == 1 else [None]
    dist.broadcast_object_list(sent, 1)
    assert sent == [["from", 1]]


def test_object_collectives(ranks):
    ranks.run(objects)
