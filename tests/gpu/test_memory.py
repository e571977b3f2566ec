"""Memory in the window on GPUs: smfar.mem_pool with PyTorch's allocator, and DDP's buckets.

Ranks that share one GPU have a window each.
"""

import gc

import pytest
import torch
import torch.distributed as dist
from data import expected_sum, numbers, same_bits
from torch.nn.parallel import DistributedDataParallel

import smfar

MIB = 1 << 20


def device():
    index = dist.get_rank() % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def staged():
    return sum(path.staged_bytes for path in smfar.report(device="cuda"))


def check_sum(tensor, iteration):
    tensor.copy_(numbers(dist.get_rank(), iteration, tensor.numel(), tensor.dtype))
    dist.all_reduce(tensor)
    want = expected_sum(dist.get_world_size(), iteration, tensor.numel(), tensor.dtype)
    assert same_bits(tensor.cpu(), want), (iteration, tensor.numel())


def reduce_from_pool(same):
    """Nothing is staged, wherever the ranks' tensors lie."""
    rank, here = dist.get_rank(), device()
    dist.all_reduce(torch.zeros(1, device=here))
    pool = smfar.mem_pool(bytes=64 * MIB)
    before = staged()
    with torch.cuda.use_mem_pool(pool):
        apart = torch.empty(1 if same else 1 + rank * MIB, device=here)
        tensors = [torch.empty(count, device=here) for count in (300_001, 1_000_000, 5_000_000)]
    for iteration, tensor in enumerate(tensors):
        check_sum(tensor, iteration)
    assert staged() == before
    plain = torch.empty(300_001, device=here)
    check_sum(plain, 9)
    assert staged() > before
    del apart, tensors, pool


@pytest.mark.parametrize("same", [True, False], ids=["equal places", "unequal places"])
def test_pool_needs_no_staging(ranks, same):
    ranks.run(reduce_from_pool, same)


def account():
    """What PyTorch says of the pool's memory, and that it comes back."""
    here = device()
    dist.all_reduce(torch.zeros(1, device=here))
    for _ in range(8):  # more than the window holds at once
        gc.collect()
        torch.cuda.empty_cache()
        before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        pool = smfar.mem_pool(bytes=48 * MIB)
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.empty(24 * MIB, dtype=torch.uint8, device=here)
        assert torch.cuda.memory_allocated() - before == tensor.numel()
        assert torch.cuda.memory_reserved() - reserved >= tensor.numel()
        with pytest.raises(torch.OutOfMemoryError), torch.cuda.use_mem_pool(pool):
            torch.empty(40 * MIB, dtype=torch.uint8, device=here)
        del tensor, pool
        gc.collect()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() == before
        assert torch.cuda.memory_reserved() == reserved


@pytest.mark.filterwarnings("ignore:smfar. a memory pool")
def test_accounting_and_empty_cache(ranks):
    ranks.run(account)


def free_in_any_order(rounds):
    """Ranks free and allocate in orders of their own."""
    rank, here = dist.get_rank(), device()
    dist.all_reduce(torch.zeros(1, device=here))
    own = torch.Generator().manual_seed(rank)
    pool = smfar.mem_pool(bytes=64 * MIB)
    kept = []
    for iteration in range(rounds):
        with torch.cuda.use_mem_pool(pool):
            kept.append(torch.empty(1000 + 50_000 * (iteration % 3), device=here))
        check_sum(kept[-1], iteration)
        while len(kept) > 4 or (kept and torch.rand(1, generator=own) < 0.3):
            del kept[int(torch.randint(len(kept), (1,), generator=own))]
    kept.clear()
    del pool


def test_freed_in_any_order(ranks):
    ranks.run(free_in_any_order, 60)


def train(steps):
    """Gradients lie in the window from the first step on: DDP asks the backend for its buckets."""
    rank, here = dist.get_rank(), device()
    torch.manual_seed(3)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).to(here)
    model = DistributedDataParallel(
        model, device_ids=[here.index], gradient_as_bucket_view=True, bucket_cap_mb=1
    )
    before = 0
    for step in range(steps):
        torch.manual_seed(100 * step + rank)
        model(torch.randn(16, 512, device=here)).square().mean().backward()
        torch.cuda.synchronize()
        if step == 1:  # buckets are made anew after the first
            before = staged()
        model.zero_grad(set_to_none=False)
    return staged() - before


def test_gradients_of_ddp_are_not_staged(ranks, monkeypatch):
    monkeypatch.setenv("DDP_DISABLE_COMM_MEM", "0")
    ranks.stop()  # the ranks get the variable when they start
    assert ranks.run(train, 5) == [0] * ranks.count


