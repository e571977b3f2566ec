"""Every other collective of torch.distributed, side by side with gloo on the same inputs: layouts,
dtypes, sizes, places."""

import collections

import pytest
import torch
import torch.distributed as dist
from data import anything, home, numbers, poison, same_bits

import smfar

DTYPES = [torch.float32, torch.int64, torch.bfloat16]
ODD = [torch.bool, torch.uint8, torch.complex64, torch.float8_e4m3fn]
SIZES = [0, 1, 7, 1000, 70_001]


def size():
    return dist.get_world_size()


def rank():
    return dist.get_rank()


def filled(count, dtype, iteration=0):
    return anything(rank(), iteration, count, dtype)


def all_inputs(count, dtype, iteration=0):
    return [anything(r, iteration, count, dtype) for r in range(size())]


# ---- moves ----


def moves(count, dtype):
    n, me = size(), rank()
    theirs = all_inputs(n * count, dtype)
    mine = theirs[me].clone()
    part = [one.view(n, count) for one in theirs]

    whole = poison(torch.empty(n * count, dtype=dtype))
    dist.all_to_all_single(whole, mine)
    assert same_bits(whole, torch.cat([one[me] for one in part]))

    for root in range(n):
        outputs = (
            [poison(torch.empty(count, dtype=dtype)) for _ in range(n)] if me == root else None
        )
        dist.gather(part[me][0].clone(), outputs, dst=root)
        for r in range(n if me == root else 0):
            assert same_bits(outputs[r], part[r][0])
        output = poison(torch.empty(count, dtype=dtype))
        dist.scatter(output, list(mine.view(n, count).unbind()) if me == root else None, src=root)
        assert same_bits(output, part[root][me])

    outputs = [poison(torch.empty(count, dtype=dtype)) for _ in range(n)]
    dist.all_to_all(outputs, list(mine.view(n, count).unbind()))
    for r in range(n):
        assert same_bits(outputs[r], part[r][me])
    assert same_bits(mine, theirs[me])


@pytest.mark.parametrize("dtype", DTYPES + ODD, ids=str)
@pytest.mark.parametrize("count", SIZES)
def test_moves(ranks, count, dtype):
    ranks.run(moves, count, dtype)


def unequal(dtype):
    """Rank r sends 3 r + q rows to rank q, and none to itself."""
    n, me = size(), rank()
    rows = [[0 if r == q else 3 * r + q for q in range(n)] for r in range(n)]
    sent = [anything(r, 1, 5 * sum(rows[r]), dtype).view(-1, 5) for r in range(n)]
    gets = [rows[r][me] for r in range(n)]
    output = poison(torch.empty(sum(gets), 5, dtype=dtype))
    work = dist.all_to_all_single(output, sent[me].clone(), gets, rows[me], async_op=True)
    work.wait()
    assert same_bits(output, torch.cat([sent[r].split(rows[r])[me] for r in range(n)]))
    outputs = [poison(torch.empty(rows[r][me], 5, dtype=dtype)) for r in range(n)]
    dist.all_to_all(outputs, list(sent[me].split(rows[me])))
    for r in range(n):
        assert same_bits(outputs[r], sent[r].split(rows[r])[me])


@pytest.mark.parametrize("dtype", DTYPES + ODD, ids=str)
def test_parts_of_unequal_size(ranks, dtype):
    ranks.run(unequal, dtype)


def calls():
    """How often this rank has called what, as smfar.report has it."""
    counts = collections.Counter()
    for path in smfar.report(device=home()):
        counts[path.collective] += path.calls
    return counts


