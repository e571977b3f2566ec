"""torch.ops.smfar: results as torch.distributed's, refusals, tracing."""

import pytest
import torch
import torch.distributed as dist

import smfar

OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


def reduce_both_ways():
    rank = dist.get_rank()
    for name, op in OPS.items():
        for count in (0, 1, 37, 70_001):
            mine = (torch.arange(count) * 7 + rank * 13) % 97
            expected = mine.clone()
            dist.all_reduce(expected, op=op)
            assert smfar.ops.all_reduce_(mine, name) is mine
            assert torch.equal(mine, expected), (name, count)
    window = smfar.empty(50, 3, device="cpu").fill_(rank + 1)
    smfar.ops.all_reduce_(window.t())  # another order of the same memory
    assert (window == sum(range(1, dist.get_world_size() + 1))).all()
    half = dist.new_group([0, 1], backend="smfar")
    if rank < 2:
        assert smfar.ops.all_reduce_(torch.ones(3), group=half).tolist() == [2, 2, 2]


def test_results(ranks):
    ranks.run(reduce_both_ways)


def refuse():
    with pytest.raises(ValueError, match="none of sum, avg"):
        smfar.ops.all_reduce_(torch.ones(3), "mean")
    with pytest.raises(ValueError, match="without gaps"):
        smfar.ops.all_reduce_(torch.ones(8)[::2])
    with pytest.raises(NotImplementedError, match="bitwise"):
        smfar.ops.all_reduce_(torch.ones(3), "band")
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(ValueError, match="gloo, not with smfar"):
        smfar.ops.all_reduce_(torch.ones(3), group=gloo)
    assert smfar.ops.all_reduce_(torch.ones(3)).tolist() == [dist.get_world_size()] * 3


def test_refusals(ranks):
    ranks.run(refuse)


def trace():
    """Under FakeTensor nothing is sent; shapes come out."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert smfar.ops.all_reduce_(torch.empty(4, 5)).shape == (4, 5)
    dist.barrier()


def test_fake_tensors(ranks):
    ranks.run(trace)


def compile_a_sum():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def doubled(x):
        return smfar.ops.all_reduce_(x + x) + 1

    given = torch.full((5,), float(dist.get_rank()))
    ranks = dist.get_world_size()
    assert doubled(given).tolist() == [float(ranks * (ranks - 1) + 1)] * 5
    assert given.tolist() == [float(dist.get_rank())] * 5


def test_compile(ranks):
    ranks.run(compile_a_sum)