def capture_in_pool():
    """A graph over a tensor of the pool: nothing staged, at no replay."""
    here = device()
    dist.all_reduce(torch.zeros(1, device=here))
    pool = smfar.mem_pool(bytes=32 * MIB)
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.zeros(1_000_000, device=here)
    check_sum(tensor, 0)
    before = staged()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor)
    assert staged() == before
    for iteration in range(20):
        tensor.copy_(numbers(dist.get_rank(), iteration, tensor.numel(), tensor.dtype))
        graph.replay()
        want = expected_sum(dist.get_world_size(), iteration, tensor.numel(), tensor.dtype)
        assert same_bits(tensor.cpu(), want)
    graph.reset()


def test_pool_and_graph(ranks):
    ranks.run(capture_in_pool)


def register():
    here = device()
    dist.all_reduce(torch.zeros(1, device=here))
    backend = dist.group.WORLD._get_backend(here)
    pool = smfar.mem_pool(bytes=4 * MIB)
    backend.register_mem_pool(pool)
    backend.deregister_mem_pool(pool)
    with pytest.raises(NotImplementedError, match="only a pool that smfar.mem_pool"):
        backend.register_mem_pool(torch.cuda.MemPool())


def test_register_mem_pool(ranks):
    ranks.run(register)


def grow():
    """What is added is as good as the rest: one tensor lies across the seam."""
    here = device()
    group = dist.new_group(pg_options=smfar.Options(window_bytes=32 * MIB))
    smfar.reserve(48 * MIB, group)
    first = smfar.empty(12 * MIB, device=here, group=group)
    smfar.reserve(256 * MIB, group)
    tensors = [first, smfar.empty(64 * MIB, device=here, group=group)]
    for iteration, tensor in enumerate(tensors):
        tensor.fill_(1 + dist.get_rank())
        dist.all_reduce(tensor, group=group)
        ranks = dist.get_world_size()
        assert torch.all(tensor == ranks * (ranks + 1) / 2), iteration
    assert all(path.staged_bytes == 0 for path in smfar.report(group, device="cuda"))
    with pytest.raises(torch.OutOfMemoryError):
        smfar.reserve(1 << 40, group)
    dist.destroy_process_group(group)


def test_window_that_grows(ranks):
    ranks.run(grow)


def register_tensor(count):
    """Of PyTorch's own allocator, which may have it in many allocations of the driver's."""
    here = device()
    dist.all_reduce(torch.zeros(1, device=here))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    apart = torch.empty(1 + rank * MIB, device=here)
    tensor = torch.empty(count, device=here)
    with smfar.register(tensor):
        before = staged()
        for iteration, algorithm in enumerate(("twoshot_peer", "split_peer", None)):
            with smfar.algorithm(algorithm):
                check_sum(tensor, iteration)
        part = count // ranks
        whole = tensor[: part * ranks]
        tensor.fill_(rank)
        with smfar.sm_budget(0):
            dist.all_gather_into_tensor(whole, whole[rank * part : (rank + 1) * part])
        want = torch.arange(ranks, device=here).repeat_interleave(part)
        assert torch.equal(whole, want.to(whole.dtype))
        assert staged() == before
    with smfar.algorithm("twoshot_peer"):
        check_sum(tensor, 7)
    assert staged() > before
    del apart


@pytest.mark.parametrize("count", [300_001, 20_000_003])
def test_register_expandable_segments(ranks, monkeypatch, count):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    ranks.stop()  # the ranks get the variable when they start
    ranks.run(register_tensor, count)
    ranks.stop()


def register_twice():
    """A part of what is registered stays in the window until its own registration ends."""
    here = device()
    dist.all_reduce(torch.zeros(1, device=here))
    whole = torch.empty(3_000_000, device=here)
    part = whole[1_000_000:]
    outer, inner = smfar.register(whole), smfar.register(part)
    with smfar.algorithm("twoshot_peer"):
        before = staged()
        outer.deregister()
        check_sum(part, 1)
        assert staged() == before
        inner.deregister()
        check_sum(part, 2)
        assert staged() > before


def test_registrations_that_lie_in_others(ranks, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    ranks.stop()  # the ranks get the variable when they start
    ranks.run(register_twice)
    ranks.stop()


def register_what_cannot_be():
    tensor = torch.empty(1000, device=device())
    with pytest.raises(NotImplementedError, match="expandable_segments:True"):
        smfar.register(tensor)
    check_sum(tensor, 1)
    inside = smfar.empty(1000, device=tensor.device)
    with smfar.register(inside):
        check_sum(inside, 2)


def test_register_memory_of_cuda_malloc(ranks):
    ranks.stop()
    ranks.run(register_what_cannot_be)
