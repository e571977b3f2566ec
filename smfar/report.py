"""What runs, and why: plans, communicators, counts per path, counts of the software switch.

Everything here concerns the calling rank alone and does not block; sums over ranks are the
caller's.
"""

import ctypes
import functools
import pathlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

from smfar import backend
from smfar.window import default_device


@dataclass(frozen=True)
class Path:
    """What one collective has carried by one algorithm on this rank."""

    collective: str
    algorithm: str
    reason: str  # of the last call
    calls: int
    bytes: int  # of this rank's tensors
    staged_bytes: int  # of these, copied through a staging slot
    blocks: int  # of the last launch
    threads: int


@dataclass(frozen=True)
class SoftKernel:
    """What the software switch has executed of one kernel in this process.

    Instructions count once per thread; `multimem_bytes` are the bytes that multimem instructions
    name (a 16-byte load of 4 copies counts 16).
    """

    name: str
    launches: int
    instructions: int
    multimem_loads: int
    multimem_stores: int
    multimem_reds: int
    multimem_bytes: int


def explain(tensor_or_count, op=dist.ReduceOp.SUM, group=None, dtype=torch.float32, device=None):
    """Which algorithm an all-reduce would take here, with how many blocks, and why.

    Args:
        tensor_or_count: a tensor, or a number of elements of `dtype` in a plain tensor on
            `device` (default: the GPU if there is one).
        op: a torch.distributed.ReduceOp.

    Raises:
        ValueError: a negative number of elements.
        torch.distributed.DistBackendError: the group has run no collective on such a device yet.
    """
    if isinstance(tensor_or_count, torch.Tensor):
        tensor, count, dtype = tensor_or_count, 0, tensor_or_count.dtype
        device = tensor.device
    else:
        tensor, count = None, int(tensor_or_count)
        if count < 0:
            raise ValueError(f"smfar.explain: a tensor cannot have {count} elements")
    device = torch.device(device or default_device())
    return backend.find(group, device)._explain(device, tensor, count, dtype, op)


def describe(group=None, device=None):
    """What the group's communicator is: driver, devices, capabilities, why multicast is on or off,
    memory held. Raises as `explain` does."""
    device = torch.device(device or default_device())
    return backend.find(group, device)._describe(device)


def report(group=None, device=None):
    """The paths that this rank's collectives have taken so far: a list of Path."""
    device = torch.device(device or default_device())
    return [Path(*fields) for fields in backend.find(group, device)._paths(device)]


class _KernelStats(ctypes.Structure):
    """struct soft_kernel_stats of csrc/soft/soft.h."""

    _fields_ = [("name", ctypes.c_char * 128)] + [
        (name, ctypes.c_uint64)
        for name in (
            "launches",
            "instructions",
            "multimem_loads",
            "multimem_stores",
            "multimem_reds",
            "multimem_bytes",
        )
    ]


@functools.cache
def _soft():
    """The software switch that this process uses (the library beside the package)."""
    library = ctypes.CDLL(str(pathlib.Path(__file__).with_name("libsmfar_soft.so")))
    library.soft_kernel_stats.argtypes = [ctypes.c_uint, ctypes.POINTER(_KernelStats)]
    library.soft_kernel_stats.restype = ctypes.c_int
    library.soft_call_count.argtypes = [ctypes.c_char_p]
    library.soft_call_count.restype = ctypes.c_uint64
    return library


def soft_stats():
    """What the software switch has executed in this process: a list of SoftKernel."""
    found = []
    stats = _KernelStats()
    while _soft().soft_kernel_stats(len(found), ctypes.byref(stats)):
        name, *counts = (getattr(stats, field) for field, _ in _KernelStats._fields_)
        found.append(SoftKernel(name.decode(), *counts))
    return found


def soft_call_count(name):
    """How often this process called a driver function of the software switch, by its name."""
    return _soft().soft_call_count(name.encode())
