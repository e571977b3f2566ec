"""smfar.ops.all_reduce_rms_norm: results as PyTorch's after an all-reduce and an addition,
gradients, tracing, refusals; smfar.nn.FusedRMSNorm in a layer."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import rms_norm

import smfar

EPS = 1e-6
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def parts(shape, dtype, ranks):
    """Every rank's tensor and a residual: eighths, whose sums are exact in every dtype."""
    seed = torch.Generator().manual_seed(len(shape) * 1000 + shape[-1])
    draw = (torch.randint(-15, 16, shape, generator=seed) / 8 for _ in range(ranks + 1))
    return [part.to(dtype) for part in draw]


def weight_of(hidden, dtype):
    return None if dtype is None else (torch.arange(hidden) % 9 / 4 + 0.25).to(dtype)


def close(got, want, dtype):
    bound = {torch.float32: 4e-6, torch.float64: 1e-12}.get(dtype, 2 * torch.finfo(dtype).eps)
    torch.testing.assert_close(got, want, rtol=bound, atol=1e-7)


def same_everywhere(tensor):
    """To the bit."""
    first = tensor.clone()
    dist.broadcast(first, 0)
    assert torch.equal(first.view(torch.uint8), tensor.view(torch.uint8))


def compare(shape, dtype, weight_dtype, with_residual):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    *inputs, residual = parts(shape, dtype, ranks)
    weight = weight_of(shape[-1], weight_dtype)
    sums = torch.stack(inputs).sum(0, dtype=torch.float64).to(dtype)
    if with_residual:
        sums = sums + residual
    want = rms_norm(sums.double(), shape[-1:], None if weight is None else weight.double(), EPS)
    kept = inputs[rank].clone()
    if with_residual:
        got, new = smfar.ops.all_reduce_rms_norm(inputs[rank], weight, EPS, residual)
        assert torch.equal(new, sums)
    else:
        got = smfar.ops.all_reduce_rms_norm(inputs[rank], weight, EPS)
    assert got.dtype == dtype and got.shape == shape
    assert torch.equal(inputs[rank], kept)
    close(got.double(), want, dtype)
    same_everywhere(got)


def compare_all():
    for dtype in FLOATS:
        for weight_dtype in (None, *FLOATS):
            compare((6, 40), dtype, weight_dtype, False)
            compare((2, 3, 33), dtype, weight_dtype, True)
    for shape in ((0, 8), (1, 4096), (3, 1), (5, 1000), (2, 26_000), (7,)):
        for dtype in FLOATS[:3]:
            compare(shape, dtype, dtype, len(shape) == 1 or shape[0] % 2 == 1)
    strided = torch.ones(8, 6).t()[:, ::2]
    assert (smfar.ops.all_reduce_rms_norm(strided) - 1).abs().max() < 1e-6


def test_results(ranks):
    ranks.run(compare_all)


def compare_extremes():
    """Huge, tiny, infinite and NaN rows become what PyTorch makes of them, and no others."""
    for dtype in FLOATS[:3]:
        top = torch.finfo(dtype).max
        sums = torch.ones(8, 64, dtype=dtype)
        sums[0, 3], sums[1, 5], sums[2, 7] = torch.inf, -torch.inf, torch.nan
        sums[3] = top / 2
        sums[4] = torch.finfo(dtype).tiny * 4
        sums[5] = 0
        mine = sums if dist.get_rank() == 0 else torch.zeros_like(sums)
        got = smfar.ops.all_reduce_rms_norm(mine, None, EPS)
        want = rms_norm(sums, (64,), None, EPS)
        torch.testing.assert_close(
            got, want, rtol=2 * torch.finfo(dtype).eps, atol=1e-7, equal_nan=True
        )


def test_extremes(ranks):
    ranks.run(compare_extremes)


def compare_in_place(device_memory):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows, hidden = 9, 48
    for dtype in FLOATS[:3]:
        *inputs, residual = parts((rows, hidden), dtype, ranks)
        weight = weight_of(hidden, torch.float32)
        sums = torch.stack(inputs).sum(0, dtype=torch.float64).to(dtype) + residual
        want = rms_norm(sums.double(), (hidden,), weight.double(), EPS)
        if device_memory == "window":
            x = smfar.empty(rows, hidden, dtype=dtype, device="cpu").copy_(inputs[rank])
            held = smfar.empty(rows, hidden, dtype=dtype, device="cpu").copy_(residual)
        else:
            x, held = inputs[rank].clone(), residual.clone()
        assert smfar.ops.all_reduce_rms_norm_(x, weight, EPS, held) is x
        close(x.double(), want, dtype)
        assert torch.equal(held, sums)
        own = smfar.ops.own_rows(rows)
        x.copy_(inputs[rank])
        shard = residual[own].clone()
        smfar.ops.all_reduce_rms_norm_(x, weight, EPS, shard, residual_layout="sharded")
        close(x.double(), want, dtype)
        assert torch.equal(shard, sums[own])
    paths = smfar.report(device="cpu")
    assert {p.algorithm for p in paths if "rms_norm" in p.collective} == {"fused_mc"}