def unequal_whole(dtype):
    """Rank r gives, or gets, 3 r rows of 5: rank 0 none."""
    n, me = size(), rank()
    rows = [3 * r for r in range(n)]
    inputs = [anything(r, 2, 5 * rows[r], dtype).view(-1, 5) for r in range(n)]
    outputs = [poison(torch.empty_like(i)) for i in inputs]
    dist.all_gather(outputs, inputs[me].clone())
    assert all(map(same_bits, outputs, inputs))
    before = calls()
    whole = poison(torch.empty(sum(rows), 5, dtype=dtype))
    work = dist.all_gather(list(whole.split(rows)), inputs[me], async_op=True)
    work.wait()
    assert calls() - before == {"all_gather": 1}
    assert same_bits(whole, torch.cat(inputs))
    if dtype not in (torch.float32, torch.int64, torch.bfloat16):
        return
    theirs = [numbers(r, 3, 5 * sum(rows), dtype).view(-1, 5) for r in range(n)]
    output = poison(torch.empty(rows[me], 5, dtype=dtype))
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
        before = calls()
        dist.reduce_scatter(output, list(theirs[me].split(rows)), op=op)
        assert calls() - before == {"reduce_scatter": 1}
        dist.all_reduce(reduced := theirs[me].clone(), op=op)
        assert same_bits(output, reduced.split(rows)[me])


@pytest.mark.parametrize("dtype", DTYPES + ODD, ids=str)
def test_all_gather_and_reduce_scatter_of_unequal_size(ranks, dtype):
    ranks.run(unequal_whole, dtype)


def inputs_among_outputs(count, place):
    n, me = size(), rank()
    expected = all_inputs(count, torch.float32)

    def same_everywhere():
        return [filled(count, torch.float32).clone() for _ in range(n)]

    outputs = same_everywhere()
    dist.all_gather(outputs, outputs[place])
    for r in range(n):
        assert same_bits(outputs[r], expected[r])
    for root in range(n):
        outputs = same_everywhere()
        dist.gather(outputs[place], outputs if me == root else None, dst=root)
        for r in range(n):
            assert same_bits(outputs[r], expected[r] if me == root else expected[me])


@pytest.mark.parametrize("count", [5, 70_001])
@pytest.mark.parametrize("place", [0, 1])
def test_an_input_may_be_any_of_the_outputs(ranks, count, place):
    ranks.run(inputs_among_outputs, count, place)


def unequal_among_outputs():
    """What a rank gives, or adds to another's, lies where it gets something of the same size."""
    n, me = size(), rank()
    rows = [1000 + (r == n - 1) for r in range(n)]
    other = me if me == n - 1 else (me + 1) % (n - 1)
    inputs = [anything(r, 0, rows[r], torch.float32) for r in range(n)]
    outputs = [inputs[me].clone() if r == other else torch.empty(rows[r]) for r in range(n)]
    dist.all_gather(outputs, outputs[other])
    assert all(map(same_bits, outputs, inputs))
    theirs = [numbers(r, 0, sum(rows), torch.float32) for r in range(n)]
    parts = [part.clone() for part in theirs[me].split(rows)]
    dist.reduce_scatter(parts[other], parts)
    dist.all_reduce(reduced := theirs[me].clone())
    assert same_bits(parts[other], reduced.split(rows)[me])


@pytest.mark.parametrize("ranks", [3, 4], indirect=True)
def test_an_input_of_unequal_size_may_be_any_of_the_outputs(ranks):
    ranks.run(unequal_among_outputs)


# ---- reductions ----


def reductions(count, dtype):
    n, me = size(), rank()
    theirs = [numbers(r, 0, n * count, dtype) for r in range(n)]
    total = sum(one.double() for one in theirs).to(dtype).view(n, count)

    output = poison(torch.empty(count, dtype=dtype))
    dist.reduce_scatter_tensor(output, theirs[me].clone())
    assert torch.equal(output, total[me])
    poison(output)
    dist.reduce_scatter(output, list(theirs[me].view(n, count).unbind()))
    assert torch.equal(output, total[me])
    whole = theirs[me].clone()
    own = whole.view(n, count)[me]
    dist.reduce_scatter_tensor(own, whole)  # in place
    assert torch.equal(own, total[me])
    for root in range(n):
        tensor = theirs[me].clone()
        dist.reduce(tensor, root)
        assert torch.equal(tensor, total.flatten() if me == root else theirs[me])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", SIZES)
def test_reductions(ranks, count, dtype):
    ranks.run(reductions, count, dtype)


