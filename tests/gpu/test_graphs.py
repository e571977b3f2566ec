"""Collectives in CUDA graphs (torch.cuda.graph), replayed and mixed with called ones.

Every capture is preceded by one call of each kind, as PyTorch asks for any library: what is made at
the first call cannot be captured.
"""

import pytest
import torch
import torch.distributed as dist
from data import expected_sum, numbers, same_bits

import smfar

REPLAYS = 100


def device():
    index = dist.get_rank() % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def capture(call, group=None):
    """A graph of what `call` enqueues on the current stream."""
    dist.barrier(group=group, device_ids=[torch.cuda.current_device()])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def tensor_of(count, inside, dtype=torch.float32):
    if inside:
        return smfar.empty(count, dtype=dtype, device="cuda")
    return torch.empty(count, dtype=dtype, device="cuda")


def fill(tensor, iteration):
    tensor.copy_(numbers(dist.get_rank(), iteration, tensor.numel(), tensor.dtype))


def check_sum(tensor, iteration):
    want = expected_sum(dist.get_world_size(), iteration, tensor.numel(), tensor.dtype)
    assert same_bits(tensor.cpu(), want), (iteration, tensor.numel(), tensor.dtype)


# ---- one graph ----


def replay_sums(inside, asynchronous):
    device()
    for count in (1, 4099, 1_000_003):
        tensor = tensor_of(count, inside)
        fill(tensor, 0)

        def call(tensor=tensor):
            work = dist.all_reduce(tensor, async_op=asynchronous)
            if work:
                work.wait()

        graph = capture(call)
        for iteration in range(REPLAYS):
            fill(tensor, iteration)
            graph.replay()
            check_sum(tensor, iteration)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("inside", [True, False], ids=["in the window", "plain"])
def test_all_reduce(ranks, inside, asynchronous):
    ranks.run(replay_sums, inside, asynchronous, deadline=240)


def replay_direct():
    """torch.ops.smfar.all_reduce_, several in one graph, with work between them."""
    device()
    group = dist.group.WORLD.group_name
    tensors = [tensor_of(count, inside) for count in (64, 70_001) for inside in (True, False)]

    def call():
        for tensor in tensors:
            torch.ops.smfar.all_reduce_(tensor, "sum", group)
            tensor.mul_(2)

    for tensor in tensors:
        fill(tensor, 0)
    graph = capture(call)
    for iteration in range(REPLAYS):
        for tensor in tensors:
            fill(tensor, iteration)
        graph.replay()
        for tensor in tensors:
            want = expected_sum(dist.get_world_size(), iteration, tensor.numel(), tensor.dtype)
            assert same_bits(tensor.cpu(), 2 * want)


def test_direct_operator(ranks):
    ranks.run(replay_direct, deadline=120)


def replay_everything():
    """Each of the other collectives, in one graph."""
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), device()
    count = 30_000
    mine = torch.zeros(count, device=here)
    whole = torch.zeros(ranks, count, device=here)
    gathered = torch.zeros_like(whole)
    exchanged = torch.zeros_like(whole)
    scattered = torch.zeros(count, device=here)
    reduced, sent, part = (torch.zeros(count, device=here) for _ in range(3))

    def call():
        dist.all_gather_into_tensor(gathered, mine)
        dist.reduce_scatter_tensor(scattered, whole)
        dist.all_to_all_single(exchanged, whole)
        reduced.copy_(mine)
        dist.reduce(reduced, 0)
        sent.copy_(mine)
        dist.broadcast(sent, ranks - 1)
        dist.scatter(part, list(whole) if rank == 0 else None, 0)
        dist.barrier(device_ids=[here.index])

    def value(source, piece, iteration):
        return float(source * 100 + piece * 10 + iteration % 10)

    graph = capture(call)
    for iteration in range(REPLAYS):
        mine.fill_(value(rank, 0, iteration))
        for piece in range(ranks):
            whole[piece].fill_(value(rank, piece, iteration))
        for tensor in (gathered, exchanged, scattered, part):
            tensor.fill_(-1)
        graph.replay()
        for source in range(ranks):
            assert (gathered[source] == value(source, 0, iteration)).all()
            assert (exchanged[source] == value(source, rank, iteration)).all()
        assert (scattered == sum(value(r, rank, iteration) for r in range(ranks))).all()
        assert (sent == value(ranks - 1, 0, iteration)).all()
        assert (part == value(0, rank, iteration)).all()
        if rank == 0:
            assert (reduced == sum(value(r, 0, iteration) for r in range(ranks))).all()


def test_every_collective(ranks):
    ranks.run(replay_everything, deadline=240)


