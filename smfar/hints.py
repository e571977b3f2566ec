"""Wishes for the collectives of a block of code: how many SMs, and by which algorithm."""

import contextlib
import threading

from smfar import backend

NO_SMS = -1  # SMFAR_NO_SMS of csrc/smfar.h

_wishes = threading.local()


@contextlib.contextmanager
def _wish(**wish):
    before = getattr(_wishes, "now", {"sm_budget": 0, "algorithm": None})
    _set(before | wish)
    try:
        yield
    finally:
        _set(before)


def _set(wishes):
    backend.shim().set_hint(wishes["sm_budget"], wishes["algorithm"])
    _wishes.now = wishes


def sm_budget(blocks):
    """In this `with` block, collectives called by this thread use at most so many thread blocks.

    It changes how long they take and nothing else, so ranks may differ in it. The group's own
    budget (Options, SMFAR_SM_BUDGET, NCCL_MAX_CTAS) stays the most. Backward hooks run in other
    threads than the forward pass: DDP's gradients need Options(sm_budget=).

    Args:
        blocks: 1 or more. 0 allows no kernel at all, on every rank or on none: streams wait instead
            of kernels, copy engines bring data straight into outputs of smfar.empty on other GPUs
            (what lies elsewhere, or moves inside a GPU, is copied by the driver, which takes SMs
            for that), and the call blocks the host until every rank has called. Reductions raise
            NotImplementedError, since copy engines cannot add.

    Raises:
        ValueError: a negative number.
    """
    if blocks < 0:
        raise ValueError(f"smfar.sm_budget({blocks}): 0 or more blocks")
    return _wish(sm_budget=blocks or NO_SMS)


def algorithm(name):
    """In this `with` block, collectives called by this thread take this algorithm if they can; so
    does the fused norm with "split_mc" and "split_peer" (docs/norm.md).

    Every rank must ask for the same: another one is another collective. smfar.explain says what
    a call would take, and why. "split_mc" and "split_peer" have copy engines move what they can and
    streams wait for other ranks: SMs are held only while they add. A call of these blocks the host
    until every rank has called; other calls do not. "pull_peer" is for what only moves data: one
    kernel that reads into the outputs, where else there might be copies.

    Args:
        name: "twoshot_mc", "split_mc", "push_mc", "oneshot_mc", "push_peer", "oneshot_peer",
            "twoshot_peer", "split_peer", "pull_peer", or None for whichever suits.

    Raises:
        ValueError: no such algorithm.
        NotImplementedError: by the all-reduce itself, of a sum or an average of floats for which
            "oneshot_mc" was asked: ranks could get different bits.
    """
    return _wish(algorithm=name)
