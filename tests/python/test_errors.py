"""What cannot work ends in a clear error, on every rank that has to know, and never hangs."""

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness import TIMEOUT, set_deadline

import smfar

# ---- refused at the call: no other rank is involved ----


def bad_tensors():
    tensor = torch.ones(4, 4)
    cases = {
        "layout Sparse.*to_dense": lambda: dist.all_reduce(tensor.to_sparse()),
        "strides.*0": lambda: dist.broadcast(torch.ones(1).expand(4), 0),
        "resolve_conj": lambda: dist.broadcast(torch.ones(3, dtype=torch.cfloat).conj(), 0),
        "12 and 16 elements|16 and 12 elements": lambda: dist.all_gather(
            [torch.empty(12) for _ in range(dist.get_world_size())], torch.ones(16)
        ),
        "times the 16 elements": lambda: dist.all_gather_into_tensor(
            torch.empty(17), torch.ones(16)
        ),
    }
    for pattern, call in cases.items():
        with pytest.raises((ValueError, RuntimeError), match=pattern):
            call()


def test_tensors_that_are_refused(ranks):
    ranks.run(bad_tensors)


def negative_sizes():
    cases = {
        r"explain: .* -5 elements": lambda: smfar.explain(-5, device="cpu"),
        r"empty: .*\(-1,\)": lambda: smfar.empty(-1, device="cpu"),
        r"empty: .*\(2, -3\)": lambda: smfar.empty((2, -3), device="cpu"),
        "sm_budget must be positive": lambda: smfar.Options(sm_budget=-1),
        "window_bytes must be positive": lambda: smfar.Options(window_bytes=-4096),
    }
    for pattern, call in cases.items():
        with pytest.raises(ValueError, match=pattern):
            call()


def test_negative_sizes_are_refused(ranks):
    ranks.run(negative_sizes)


def refused_by_the_backend():
    """torch.distributed itself ignores meta tensors and has no quantised ones: ask the backend."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    with pytest.raises(ValueError, match="on meta; use one on cpu or cuda"):
        backend.allreduce([torch.empty(3, device="meta")], dist.AllreduceOptions())
    quantised = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    with pytest.raises(ValueError, match="quantised tensor; use"):
        backend.broadcast([quantised], dist.BroadcastOptions())


def test_tensors_that_the_backend_refuses(ranks):
    ranks.run(refused_by_the_backend)


def missing_reductions():
    ops = dist.ReduceOp
    cases = [
        (torch.float32, ops.BAND, "band.*f32.*integers"),
        (torch.bfloat16, ops.BXOR, "bxor.*bf16.*integers"),
        (torch.bool, ops.AVG, "avg.*bool.*f32"),
        (torch.float8_e4m3fn, ops.PRODUCT, "product.*f8_e4m3.*bf16"),
        (torch.uint16, ops.SUM, "UInt16.*int64"),
        (torch.int32, dist._make_nccl_premul_sum(2.0), "premul_sum.*i32.*f32"),
        (torch.bool, dist._make_nccl_premul_sum(2.0), "premul_sum.*bool.*f32"),
    ]
    for dtype, op, words in cases:
        with pytest.raises(NotImplementedError, match=words):
            dist.all_reduce(torch.ones(4).to(dtype), op=op)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    with pytest.raises(NotImplementedError, match="max.*complex64.*sum"):
        backend.allreduce([torch.ones(4, dtype=torch.complex64)], options)


def test_reductions_that_are_missing(ranks):
    ranks.run(missing_reductions)


def refused_collectives():
    with pytest.raises(NotImplementedError, match="monitored_barrier is not available.*barrier"):
        dist.group.WORLD.monitored_barrier(timedelta(seconds=1), True)


def test_collectives_that_are_refused(ranks):
    ranks.run(refused_collectives)


def bad_root():
    with pytest.raises(ValueError):
        dist.broadcast(torch.ones(1), dist.get_world_size())


def test_a_root_that_is_no_rank(ranks):
    ranks.run(bad_root)


def still_works():
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [float(dist.get_world_size())] * 3


def test_refusals_leave_the_group_usable(ranks):
    ranks.run(bad_tensors)
    ranks.run(still_works)


# ---- ranks that differ ----


def call_differently(kind):
    """Rank 1 calls something else than the others; returns what this rank's error says."""
    odd = dist.get_rank() == 1
    calls = {
        "count": lambda: dist.all_reduce(torch.ones(11 if odd else 10)),
        "dtype": lambda: dist.all_reduce(
            torch.ones(10, dtype=torch.int32 if odd else torch.float32)
        ),
        "op": lambda: dist.all_reduce(
            torch.ones(10), op=dist.ReduceOp.AVG if odd else dist.ReduceOp.SUM
        ),
        "scale": lambda: dist.all_reduce(
            torch.ones(10), op=dist._make_nccl_premul_sum(0.5 if odd else 0.25)
        ),
        "collective": lambda: dist.barrier() if odd else dist.all_reduce(torch.ones(10)),
        "root": lambda: dist.broadcast(torch.ones(10), 1 if odd else 0),
    }
    begin = time.monotonic()
    with pytest.raises(dist.DistBackendError) as error:
        calls[kind]()
    with pytest.raises(dist.DistBackendError):
        dist.barrier()  # the group has failed for good
    return str(error.value), time.monotonic() - begin


