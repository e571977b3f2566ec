"""The fused all-reduce and RMSNorm on GPUs, over peers: every dtype and layout against PyTorch on
one GPU, odd sizes, plain tensors and the window, gradients, a stream of calls."""

import pytest
import torch
import torch.distributed as dist
from python.test_norm import EPS, close, parts, same_everywhere, weight_of
from test_collectives import device
from torch.nn.functional import rms_norm

import smfar

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = ((0, 64), (1, 4096), (3, 1), (5, 7), (17, 1000), (64, 4096), (33, 8192), (2, 40_000))


def setting(shape, dtype, weight_dtype):
    """This rank's part, the residual, the weight, the sums and the result to expect, on its GPU."""
    here = device()
    *inputs, residual = parts(shape, dtype, dist.get_world_size())
    sums = torch.stack(inputs).sum(0, dtype=torch.float64).to(dtype) + residual
    weight = weight_of(shape[-1], weight_dtype)
    want = rms_norm(sums.double(), shape[-1:], weight.double(), EPS)
    return [t.to(here) for t in (inputs[dist.get_rank()], residual, weight, sums, want)]


def compare_functional():
    for dtype in FLOATS:
        for index, shape in enumerate(SHAPES):
            x, residual, weight, sums, want = setting(shape, dtype, FLOATS[index % 3])
            got, new = smfar.ops.all_reduce_rms_norm(x, weight, EPS, residual)
            close(got.double(), want, dtype)
            assert torch.equal(new, sums)
            same_everywhere(got)


def test_functional(ranks):
    ranks.run(compare_functional)


def compare_in_place(where):
    for dtype in FLOATS:
        for shape in SHAPES:
            x, residual, weight, sums, want = setting(shape, dtype, torch.float32)
            mine, shard = x.clone(), residual[smfar.ops.own_rows(shape[0])].clone()
            if where == "window":
                x = smfar.empty(*shape, dtype=dtype, device=x.device).copy_(x)
                residual = smfar.empty(*shape, dtype=dtype, device=x.device).copy_(residual)
            smfar.ops.all_reduce_rms_norm_(x, weight, EPS, residual)
            close(x.double(), want, dtype)
            assert torch.equal(residual, sums)
            x.copy_(mine)
            smfar.ops.all_reduce_rms_norm_(x, weight, EPS, shard, residual_layout="sharded")
            close(x.double(), want, dtype)
            assert torch.equal(shard, sums[smfar.ops.own_rows(shape[0])])


@pytest.mark.parametrize("where", ["plain", "window"])
def test_in_place(ranks, where):
    ranks.run(compare_in_place, where)


def compare_split(where):
    """The bits of one launch, at sizes of several legs and steps, and odd ones."""
    for dtype in FLOATS:
        for shape in ((1, 4096), (5, 7), (17, 1000), (1024, 4096), (2500, 8192), (2, 40_000)):
            *inputs, residual = parts(shape, dtype, dist.get_world_size())
            x, residual = inputs[dist.get_rank()].to(device()), residual.to(device())
            weight = weight_of(shape[-1], torch.float32).to(device())
            if where == "window" and x.nbytes < 100 << 20:
                x = smfar.empty(*shape, dtype=dtype, device=x.device).copy_(x)
            mine, outcomes = x.clone(), []
            for algorithm in ("twoshot_peer", "split_peer"):
                shard = residual[smfar.ops.own_rows(shape[0])].clone()
                with smfar.algorithm(algorithm):
                    smfar.ops.all_reduce_rms_norm_(x.copy_(mine), weight, EPS)
                    first = x.clone()
                    smfar.ops.all_reduce_rms_norm_(
                        x.copy_(mine), weight, EPS, shard, residual_layout="sharded"
                    )
                outcomes.append((first, x.clone(), shard))
            if shape[-1] % 8 == 0:  # whole vectors
                assert all(map(torch.equal, *outcomes)), (dtype, shape)
            for got, want in zip(*outcomes, strict=True):
                close(got.double(), want.double(), dtype)
            same_everywhere(x)
    paths = smfar.report(device="cuda")
    assert any(p.algorithm == "split_peer" for p in paths if "rms_norm" in p.collective)


@pytest.mark.parametrize("where", ["plain", "window"])
def test_split(ranks, where):
    ranks.run(compare_split, where, deadline=180)


def repeat_calls():
    """Many calls in a row, on a stream of their own, results feeding the next, as layers do."""
    x, residual, weight, _, _ = setting((96, 2048), torch.bfloat16, torch.bfloat16)
    window = smfar.empty(96, 2048, dtype=torch.bfloat16, device=x.device)
    outcomes = []
    for fused in (True, False):
        window.copy_(x)
        held = residual.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(50):
                if fused:
                    smfar.ops.all_reduce_rms_norm_(window, weight, EPS, held)
                else:
                    smfar.ops.all_reduce_(window)
                    held.add_(window)
                    window.copy_(rms_norm(held, (2048,), weight, EPS))
        torch.cuda.current_stream().wait_stream(stream)
        outcomes.append((window.float(), held.float()))
    for got, want in zip(*outcomes, strict=True):
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)


def test_many_calls(ranks):
    ranks.run(repeat_calls)


def compare_gradients():
    x, residual, weight, _, _ = setting((12, 256), torch.float32, torch.float32)
    leaves = [t.clone().requires_grad_() for t in (x, weight, residual)]
    out, sums = smfar.ops.all_reduce_rms_norm(leaves[0], leaves[1], EPS, leaves[2])
    (out.square().sum() + sums.sum()).backward()
    total = x.clone()
    dist.all_reduce(total)
    others = [t.clone().requires_grad_() for t in (total, weight, residual)]
    sums = others[0] + others[2]
    (rms_norm(sums, (256,), others[1], EPS).square().sum() + sums.sum()).backward()
    for got, want in zip(leaves, others, strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-4)


def test_gradients(ranks):
    ranks.run(compare_gradients)
