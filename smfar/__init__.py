"""smfar: a torch.distributed backend whose all-reduce is summed inside the NVSwitch.

    import torch.distributed as dist
    import smfar

    dist.init_process_group("smfar")
    gradients = smfar.empty(1 << 20)  # in the window: no staging
    dist.all_reduce(gradients.fill_(1))
    print(smfar.explain(gradients))  # which path it takes, and why

Importing registers the backend. The compiled parts are loaded, and checked against the installed
torch, at the first use; nothing touches a GPU before the first collective on one.
"""

# Before anything of smfar: importing torch runs the entry point, which imports smfar.backend.
import torch as _torch  # noqa: F401

from smfar import backend as _backend
from smfar import nn, ops
from smfar.errors import ArgumentError
from smfar.hints import algorithm, sm_budget
from smfar.pool import mem_pool
from smfar.report import Path, SoftKernel, describe, explain, report, soft_call_count, soft_stats
from smfar.window import Registration, empty, register, reserve

__all__ = [
    "ArgumentError",
    "Options",
    "Path",
    "Registration",
    "SoftKernel",
    "algorithm",
    "describe",
    "empty",
    "explain",
    "mem_pool",
    "nn",
    "ops",
    "register",
    "report",
    "reserve",
    "sm_budget",
    "soft_call_count",
    "soft_stats",
]

_backend.autoload()


def __getattr__(name):
    if name == "Options":
        return _backend.shim().Options
    if name == "__version__":
        return _backend.shim().core_version()
    raise AttributeError(f"module 'smfar' has no attribute '{name}'")
