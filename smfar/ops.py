"""Operators that run in stream order, as PyTorch's own do: for callers that need no Work."""

import torch

from smfar import backend
from smfar.norm import all_reduce_rms_norm, all_reduce_rms_norm_, own_rows

__all__ = ["all_reduce_", "all_reduce_rms_norm", "all_reduce_rms_norm_", "own_rows"]


def all_reduce_(tensor, op="sum", group=None):
    """Reduces `tensor` over the ranks of `group`, in place, and returns it.

    Collective. A CUDA tensor is reduced on the current stream, and the call returns at once; for a
    CPU tensor it blocks until the result is there. It is what torch.distributed.all_reduce does,
    for less than half of the host's time: nothing is kept, so the tensor's memory must stay the
    current stream's until it has been passed (PyTorch's allocator sees to that unless the tensor
    is used on several streams). A rank that does not come shows as an error of the group's next
    call. Works under torch.compile. torch.ops.smfar.all_reduce_(tensor, op, group_name) is the
    operator itself; this function leaves PyTorch's dispatcher out where it would do nothing.

    Args:
        tensor: of any shape, without gaps in its memory.
        op: "sum", "avg", "product", "min", "max", "band", "bor" or "bxor".
        group: default the default group; its backend for the tensor's device must be smfar.

    Raises:
        ValueError: an unknown op, gaps, or a group that smfar does not serve.
        NotImplementedError: the tensor's dtype has no such op (docs/types.md).
        torch.distributed.DistBackendError: the group has failed.
    """
    group = backend.joined(group)
    # the group being there, so is the operator
    if torch.compiler.is_compiling() or not backend.shim().all_reduce_now(tensor, op, group):
        torch.ops.smfar.all_reduce_(tensor, op, group.group_name)
    return tensor
