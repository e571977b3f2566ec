"""Memory pools in the symmetric window, for torch.cuda.use_mem_pool."""

import functools
import weakref

import torch

from smfar import backend

_DEFAULT_BYTES = 64 << 20

# number of each pool that is still there, and the backend whose window it lies in
_made = weakref.WeakKeyDictionary()


def mem_pool(group=None, *, bytes=_DEFAULT_BYTES):
    """A torch.cuda.MemPool whose memory lies in the window of `group`: no staging.

    Collective: every rank of the group calls it, in the same order, with the same `bytes`; blocks
    the host until all have. What is allocated from the pool later is each rank's own affair. Ranks
    that allocate and free in the same order get the same places, which collectives through the
    switch need; where places differ, results are right all the same, and kernels go over peers.

        pool = smfar.mem_pool(bytes=128 << 20)
        with torch.cuda.use_mem_pool(pool):
            x = torch.empty(1 << 20, device="cuda")
        dist.all_reduce(x)

    The window keeps the pool's memory until the pool and all its tensors are gone.

    Args:
        group: default the default group; its GPUs are served by smfar.
        bytes: of the window; PyTorch takes it in pieces of 2 MiB or more.

    Raises:
        torch.OutOfMemoryError: the window has no such range left (on every rank alike); see
            Options(window_bytes=). Also, later, where the pool is full.
    """
    if bytes < 1:
        raise ValueError(f"smfar.mem_pool: a pool of {bytes} bytes")
    device = torch.device("cuda", torch.cuda.current_device())
    found = backend.find(group, device)
    number = found._open_pool(device, bytes)
    pool = torch.cuda.MemPool(_allocator(number).allocator())
    _made[pool] = (number, weakref.ref(found))
    weakref.finalize(pool, backend.shim().close_pool, number)
    return pool


@functools.cache
def _allocator(number):
    """Kept for good: a MemPool does not hold its allocator."""
    return torch.cuda.memory.CUDAPluggableAllocator(
        backend.shim().__file__, f"smfar_pool_alloc_{number}", f"smfar_pool_free_{number}"
    )


def register(group, pool):
    """What ProcessGroupSmfar.register_mem_pool does: a pool of smfar.mem_pool needs nothing."""
    _, owner = _made.get(pool, (None, None))
    if owner is None or owner() is not group:
        raise NotImplementedError(
            "smfar: only a pool that smfar.mem_pool(group) has made lies in this group's window; "
            "memory of other allocators is staged. Allocate from smfar.mem_pool or with "
            "smfar.empty to save that, or add tensors with smfar.register"
        )