def replay_norm(inside):
    """The fused all-reduce and RMSNorm, with both kinds of residuals: the bits of a call."""
    here, rank = device(), dist.get_rank()
    shape = (257, 4096)
    weight = torch.linspace(0.5, 1.5, shape[1], device=here).bfloat16()

    def made():
        like = {"dtype": torch.bfloat16, "device": here}
        return smfar.empty(*shape, **like) if inside else torch.empty(*shape, **like)

    first, second, residual = made(), made(), made()
    own = smfar.ops.own_rows(shape[0])
    shard = torch.empty_like(residual[own])

    def fill_all(iteration):
        for offset, tensor in enumerate((first, second, residual)):
            source = rank if offset < 2 else 0  # a residual is the same on every rank
            values = numbers(source, iteration + offset, tensor.numel(), tensor.dtype)
            tensor.copy_(values.view(shape))
        shard.copy_(residual[own])

    def call():
        smfar.ops.all_reduce_rms_norm_(first, weight, 1e-6, residual)
        smfar.ops.all_reduce_rms_norm_(second, weight, 1e-6, shard, residual_layout="sharded")

    fill_all(0)
    graph = capture(call)
    for iteration in range(REPLAYS // 5):
        fill_all(iteration)
        call()
        want = [tensor.clone() for tensor in (first, second, residual, shard)]
        fill_all(iteration)
        graph.replay()
        got = (first, second, residual, shard)
        assert all(map(torch.equal, got, want)), iteration


@pytest.mark.parametrize("inside", [True, False], ids=["in the window", "plain"])
def test_all_reduce_rms_norm(ranks, inside):
    ranks.run(replay_norm, inside, deadline=120)


# ---- several graphs, and called ones ----


def mix_at_random(count):
    """Graphs and calls in a random order; calls beside a replay that has not ended."""
    device()
    shared = torch.Generator().manual_seed(11)

    def draw(limit):
        return int(torch.randint(limit, (1,), generator=shared))

    def sized():
        return int(2 ** (torch.rand(1, generator=shared) * 18))

    graphs = []
    for number in range(6):
        tensors = [tensor_of(sized(), number % 2 == 0) for _ in range(1 + draw(4))]

        def call(tensors=tensors):
            for tensor in tensors:
                dist.all_reduce(tensor)

        for tensor in tensors:
            fill(tensor, 0)
        graphs.append((capture(call), tensors))
    called = tensor_of(200_000, True)
    side = torch.cuda.Stream()
    for iteration in range(count):
        graph, tensors = graphs[draw(len(graphs))]
        beside = called[: sized() % called.numel()]
        for tensor in (*tensors, beside):
            fill(tensor, iteration)
        side.wait_stream(torch.cuda.current_stream())
        kind = draw(3)
        if kind != 0:
            graph.replay()
        if kind != 1:
            with torch.cuda.stream(side):
                dist.all_reduce(beside)
            torch.cuda.current_stream().wait_stream(side)
        for tensor in tensors if kind != 0 else ():
            check_sum(tensor, iteration)
        if kind != 1:
            check_sum(beside, iteration)
    while graphs:
        graphs.pop(draw(len(graphs)))[0].reset()
    dist.all_reduce(called)
    torch.cuda.synchronize()


def test_mixed_at_random(ranks):
    ranks.run(mix_at_random, 400, deadline=240)


def replay_branches():
    """Two streams inside one capture; smfar keeps their collectives in order."""
    device()
    left, right = tensor_of(100_000, True), tensor_of(3_000, False)
    branch = torch.cuda.Stream()

    def call():
        branch.wait_stream(torch.cuda.current_stream())
        dist.all_reduce(left)
        with torch.cuda.stream(branch):
            dist.all_reduce(right)
            right.add_(1)
        left.add_(1)
        torch.cuda.current_stream().wait_stream(branch)

    for tensor in (left, right):
        fill(tensor, 0)
    graph = capture(call)
    for iteration in range(REPLAYS):
        for tensor in (left, right):
            fill(tensor, iteration)
        graph.replay()
        for tensor in (left, right):
            want = expected_sum(dist.get_world_size(), iteration, tensor.numel(), tensor.dtype)
            assert same_bits(tensor.cpu(), want + 1)


def test_branches(ranks):
    ranks.run(replay_branches, deadline=120)


def replay_two_groups():
    """Their graphs need no order between them."""
    here = device()
    groups = [dist.new_group(backend="smfar") for _ in range(2)]
    tensors = [torch.zeros(50_000, device=here) for _ in groups]
    for tensor in tensors:
        fill(tensor, 0)
    graphs = [
        capture(lambda t=tensor, g=group: dist.all_reduce(t, group=g), group)
        for tensor, group in zip(tensors, groups, strict=True)
    ]
    side = torch.cuda.Stream()
    for iteration in range(REPLAYS):
        for tensor in tensors:
            fill(tensor, iteration)
        side.wait_stream(torch.cuda.current_stream())
        graphs[0].replay()
        with torch.cuda.stream(side):
            graphs[1].replay()
        torch.cuda.current_stream().wait_stream(side)
        for tensor in tensors:
            check_sum(tensor, iteration)
    for graph in graphs:
        graph.reset()
    for group in groups:
        dist.destroy_process_group(group)


def test_two_groups(ranks):
    ranks.run(replay_two_groups, deadline=120)


# ---- life and refusals ----


def outlive():
    """A graph whose group was destroyed goes on, while the other ranks replay it too."""
    here = device()
    group = dist.new_group(backend="smfar")
    tensor = torch.zeros(10_000, device=here)
    graph = capture(lambda: dist.all_reduce(tensor, group=group), group)
    dist.barrier(device_ids=[here.index])
    dist.destroy_process_group(group)
    dist.barrier(device_ids=[here.index])
    for iteration in range(3):
        fill(tensor, iteration)
        graph.replay()
        check_sum(tensor, iteration)
    dist.barrier(device_ids=[here.index])
    graph.reset()


def test_graph_outlives_its_group(ranks):
    ranks.run(outlive)


def first_in_capture():
    here = device()
    group = dist.new_group(backend="smfar")
    tensor = torch.zeros(10, device=here)
    refused = pytest.raises(RuntimeError, match="first CUDA collective of a group cannot be")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()


def test_first_call_is_refused(ranks):
    ranks.run(first_in_capture)


def send_in_capture():
    rank, ranks, here = dist.get_rank(), dist.get_world_size(), device()
    tensor = torch.zeros(10, device=here)
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    refused = pytest.raises(RuntimeError, match="cannot be captured")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        dist.send(tensor, (rank + 1) % ranks)
    torch.cuda.synchronize()
    dist.all_reduce(tensor)
    torch.cuda.synchronize()


def test_messages_are_refused(ranks):
    ranks.run(send_in_capture)