def operations():
    """reduce and reduce_scatter give what all_reduce gives, op by op."""
    n, me = size(), rank()
    ops = dist.ReduceOp
    cases = [(torch.float64, ops.MAX), (torch.int16, ops.PRODUCT), (torch.uint8, ops.BXOR)]
    cases += [(torch.bool, ops.MIN), (torch.float16, ops.AVG), (torch.complex128, ops.SUM)]
    cases.append((torch.float32, dist._make_nccl_premul_sum(0.25)))
    for dtype, op in cases:
        mine = numbers(me, 5, n * 33, dtype)
        want = mine.clone()
        dist.all_reduce(want, op=op)
        output = poison(torch.empty(33, dtype=dtype))
        dist.reduce_scatter_tensor(output, mine, op=op)
        assert torch.equal(output, want.view(n, 33)[me])
        whole = mine.clone()
        dist.reduce(whole, n - 1, op=op)
        assert torch.equal(whole, want if me == n - 1 else mine)


def test_operations(ranks):
    ranks.run(operations)


def complex_over_peers(count):
    """Past torch.distributed, which makes pairs of floats of complex numbers."""
    tensor = torch.full((count,), 1 + 2j, dtype=torch.complex64) * (rank() + 1)
    dist.group.WORLD.allreduce([tensor]).wait()
    total = sum(range(1, size() + 1))
    assert torch.equal(tensor, torch.full((count,), 1 + 2j, dtype=torch.complex64) * total)


@pytest.mark.parametrize("count", [1, 16, 100_000])
def test_complex_numbers_over_peers(fresh_ranks, count):
    fresh_ranks(2, env={"SMFAR_MULTICAST": "0"}).run(complex_over_peers, count)


# ---- layouts ----


def strided():
    """Results go where they belong, and nothing else is touched."""
    n, me = size(), rank()
    base = torch.full((6, 8), -1.0)
    column = base[:, 3]
    column.copy_(torch.arange(6.0) + me)
    dist.all_reduce(column)
    assert torch.equal(column, n * torch.arange(6.0) + n * (n - 1) / 2)
    assert (base[:, :3] == -1).all() and (base[:, 4:] == -1).all()

    turned = torch.arange(12.0).view(3, 4).t() if me == 0 else torch.zeros(3, 4).t()
    work = dist.broadcast(turned, 0, async_op=True)
    value = work.get_future().wait()[0]
    assert torch.equal(turned, torch.arange(12.0).view(3, 4).t())
    assert value is turned or torch.equal(value, turned)

    outputs = list(torch.zeros(5, n).unbind(1))
    dist.all_gather(outputs, torch.full((1,), float(me)).expand(5))
    assert [one.tolist() for one in outputs] == [[float(r)] * 5 for r in range(n)]

    peer = (me + 1) % n
    grid = torch.zeros(4, 4)
    request = dist.irecv(grid[:, 1], (me - 1) % n)
    dist.send(torch.arange(8.0)[::2] + me, peer)
    request.wait()
    assert grid[:, 1].tolist() == [float((me - 1) % n + 2 * i) for i in range(4)]
    assert grid.sum() == grid[:, 1].sum()


def test_tensors_of_any_strides(ranks):
    ranks.run(strided)


def strided_in_inference():
    with torch.inference_mode():
        strided()


def test_inference_tensors_of_any_strides(ranks):
    ranks.run(strided_in_inference)


def misaligned():
    n, me = size(), rank()
    raw = torch.zeros(4 * 11 + 1, dtype=torch.uint8)
    tensor = torch.frombuffer(raw.numpy(), dtype=torch.float32, count=11, offset=1)
    tensor.fill_(me)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [n * (n - 1) / 2] * 11
    assert raw[0] == 0


def test_memory_that_is_not_aligned(ranks):
    ranks.run(misaligned)


def larger_than_the_slot():
    n, me = size(), rank()
    count = 300_000
    theirs = [numbers(r, 3, n * count, torch.float32) for r in range(n)]
    output = torch.empty(count)
    dist.reduce_scatter_tensor(output, theirs[me])
    assert torch.equal(output, sum(theirs).view(n, count)[me])
    whole = torch.empty(n * count)
    dist.all_to_all_single(whole, theirs[me])
    assert torch.equal(whole, torch.cat([one.view(n, count)[me] for one in theirs]))
    got = torch.empty(n * count)
    request = dist.irecv(got, (me - 1) % n)
    dist.send(theirs[me], (me + 1) % n)
    request.wait()
    assert torch.equal(got, theirs[(me - 1) % n])


