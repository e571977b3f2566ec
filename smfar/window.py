"""Tensors in the symmetric window, on which collectives need no staging."""

import torch

from smfar import backend


def empty(*size, dtype=None, device=None, group=None):
    """An uninitialised tensor in the window of `group`.

    Collective: every rank of the group calls it, in the same order, with the same size and dtype;
    blocks the host until all have. The memory is given back when the tensor and its views are
    gone, by each rank alone.

    Args:
        size: ints or one sequence of ints.
        dtype: default torch.get_default_dtype().
        device: default "cuda" when the group serves it and a GPU is there, else "cpu".
        group: default the default group.

    Raises:
        ValueError: a negative size, before any other rank is involved.
        torch.OutOfMemoryError: the window is full (on every rank alike); see
            Options(window_bytes=).
    """
    if len(size) == 1 and not isinstance(size[0], int):
        size = tuple(size[0])
    if any(length < 0 for length in size):
        raise ValueError(f"smfar.empty: no dimension can be negative, as in {tuple(size)}")
    device = torch.device(device if device is not None else default_device())
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    found = backend.find(group, device)
    return found._empty(list(size), dtype or torch.get_default_dtype(), device)


def default_device():
    """Where collectives are expected: the GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"
