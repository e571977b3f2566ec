"""Registers the backend with torch.distributed, loads the shim, finds a group's smfar part.

Not here: collectives (they are torch.distributed's) and reports (report.py). Importing this file
loads nothing compiled: torch itself imports it, through the entry point.
"""

import functools
import importlib

import torch
import torch.distributed as dist

_REINSTALL = "reinstall smfar beside it: `pip install --no-build-isolation .`"


@functools.cache
def shim():
    """The compiled module smfar._C; ImportError in one sentence if it does not fit this torch."""
    installed = tuple(int(part) for part in torch.__version__.split(".")[:2])
    try:
        found = importlib.import_module("smfar._C")
    except ImportError as error:
        raise ImportError(
            f"smfar's shim does not load into torch {torch.__version__} ({error}); {_REINSTALL}"
        ) from error
    if found.torch_version != installed:
        built = ".".join(map(str, found.torch_version))
        raise ImportError(
            f"smfar was built for torch {built}, not for the installed {torch.__version__}; "
            f"{_REINSTALL}"
        )
    from smfar import norm  # which needs this module

    norm.register()
    return found


def autoload():
    """Makes "smfar" known to torch.distributed; again is harmless.

    Entry point that torch runs at its own import: never raises, touches no GPU.
    """
    if dist.is_available() and "SMFAR" not in dist.Backend._plugins:
        dist.Backend.register_backend("smfar", _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options, pg_options):
    """What init_process_group("smfar") and new_group call on every rank; does not block."""
    if pg_options is not None and not isinstance(pg_options, shim().Options):
        raise TypeError(f"pg_options must be smfar.Options, not {type(pg_options).__name__}")
    return shim().make_group(
        options.store, options.group_rank, options.group_size, options.timeout, pg_options
    )


def joined(group):
    """`group` (None: the default group), if it is one that this rank has joined."""
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("smfar: call torch.distributed.init_process_group first")
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("smfar: this rank is no member of the group")
    return group


def find(group, device):
    """The ProcessGroupSmfar that serves `device` in `group` (None: the default group)."""
    group = joined(group)
    backend = group._get_backend(torch.device(device))
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
    if not isinstance(backend, shim().ProcessGroupSmfar):
        raise ValueError(
            f"smfar: {device} tensors of this group are served by {backend.name()}; "
            'use init_process_group("smfar") or new_group(backend="smfar")'
        )
    return backend