def test_tensors_larger_than_the_staging_slot(fresh_ranks):
    fresh_ranks(3, env={"SMFAR_WINDOW_BYTES": str(2 << 20)}).run(larger_than_the_slot)


def coalesced():
    n, me = size(), rank()
    inputs = [torch.full((3,), float(me)), torch.full((2, 2), 10.0 + me)]
    outputs = [[torch.empty_like(one) for one in inputs] for _ in range(n)]
    dist.all_gather_coalesced(outputs, inputs)
    for r in range(n):
        assert (outputs[r][0] == r).all() and (outputs[r][1] == 10 + r).all()
    wide = [torch.ones(2 * n), torch.ones(5 * n)]
    narrow = [torch.zeros(2), torch.zeros(5)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for i in range(2):
            dist.reduce_scatter_tensor(narrow[i], wide[i])
    manager.wait()
    assert all((one == n).all() for one in narrow)


def test_coalesced(ranks):
    ranks.run(coalesced)


def refused_in_part():
    group = dist.group.WORLD
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.MAX
    for _ in range(3):
        first = torch.full((2000, 3000), float(rank())).t()
        with pytest.raises(NotImplementedError, match="complex"):
            group.allreduce_coalesced([first, torch.zeros(4, dtype=torch.complex64)], options)
        del first
        others = [torch.zeros(2000, 3000) for _ in range(3)]
        dist.barrier()
        assert not any(other.any() for other in others)


def test_a_call_that_is_refused_in_part_keeps_its_tensors(ranks):
    ranks.run(refused_in_part)


# ---- refused, on this rank alone ----


def wrong_calls():
    n = size()
    same = torch.zeros(4)
    base = torch.zeros(4 * n + 2)
    parts = [torch.zeros(2) for _ in range(n)]
    cases = {
        "share memory": lambda: dist.all_gather([same] * n, torch.ones(4)),
        "share part": lambda: dist.all_gather(
            [base[:4], *(torch.zeros(4) for _ in range(n - 1))], base[2:6]
        ),
        "rank's part of the other": lambda: dist.reduce_scatter_tensor(base[1:4], base[: 3 * n]),
        "share part of their memory": lambda: dist.all_gather_into_tensor(base[: 4 * n], base[2:6]),
        "parts of unequal size must be apart": lambda: dist.all_to_all([*parts], [*parts]),
        "what goes to rank": lambda: dist.all_to_all_single(base[:n], base[:n], [1] * n, [1] * n),
        "one place": lambda: dist.all_reduce(torch.ones(1).expand(4)),
        "do not divide": lambda: dist.all_to_all_single(torch.zeros(n + 1), torch.zeros(n + 1)),
        "add up to": lambda: dist.all_to_all_single(
            torch.zeros(n), torch.zeros(n), [1] * n, [2] * n
        ),
        "dtypes": lambda: dist.all_to_all_single(torch.zeros(n), torch.zeros(n).int()),
        "times the 3 elements": lambda: dist.reduce_scatter_tensor(torch.zeros(3), torch.zeros(3)),
        "tensors in the list": lambda: dist.all_gather([torch.zeros(1)] * (n - 1), torch.zeros(1)),
        "got tensors of": lambda: dist.reduce_scatter(
            torch.zeros(2), [torch.zeros(3) for _ in range(n)]
        ),
        f"output number {rank()} must have the 1 elements": lambda: dist.all_gather(
            [torch.zeros(2 + r) for r in range(n)], torch.zeros(1)
        ),
        f"input number {rank()} must have the 1 elements": lambda: dist.reduce_scatter(
            torch.zeros(1), [torch.zeros(2 + r) for r in range(n)]
        ),
    }
    for words, call in cases.items():
        with pytest.raises((ValueError, RuntimeError), match=words):
            call()
    dist.barrier()


def test_wrong_calls_are_refused(ranks):
    ranks.run(wrong_calls)
