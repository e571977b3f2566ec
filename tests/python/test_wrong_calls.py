"""A wrong call raises what users know from PyTorch's own backends: where gloo raises something, an
`except` for it also catches smfar's, and where NCCL would raise ValueError, too. The group is as
good as before."""

import pytest
import torch
import torch.distributed as dist

import smfar


def zeros(parts, count=3, dtype=torch.float32):
    return [torch.zeros(count, dtype=dtype) for _ in range(parts)]


def options(made, **values):
    for name, value in values.items():
        setattr(made, name, value)
    return made


def wrong_sizes(group):
    n, me, one = dist.get_world_size(), dist.get_rank(), torch.ones(3)
    return {
        "all_gather, short list": lambda: dist.all_gather(zeros(n - 1), one, group=group),
        "all_gather, long list": lambda: dist.all_gather(zeros(n + 1), one, group=group),
        "all_gather, sizes": lambda: dist.all_gather(zeros(n, 4), one, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(
            torch.zeros(3 * n + 1), one, group=group
        ),
        "reduce_scatter, short list": lambda: dist.reduce_scatter(one, zeros(n - 1), group=group),
        "reduce_scatter, sizes": lambda: dist.reduce_scatter(one, zeros(n, 4), group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(
            one, torch.zeros(3 * n + 1), group=group
        ),
        "all_to_all, short lists": lambda: dist.all_to_all(zeros(n - 1), zeros(n - 1), group=group),
        "all_to_all_single, sums": lambda: dist.all_to_all_single(
            torch.zeros(2 * n), torch.zeros(2 * n), [1] * n, [1] * n, group=group
        ),
        "all_to_all_single, splits": lambda: dist.all_to_all_single(
            torch.zeros(2 * n), torch.zeros(2 * n), [2] * (n - 1), [2] * (n - 1), group=group
        ),
        "gather, short list": lambda: dist.gather(one, zeros(n - 1), dst=me, group=group),
        "gather, sizes": lambda: dist.gather(one, zeros(n, 4), dst=me, group=group),
        "gather, no list": lambda: dist.gather(one, None, dst=me, group=group),
        "gather, list elsewhere": lambda: dist.gather(one, zeros(n), dst=(me + 1) % n, group=group),
        "scatter, short list": lambda: dist.scatter(one, zeros(n - 1), src=me, group=group),
        "scatter, sizes": lambda: dist.scatter(one, zeros(n, 4), src=me, group=group),
    }


def wrong_types(group):
    n, me, one = dist.get_world_size(), dist.get_rank(), torch.ones(3)
    double, ops = torch.float64, dist.ReduceOp
    return {
        "all_gather": lambda: dist.all_gather(zeros(n, 3, double), one, group=group),
        "all_gather, no tensors": lambda: dist.all_gather([1] * n, one, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(
            torch.zeros(3 * n, dtype=double), one, group=group
        ),
        "reduce_scatter": lambda: dist.reduce_scatter(one, zeros(n, 3, double), group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(
            one, torch.zeros(3 * n, dtype=double), group=group
        ),
        "all_to_all": lambda: dist.all_to_all(zeros(n), zeros(n, 3, double), group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(
            torch.zeros(n), torch.zeros(n, dtype=double), group=group
        ),
        "scatter": lambda: dist.scatter(one, zeros(n, 3, double), src=me, group=group),
        "coalesced": lambda: dist.all_reduce_coalesced(
            [one, torch.ones(2, dtype=torch.int64)], group=group
        ),
        "all_reduce of a number": lambda: dist.all_reduce(3.0, group=group),
        "all_reduce, bits of floats": lambda: dist.all_reduce(one, op=ops.BAND, group=group),
        "all_reduce, scaled integers": lambda: dist.all_reduce(
            torch.ones(3, dtype=torch.int32), op=dist._make_nccl_premul_sum(2.0), group=group
        ),
        "all_reduce, order of complex": lambda: dist.all_reduce(
            torch.ones(3, dtype=torch.cfloat), op=ops.MAX, group=group
        ),
        "all_reduce of uint16": lambda: dist.all_reduce(
            torch.ones(3, dtype=torch.uint16), group=group
        ),
        "all_reduce of sparse rows": lambda: dist.all_reduce(
            torch.ones(3, 3).to_sparse_csr(), group=group
        ),
    }


def wrong_ranks(group):
    n, me, one = dist.get_world_size(), dist.get_rank(), torch.ones(3)
    backend = group._get_backend(torch.device("cpu"))
    return {
        "broadcast": lambda: dist.broadcast(one, n, group=group),
        "broadcast, negative": lambda: dist.broadcast(one, -1, group=group),
        "reduce": lambda: dist.reduce(one, n, group=group),
        "send": lambda: dist.send(one, n, group=group),
        "send, negative": lambda: dist.send(one, -1, group=group),
        "send to oneself": lambda: dist.send(one, me, group=group),
        "recv": lambda: dist.recv(one, n, group=group),
        "a negative tag": lambda: dist.isend(one, (me + 1) % n, group=group, tag=-1),
        "new_group": lambda: dist.new_group([0, n], backend=dist.get_backend(group)),
        "the backend's broadcast": lambda: backend.broadcast(
            [one], options(dist.BroadcastOptions(), rootRank=n)
        ),
        "the backend's broadcast, negative": lambda: backend.broadcast(
            [one], options(dist.BroadcastOptions(), rootRank=-1)
        ),
        "the backend's reduce": lambda: backend.reduce(
            [one], options(dist.ReduceOptions(), rootRank=n)
        ),
        "the backend's gather": lambda: backend.gather(
            [], [one], options(dist.GatherOptions(), rootRank=n)
        ),
        "the backend's scatter": lambda: backend.scatter(
            [one], [], options(dist.ScatterOptions(), rootRank=-1)
        ),
        "no tensor": lambda: backend.allreduce([], dist.AllreduceOptions()),
        "two tensors": lambda: backend.send([one, one], 0, 0),
        "another device": lambda: backend.allreduce(
            [torch.empty(3, device="meta")], dist.AllreduceOptions()
        ),
    }


def raised(call):
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def compare(calls):
    gloo = dist.new_group(backend="gloo")
    ours, theirs = calls(dist.group.WORLD), calls(gloo)
    for name, call in ours.items():
        mine, known = raised(call), type(raised(theirs[name]))
        assert isinstance(mine, known), f"{name}: {mine!r}, gloo's is {known.__name__}"
        if str(mine).startswith("smfar:") and not isinstance(mine, NotImplementedError):
            assert isinstance(mine, smfar.ArgumentError) and isinstance(mine, ValueError), name
    dist.destroy_process_group(gloo)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()


@pytest.mark.parametrize("calls", [wrong_sizes, wrong_types, wrong_ranks])
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_wrong_calls(ranks, calls):
    ranks.run(compare, calls)
