"""The memory pools of smfar.mem_pool without a GPU: the two functions that PyTorch's allocator
would call, on a window of the software switch. tests/gpu/test_memory.py has torch.cuda.MemPool.
"""

import ctypes

import pytest
import torch
import torch.distributed as dist
from data import expected_sum, numbers, same_bits

import smfar
from smfar import backend, pool

CPU = torch.device("cpu")
MIB = 1 << 20


class Pool:
    """What a torch.cuda.MemPool would do with a pool of `bytes`."""

    def __init__(self, bytes):
        self.backend = backend.find(None, CPU)
        self.number = self.backend._open_pool(CPU, bytes)
        library = ctypes.CDLL(backend.shim().__file__)
        self.take = getattr(library, f"smfar_pool_alloc_{self.number}")
        self.take.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.take.restype = ctypes.c_void_p
        self.free = getattr(library, f"smfar_pool_free_{self.number}")
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

    def alloc(self, size):
        return self.take(size, 0, None)

    def give(self, part, size=0):
        self.free(part, size, 0, None)

    def use(self):
        return backend.shim().pool_use(self.number)

    def close(self):
        backend.shim().close_pool(self.number)


def tensor_at(pointer, count):
    raw = (ctypes.c_float * count).from_address(pointer)
    return torch.frombuffer(raw, dtype=torch.float32)


def take_and_give():
    made = Pool(4 * MIB)
    first, second, third = (made.alloc(MIB) for _ in range(3))
    assert second - first == third - second == MIB
    assert made.alloc(2 * MIB) is None  # one is left
    assert made.use() == (4 * MIB, 3 * MIB)
    made.give(second)
    assert made.alloc(600 * 1024) == second  # the lowest place where it fits
    assert made.alloc(600 * 1024) == third + MIB
    assert made.alloc(1) - second == 600 * 1024
    for part in (first, second, third, third + MIB, second + 600 * 1024):
        made.give(part)
    assert made.use() == (4 * MIB, 0)
    assert made.alloc(4 * MIB) == first
    assert made.alloc(1) is None
    made.give(first)
    made.close()
    assert made.alloc(1) is None


@pytest.mark.filterwarnings("ignore:smfar. a memory pool")
def test_parts_are_given_out_and_taken_back(ranks):
    ranks.run(take_and_give)


def staged():
    return sum(path.staged_bytes for path in smfar.report(device="cpu"))


def reduce_in_pools(same):
    """Unequal places on the ranks give the same results, over peers."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    made = Pool(8 * MIB)
    apart = made.alloc(1 if same else 512 * (1 + rank))
    before = staged()
    for iteration, count in enumerate((1000, 300_001)):
        part = made.alloc(4 * count)
        tensor = tensor_at(part, count)
        tensor.copy_(numbers(rank, iteration, count, torch.float32))
        dist.all_reduce(tensor)
        assert same_bits(tensor, expected_sum(ranks, iteration, count, torch.float32))
        made.give(part)
    assert staged() == before
    made.give(apart)
    made.close()


@pytest.mark.parametrize("same", [True, False], ids=["equal places", "unequal places"])
def test_reduced_without_staging(ranks, same):
    ranks.run(reduce_in_pools, same)


def reopen(times):
    """A range is used again once every rank has closed its pool, and a number at once."""
    numbers_seen = set()
    for _ in range(times):
        made = Pool(100 * MIB)
        part = made.alloc(MIB)
        made.close()
        numbers_seen.add(made.number)
        made.give(part)  # only now is nothing of it in use
    assert len(numbers_seen) == 1
    too_many = [Pool(MIB) for _ in range(16)]
    with pytest.raises(NotImplementedError, match="at most 16 memory pools"):
        Pool(MIB)
    for made in too_many:
        made.close()
    with pytest.raises(torch.OutOfMemoryError, match="a memory pool of .* in the window"):
        Pool(1 << 40)


def test_opened_and_closed_again_and_again(ranks):
    ranks.run(reopen, 6)


def refuse_foreign():
    found = backend.find(None, CPU)
    with pytest.raises(NotImplementedError, match="only a pool that smfar.mem_pool"):
        pool.register(found, Foreign())
    with pytest.raises(NotImplementedError, match="only a pool that smfar.mem_pool"):
        found.register_mem_pool(Foreign())
    with pytest.raises(ValueError, match="a pool of 0 bytes"):
        smfar.mem_pool(bytes=0)


class Foreign:
    """In the place of a torch.cuda.MemPool of another allocator."""


def test_foreign_pools_are_refused(ranks):
    ranks.run(refuse_foreign)


def outlive_group():
    """A pool holds its window, not its group."""
    group = dist.new_group(backend="smfar")
    mine = backend.find(group, CPU)
    dist.all_reduce(torch.zeros(1), group=group)
    number = mine._open_pool(CPU, MIB)
    library = ctypes.CDLL(backend.shim().__file__)
    take = getattr(library, f"smfar_pool_alloc_{number}")
    take.restype = ctypes.c_void_p
    part = take(ctypes.c_ssize_t(4096), 0, None)
    tensor = tensor_at(part, 1024)
    dist.destroy_process_group(group)
    tensor.fill_(3)  # still there
    assert tensor.sum() == 3 * 1024
    getattr(library, f"smfar_pool_free_{number}")(ctypes.c_void_p(part), 4096, 0, None)
    backend.shim().close_pool(number)


def test_a_pool_outlives_its_group(ranks):
    ranks.run(outlive_group)
