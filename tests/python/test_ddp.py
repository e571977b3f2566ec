"""DistributedDataParallel over smfar, against gloo."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import smfar


def network():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )


def train(group, steps, hook=None):
    model = DistributedDataParallel(
        network(), process_group=group, gradient_as_bucket_view=True, bucket_cap_mb=0.002
    )
    if hook:
        model.register_comm_hook(group, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.Generator().manual_seed(dist.get_rank())
    first = None
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 1, 8, 8, generator=inputs)).square().mean().backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        first = gradients.clone() if first is None else first
        optimizer.step()
    return first, torch.cat([p.detach().flatten() for p in model.parameters()])


def half_hook(group, bucket):
    """Averages in bfloat16, by a future's callback: as torch's hook, which wants NCCL."""
    half = bucket.buffer().bfloat16()
    future = dist.all_reduce(half, dist.ReduceOp.AVG, group=group, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def compare(compress):
    hook = half_hook if compress else None
    gloo = dist.new_group(backend="gloo")
    ours, parameters = train(dist.group.WORLD, 4, hook)
    theirs, _ = train(gloo, 4)
    tolerance = 1e-2 if compress else 1e-6
    assert (ours - theirs).norm() <= tolerance * theirs.norm()
    return parameters


@pytest.mark.parametrize("compress", [False, True])
def test_gradients_agree_with_gloo(ranks, compress):
    first, *others = ranks.run(compare, compress)
    assert all(torch.equal(first, other) for other in others)


def buckets_in_window():
    train(dist.group.WORLD, 3)
    (path,) = [p for p in smfar.report() if p.collective == "all_reduce"]
    assert path.calls >= 3
    assert path.staged_bytes == 0


def test_buckets_in_the_window_need_no_staging(fresh_ranks):
    fresh_ranks(2, env={"DDP_DISABLE_COMM_MEM": "0"}).run(buckets_in_window)


def detailed():
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 5
    assert smfar.describe()
    train(dist.group.WORLD, 1)


def test_torch_debugging_wrapper(fresh_ranks):
    fresh_ranks(2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}).run(detailed)