@pytest.mark.parametrize("kind", ["count", "dtype", "op", "scale", "collective", "root"])
def test_ranks_that_call_differently_all_hear_of_it(fresh_ranks, kind):
    answers = fresh_ranks(3).run(call_differently, kind)
    for text, seconds in answers:
        assert "MISMATCH" in text, text
        # both sides, as this rank saw them or as the first to notice told it
        assert "rank 1 called" in text, text
        assert "rank 0 called" in text or "rank 2 called" in text, text
        assert seconds < TIMEOUT / 2


# ---- ranks that do not come ----


def come_late(missing):
    dist.barrier()
    set_deadline(3)
    if dist.get_rank() == missing:
        return "", 0
    begin = time.monotonic()
    with pytest.raises(dist.DistBackendError) as error:
        dist.all_reduce(torch.ones(1000))
    return str(error.value), time.monotonic() - begin


def test_a_rank_that_does_not_come_is_named(fresh_ranks):
    answers = fresh_ranks(3).run(come_late, 1)
    for rank, (text, seconds) in enumerate(answers):
        if rank != 1:
            assert "rank 1" in text and "TIMEOUT" in text, text
            assert 2 < seconds < TIMEOUT / 2


def never_join():
    if dist.get_rank() == 0:
        return ""
    set_deadline(3)
    with pytest.raises(dist.DistBackendError) as error:
        dist.barrier()
    return str(error.value)


def test_a_rank_that_never_joins_is_named(fresh_ranks):
    _, text = fresh_ranks(2).run(never_join)
    assert "rank 0" in text and "TIMEOUT" in text, text


def die(victim):
    dist.barrier()
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(dist.DistBackendError) as error:
        for _ in range(1000):
            dist.all_reduce(torch.ones(100_000))
    return str(error.value), time.monotonic() - begin


def test_a_killed_rank_fails_the_others_at_once(fresh_ranks):
    answers = fresh_ranks(3).run(die, 2, dies=(2,))
    for text, seconds in answers[:2]:
        assert "rank 2" in text, text
        assert seconds < TIMEOUT / 2


def drop_tensors_of_failed_works(victim):
    """What the stream has not passed must stay: a write to it after that would end the process."""
    tensors = [torch.ones(4 << 20) for _ in range(3)]
    dist.all_reduce(torch.ones(4))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == victim:
        store.wait([f"called {r}" for r in range(dist.get_world_size()) if r != victim])
        os.kill(os.getpid(), signal.SIGKILL)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    store.set(f"called {dist.get_rank()}", "")
    with pytest.raises(dist.DistBackendError, match=f"rank {victim} .* has died"):
        works[0].wait()
    del works, tensors
    time.sleep(0.5)


def test_memory_of_failed_works_stays_until_the_stream_has_passed(fresh_ranks):
    fresh_ranks(3).run(drop_tensors_of_failed_works, 1, dies=(1,))


def failing_future():
    dist.barrier()
    set_deadline(3)
    if dist.get_rank() == 1:
        return
    future = dist.all_reduce(torch.ones(8), async_op=True).get_future()
    with pytest.raises(Exception, match="smfar"):
        future.wait()


def test_a_failure_reaches_futures(fresh_ranks):
    fresh_ranks(2).run(failing_future)


def abort():
    group = dist.new_group(backend="smfar")
    dist.barrier(group=group)
    dist.barrier()  # an abort also fails a barrier of the group that has not ended on every rank
    if dist.get_rank() == 0:
        group._get_backend(torch.device("cpu")).abort()
    with pytest.raises(dist.DistBackendError, match="abort"):
        for _ in range(1000):
            dist.all_reduce(torch.ones(100), group=group)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)  # the default group goes on
    assert tensor.item() == dist.get_world_size()


def test_abort_fails_every_rank_of_the_group(ranks):
    ranks.run(abort)
