"""The other collectives, messages and the direct operator on CUDA tensors."""

import on_gpu
import pytest
import torch
import torch.distributed as dist
from test_collectives import device

import smfar

COUNT = 50_003


def part(rank, index=0):
    """What rank `rank` has for rank `index`."""
    return (torch.arange(COUNT, dtype=torch.float32) % 251 + 1000 * rank + 7 * index).to(device())


def total(index=0):
    return sum(part(rank, index) for rank in range(dist.get_world_size()))


def collectives():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = [part(rank, index) for index in range(ranks)]
    output = torch.empty_like(mine[0])
    dist.reduce_scatter_tensor(output, torch.cat(mine))
    assert torch.equal(output, total(rank))
    outputs = torch.empty(ranks * COUNT, device=device())
    dist.all_to_all_single(outputs, torch.cat(mine))
    assert torch.equal(outputs, torch.cat([part(other, rank) for other in range(ranks)]))
    dist.reduce(mine[0], dst=1)
    assert torch.equal(mine[0], total() if rank == 1 else part(rank))
    parts = [torch.empty_like(output) for _ in range(ranks)] if rank == 0 else None
    dist.gather(part(rank), parts, dst=0)
    assert rank != 0 or all(torch.equal(parts[r], part(r)) for r in range(ranks))
    sources = [part(0, index) for index in range(ranks)] if rank == 0 else None
    dist.scatter(output, sources, src=0)
    assert torch.equal(output, part(0, rank))
    for dtype in (torch.float32, torch.int8):
        on_gpu.call(device, "test_surface", "unequal_whole", (dtype,))


def test_collectives(ranks):
    ranks.run(collectives)


def pull(count):
    """Also of parts that make no whole vectors, which are copied otherwise."""
    for name, arguments in (
        ("moves", (count, torch.float32)),
        ("inputs_among_outputs", (count, 0)),
        ("inputs_among_outputs", (count, 1)),
    ):
        with smfar.algorithm("pull_peer"):
            on_gpu.call(device, "test_surface", name, arguments)
    sent = part(0) if dist.get_rank() == 0 else torch.zeros(COUNT, device=device())
    with smfar.algorithm("pull_peer"):
        dist.broadcast(sent, 0)
    assert torch.equal(sent, part(0))
    paths = {(path.collective, path.algorithm) for path in smfar.report(device=device())}
    for collective in ("all_gather", "all_to_all", "broadcast", "gather", "scatter"):
        assert (collective, "pull_peer") in paths, collective


@pytest.mark.parametrize("count", [1, 70_000, 70_001, 3_000_003])
def test_a_kernel_that_pulls(ranks, count):
    ranks.run(pull, count)


def ring():
    """Each rank sends to the next, whose tensor is used right behind the receive."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = torch.empty(COUNT, device=device())
    for turn in range(3):
        calls = [
            dist.P2POp(dist.isend, part(rank, turn), (rank + 1) % ranks),
            dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        assert torch.equal(received * 2, part((rank - 1) % ranks, turn) * 2)


def test_messages(ranks):
    ranks.run(ring)


def direct():
    """The operator is in order with what its stream does before and behind it."""
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), device()
    stream = torch.cuda.Stream(here)
    for count in (1, 1000, 70_001, 1_000_003):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
            tensor = torch.full((count,), rank + 1.0, device=here)
            smfar.ops.all_reduce_(tensor)
            smfar.ops.all_reduce_(tensor, "max")
            tensor.mul_(2)
        stream.synchronize()
        assert (tensor == ranks * (ranks + 1)).all(), count


def test_the_direct_operator(ranks):
    ranks.run(direct)
