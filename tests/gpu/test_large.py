"""Tensors of more than 4 GiB: no count, offset or size on the way may have 32 bits."""

import pytest
import torch
import torch.distributed as dist
from test_collectives import device

import smfar

GIB = 1 << 30
BYTES = 4 * GIB + (1 << 20) + 48
KINDS = (torch.uint8, torch.bfloat16)


def stamp(tensor, number):
    """Marks places all over the tensor, its ends among them, by what depends on `number`."""
    tensor.fill_(number)
    tensor[:: 1 << 20] = number + 2
    tensor[-1] = number + 1
    return tensor


def is_stamped(tensor, number):
    marks = tensor[:: 1 << 20]
    off = (tensor != number).sum().item()
    return (
        off == marks.numel() + 1 and bool((marks == number + 2).all()) and tensor[-1] == number + 1
    )


def large(dtype, where):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = BYTES // torch.empty(0, dtype=dtype).element_size()
    if where == "window":
        smfar.reserve(2 * BYTES, device=device())
        tensor = smfar.empty(count, dtype=dtype, device=device())
    else:
        tensor = torch.empty(count, dtype=dtype, device=device())
    dist.all_reduce(stamp(tensor, rank))
    total = sum(range(ranks))
    marks = tensor[:: 1 << 20]
    assert bool((marks == total + 2 * ranks).all()) and tensor[-1] == total + ranks
    assert (tensor != total).sum().item() == marks.numel() + 1
    stamp(tensor, 7 + rank)
    dist.broadcast(tensor, 1)
    assert is_stamped(tensor, 8)
    part = count // ranks
    whole = tensor[: part * ranks]
    whole.zero_()
    mine = stamp(whole.view(ranks, part)[rank], 20 + 3 * rank)
    dist.all_gather_into_tensor(whole, mine)
    assert all(is_stamped(whole.view(ranks, part)[r], 20 + 3 * r) for r in range(ranks))
    if rank < 2:
        stamp(tensor, 40 + rank)
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
            assert is_stamped(tensor, 40)
    dist.barrier()


@pytest.mark.parametrize("where", ["plain", "window"])
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_more_than_4_gib(ranks, dtype, where):
    ranks.run(large, dtype, where, deadline=180)
