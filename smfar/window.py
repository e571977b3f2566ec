"""Memory in the symmetric window, on which collectives need no staging: tensors that are made
there, room for more of them, and memory of other allocators that is added.
"""

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
        torch.OutOfMemoryError: the window is full (on every rank alike); see smfar.reserve and
            Options(window_bytes=).
    """
    if len(size) == 1 and not isinstance(size[0], int):
        size = tuple(size[0])
    if any(length < 0 for length in size):
        raise ValueError(f"smfar.empty: no dimension can be negative, as in {tuple(size)}")
    device = _chosen(device)
    found = backend.find(group, device)
    return found._empty(list(size), dtype or torch.get_default_dtype(), device)


def reserve(bytes, group=None, device=None):
    """Makes room for `bytes` more of tensors, in one piece, in the window of `group`.

    Collective: every rank of the group calls it, in the same order, with the same `bytes`; blocks
    the host until all have. Where the window has so much room left nothing happens; else it
    grows, at any time, by at most 2 GiB or 128 times what it began with, whichever is more.

    Args:
        bytes: of each rank's device memory, 0 or more.
        group: default the default group.
        device: default "cuda" when a GPU is there, else "cpu".

    Raises:
        ValueError: a negative number, before any other rank is involved.
        torch.OutOfMemoryError: a rank has not so much memory, or the window cannot grow so far; it
            stays as it was, on every rank.
    """
    if bytes < 0:
        raise ValueError(f"smfar.reserve({bytes}): 0 or more bytes")
    device = _chosen(device)
    backend.find(group, device)._reserve(device, bytes)


def register(tensor, group=None):
    """Has the collectives of `group` use this tensor's memory without staging, over peers.

    Collective: every rank of the group calls it, in the same order, with a tensor of the same
    number of bytes; blocks the host until all have. Every rank maps the memory, so it must be made
    by cuMemCreate with a handle that can be shared as a file descriptor, as PyTorch's expandable
    segments are (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True); what lies in the window already
    needs nothing. Whole allocations of the driver's are registered, so neighbours in them profit,
    too, for as long; each registration holds until it is deregistered itself. The switch does not
    reach it: for sums inside the switch use smfar.empty or smfar.mem_pool.

        with smfar.register(gradients):
            dist.all_reduce(gradients)

    Args:
        tensor: without gaps in its memory; it is kept until it is deregistered, or the group ends.
        group: default the default group.

    Returns:
        A Registration, for deregister() or `with`.

    Raises:
        ValueError: a tensor with gaps, or on a device that this rank of the group does not use.
        NotImplementedError: a rank's memory cannot be shared (cudaMalloc's, ordinary host memory);
            on every rank, naming that one, and what would do.
    """
    return Registration(backend.find(group, tensor.device)._register(tensor))


class Registration:
    """What smfar.register returns; at the end of a `with` block it is deregistered. After an
    exception it is not, since this would wait for ranks that may know nothing of it.
    """

    def __init__(self, registered):
        self._registered = registered

    def deregister(self):
        """Lets the tensor's memory go: collectives stage it again.

        Collective; blocks the host until the group's collectives so far have ended. A second call
        does nothing, nor does one for a group that has failed or ended. NotImplementedError while
        CUDA graphs with collectives of the group are there; once they are gone it can be called
        again.
        """
        self._registered.drop()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.deregister()


def default_device():
    """Where collectives are expected: the GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _chosen(device):
    device = torch.device(device if device is not None else default_device())
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device
