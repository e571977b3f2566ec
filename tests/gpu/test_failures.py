"""A rank that comes too late, dies, or aborts while the others' kernels wait on their GPUs."""

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness import Ranks, set_deadline
from test_collectives import device

TIMEOUT_S = 3
LONG_S = 60  # of the group, where its deadline is not to come
SOON_S = 20  # on a busy machine


def group_at_work():
    group = dist.new_group(backend="smfar", timeout=timedelta(seconds=LONG_S))
    tensor = torch.ones(100_000, device=device())
    dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    return group, tensor, dist.distributed_c10d._get_default_store()


def raises_within(seconds, match, call):
    begin = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=match):
        call()
    assert time.monotonic() - begin < seconds


def come_too_late():
    group, tensor, store = group_at_work()
    set_deadline(TIMEOUT_S, group, device())
    if dist.get_rank() == 1:
        store.wait(["missed"])
        raises_within(SOON_S, "rank 1 did not come", lambda: dist.all_reduce(tensor, group=group))
    else:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        limit = timedelta(seconds=LONG_S)
        raises_within(TIMEOUT_S + SOON_S, "rank 1 did not come", lambda: work.wait(limit))
        torch.cuda.synchronize()  # nothing spins any more
        raises_within(SOON_S, "rank 1 did not come", lambda: dist.all_reduce(tensor, group=group))
        store.set("missed", "")
    assert (torch.ones(10, device=device()) + 1).sum() == 20  # the GPU is well


def die():
    group, tensor, store = group_at_work()
    if dist.get_rank() == 1:
        store.wait(["called"])
        os._exit(0)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    store.set("called", "")
    raises_within(SOON_S, "rank 1", lambda: work.wait(timedelta(seconds=LONG_S)))
    torch.cuda.synchronize()
    assert (torch.ones(10, device=device()) + 1).sum() == 20


def abort():
    group, tensor, store = group_at_work()
    if dist.get_rank() == 1:
        store.wait(["called"])
        group._get_backend(device()).abort()
    else:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        store.set("called", "")
        raises_within(SOON_S, "aborted", lambda: work.wait(timedelta(seconds=LONG_S)))
    torch.cuda.synchronize()


@pytest.mark.parametrize(("function", "dies"), [(come_too_late, ()), (die, (1,)), (abort, ())])
def test_failure(function, dies):
    made = Ranks(2)
    try:
        made.run(function, dies=dies)
    finally:
        made.stop()
