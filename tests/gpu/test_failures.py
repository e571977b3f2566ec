"""A rank that comes too late, dies, or aborts while the others' kernels wait on their GPUs."""

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness import Ranks
from test_collectives import device

TIMEOUT_S = 3


def group_with_a_deadline():
    group = dist.new_group(backend="smfar", timeout=timedelta(seconds=TIMEOUT_S))
    tensor = torch.ones(100_000, device=device())
    dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    return group, tensor


def raises_within(seconds, match, call):
    begin = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=match):
        call()
    assert time.monotonic() - begin < seconds


def come_too_late():
    group, tensor = group_with_a_deadline()
    if dist.get_rank() == 1:
        time.sleep(TIMEOUT_S + 1)
        raises_within(1, "rank 1 did not come", lambda: dist.all_reduce(tensor, group=group))
    else:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        limit = timedelta(seconds=TIMEOUT_S + 5)
        raises_within(TIMEOUT_S + 2, "rank 1 did not come", lambda: work.wait(limit))
        torch.cuda.synchronize()  # nothing spins any more
        raises_within(1, "rank 1 did not come", lambda: dist.all_reduce(tensor, group=group))
    assert (torch.ones(10, device=device()) + 1).sum() == 20  # the GPU is well


def die():
    group, tensor = group_with_a_deadline()
    if dist.get_rank() == 1:
        os._exit(0)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    raises_within(2, "rank 1", lambda: work.wait(timedelta(seconds=TIMEOUT_S + 5)))
    torch.cuda.synchronize()
    assert (torch.ones(10, device=device()) + 1).sum() == 20


def abort():
    group, tensor = group_with_a_deadline()
    if dist.get_rank() == 1:
        time.sleep(0.5)
        group._get_backend(device()).abort()
    else:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        raises_within(2, "aborted", lambda: work.wait(timedelta(seconds=TIMEOUT_S + 5)))
    torch.cuda.synchronize()


@pytest.mark.parametrize(("function", "dies"), [(come_too_late, ()), (die, (1,)), (abort, ())])
def test_failure(function, dies):
    made = Ranks(2, timeout=60)
    try:
        made.run(function, dies=dies)
    finally:
        made.stop()