@pytest.mark.parametrize("device_memory", ["plain", "window"])
def test_in_place(ranks, device_memory):
    ranks.run(compare_in_place, device_memory)


def unfused(x, weight, residual):
    """What a tensor-parallel layer does: its all-reduce hands the gradient on as it is."""
    total = x.detach().clone()
    dist.all_reduce(total)
    sums = x + (total - x.detach())
    if residual is not None:
        sums = sums + residual
    return rms_norm(sums, x.shape[-1:], weight, EPS), sums


def compare_gradients():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.float64):
        *inputs, residual = parts((5, 24), dtype, ranks)
        weight = weight_of(24, dtype)
        seeds = parts((5, 24), dtype, 1)
        outcomes = []
        for fused in (True, False):
            leaves = [t.clone().requires_grad_() for t in (inputs[rank], weight, residual)]
            if fused:
                out, sums = smfar.ops.all_reduce_rms_norm(leaves[0], leaves[1], EPS, leaves[2])
            else:
                out, sums = unfused(*leaves)
            torch.autograd.backward([out, sums], seeds)
            outcomes.append([out, sums, *(leaf.grad for leaf in leaves)])
        for got, want in zip(*outcomes, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        plain = inputs[rank].clone().requires_grad_()
        smfar.ops.all_reduce_rms_norm(plain, None, EPS).backward(seeds[0])
        other = inputs[rank].clone().requires_grad_()
        unfused(other, None, None)[0].backward(seeds[0])
        torch.testing.assert_close(plain.grad, other.grad, rtol=1e-5, atol=1e-5)
    check_numerically()


def check_numerically():
    """gradcheck of one rank's inputs; the others call as often, with constants of their own."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for chosen in range(ranks):
        *inputs, residual = parts((2, 5), torch.float64, ranks)
        constant = inputs[rank]

        def function(x, weight, residual, mine=rank == chosen, constant=constant):
            x = x if mine else constant + 0 * x
            held = residual if mine else residual.detach()
            return smfar.ops.all_reduce_rms_norm(x, weight, EPS, held)

        leaves = (inputs[rank], weight_of(5, torch.float64), residual)
        leaves = tuple(leaf.clone().requires_grad_() for leaf in leaves)
        good = torch.autograd.gradcheck(
            function, leaves, raise_exception=rank == chosen, check_batched_grad=False
        )
        assert good or rank != chosen


def test_gradients(ranks):
    ranks.run(compare_gradients)


def compile_layer():
    rank = dist.get_rank()
    torch.manual_seed(0)
    norm = smfar.nn.FusedRMSNorm(16)
    linear = torch.nn.Linear(16, 16, bias=False)

    def layer(x, residual):
        out, sums = norm(linear(x), residual)
        return (out * 2).relu(), sums

    def step(function):
        x = torch.full((3, 16), rank + 1.0).cumsum(-1).requires_grad_()
        residual = torch.ones(3, 16)
        out, sums = function(x, residual)
        (out.sum() + sums.sum()).backward()
        grads = [p.grad.clone() for p in (*norm.parameters(), *linear.parameters())]
        norm.zero_grad(), linear.zero_grad()
        return [out, sums, x.grad, *grads]

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for got, want in zip(step(compiled), step(layer), strict=True):
        torch.testing.assert_close(got, want)


def test_compile(ranks):
    ranks.run(compile_layer)


def check_registration():
    operator = torch.ops.smfar.all_reduce_rms_norm.default
    name = dist.group.WORLD.group_name
    x, weight = torch.ones(2, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    torch.library.opcheck(operator, (x, weight, EPS, torch.ones(2, 8), True, name))
    torch.library.opcheck(operator, (x.detach(), None, EPS, None, False, name))
    in_place = torch.ops.smfar.all_reduce_rms_norm_.default
    torch.library.opcheck(in_place, (torch.ones(2, 8), None, EPS, torch.ones(2, 8), False, name))


def test_registration(ranks):
    ranks.run(check_registration)


def refuse():
    x = torch.ones(4, 8)
    cases = (
        (ValueError, "one number per element", x, torch.ones(7)),
        (ValueError, "a weight of", x, torch.ones(8, dtype=torch.int32)),
        (NotImplementedError, "float16, bfloat16, float32", x.int(), None),
        (ValueError, "no rows", torch.tensor(1.0), None),
    )
    for error, words, tensor, weight in cases:
        with pytest.raises(error, match=words):
            smfar.ops.all_reduce_rms_norm(tensor, weight)
    with pytest.raises(ValueError, match="must be alike"):
        smfar.ops.all_reduce_rms_norm(x, residual=torch.ones(3, 8))
    with pytest.raises(ValueError, match="the residual is"):
        smfar.ops.all_reduce_rms_norm(x, residual=torch.ones(4, 8).double())
    with pytest.raises(ValueError, match="no gradients"):
        smfar.ops.all_reduce_rms_norm_(torch.ones(4, 8, requires_grad=True))
    with pytest.raises(ValueError, match="another order"):
        smfar.ops.all_reduce_rms_norm_(torch.ones(8, 4).t())
    with pytest.raises(ValueError, match="own_rows"):
        smfar.ops.all_reduce_rms_norm_(x, residual=torch.ones(2, 8), residual_layout="sharded")
    with pytest.raises(ValueError, match='"sharded" will do'):
        smfar.ops.all_reduce_rms_norm_(x, residual=torch.ones(4, 8), residual_layout="own")
    assert (smfar.ops.all_reduce_rms_norm(x) - 1).abs().max() < 1e-6


def test_refusals(ranks):
    ranks.run(refuse)


def split(whole, halves):
    """Copy engines carry the rows: the bits of one launch, where the sums go to nobody else."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in FLOATS[:3]:
        *inputs, residual = parts((300, 512), dtype, ranks)
        weight = weight_of(512, dtype)
        own = smfar.ops.own_rows(300)
        outcomes = []
        for algorithm in (whole, halves):
            for made in (inputs[rank].clone, smfar.empty):
                x = made() if made is not smfar.empty else made(300, 512, dtype=dtype, device="cpu")
                x.copy_(inputs[rank])
                plain, shard = x.clone(), residual[own].clone()
                with smfar.algorithm(algorithm):
                    smfar.ops.all_reduce_rms_norm_(plain, weight, EPS)
                    smfar.ops.all_reduce_rms_norm_(x, weight, EPS, shard, residual_layout="sharded")
                outcomes.append((plain, x, shard))
                same_everywhere(x)
        for outcome in outcomes[1:]:
            assert all(map(torch.equal, outcome, outcomes[0])), dtype
    paths = smfar.report(device="cpu")
    assert any(p.algorithm == halves for p in paths if "rms_norm" in p.collective)


WAYS = [("twoshot_peer", "split_peer"), ("twoshot_mc", "split_mc")]


@pytest.mark.parametrize("whole, halves", WAYS)
def test_split(ranks, whole, halves):
    ranks.run(split, whole, halves)


def split_shapes(halves):
    """Rows that are no whole vectors, a residual that is none at its begin, weights of any type."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cases = [((7, 33), weight_dtype) for weight_dtype in (None, *FLOATS)]
    cases += [((0, 8), None), ((3, 1), None), ((5, 1001), torch.float32), ((2, 26_001), None)]
    for dtype in FLOATS[:3]:
        for shape, weight_dtype in cases:
            *inputs, residual = parts(shape, dtype, ranks)
            weight, own = weight_of(shape[1], weight_dtype), smfar.ops.own_rows(shape[0])
            exact = None if weight is None else weight.double()
            sums = torch.stack(inputs).sum(0, dtype=torch.float64).to(dtype)
            x, y, shard = inputs[rank].clone(), inputs[rank].clone(), residual[own].clone()
            with smfar.algorithm(halves):
                smfar.ops.all_reduce_rms_norm_(x, weight, EPS)
                smfar.ops.all_reduce_rms_norm_(y, weight, EPS, shard, residual_layout="sharded")
            close(x.double(), rms_norm(sums.double(), shape[1:], exact, EPS), dtype)
            sums = sums + residual
            close(y.double(), rms_norm(sums.double(), shape[1:], exact, EPS), dtype)
            assert torch.equal(shard, sums[own])
            same_everywhere(y)
    paths = smfar.report(device="cpu")
    calls = sum(p.calls for p in paths if p.algorithm == halves and "rms_norm" in p.collective)
    assert calls >= 2 * 3 * len(cases)


@pytest.mark.parametrize("halves", [halves for _, halves in WAYS])
def test_split_shapes(ranks, halves):
    ranks.run(split_shapes, halves)
