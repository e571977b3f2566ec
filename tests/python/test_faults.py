"""Faults that users of such systems have reported, one test per row of docs/faults.md that no other
test covers; the number in a name is the row's.
"""

import gc
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness import DEADLINE, TIMEOUT

import smfar

# ---- R37: the bits of a sum ----


def bits_of_a_sum():
    generator = torch.Generator().manual_seed(dist.get_rank())
    tensor = torch.randn(5000, generator=generator)
    dist.all_reduce(tensor)
    return tensor.view(torch.int32).tolist()


def test_r37_every_rank_has_the_same_bits(ranks):
    answers = ranks.run(bits_of_a_sum)
    assert all(answer == answers[0] for answer in answers)


# ---- R38: layouts ----


def odd_layouts():
    base = torch.arange(24.0).reshape(4, 6)
    images = torch.arange(48.0).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last)
    refused = {
        "transposed": base.t(),
        "sliced": base[:, 1:3],
        "expanded": torch.ones(1).expand(4),
        "channels_last": images,
        "conjugated": torch.ones(3, dtype=torch.cfloat).conj(),
        "negated": torch.ones(3, dtype=torch.cfloat).conj().imag,
    }
    for name, tensor in refused.items():
        before = tensor.clone()
        try:
            dist.all_reduce(tensor)
        except (ValueError, RuntimeError):
            assert torch.equal(tensor, before), name
        else:  # then it must be right
            assert torch.equal(tensor, before * dist.get_world_size()), name
    part = torch.arange(24.0)[5:17]  # contiguous, at an odd offset
    dist.all_reduce(part)
    assert part.tolist() == [x * dist.get_world_size() for x in range(5, 17)]


def test_r38_layouts_are_right_or_refused(ranks):
    ranks.run(odd_layouts)


# ---- R45: memory that works hold ----


def steady_memory():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def calls(count):
        for _ in range(count):
            dist.all_reduce(torch.ones(100_000), async_op=True)  # the work is dropped at once
        dist.barrier()
        gc.collect()

    calls(200)  # what so many calls in flight need stays with the allocator
    before = resident()
    for _ in range(8):
        calls(200)
    return resident() - before


def test_r45_dropped_works_give_their_memory_back(ranks):
    # how many are in flight at once varies; the tensors of all calls would be 640 MB
    assert max(ranks.run(steady_memory)) < 200 << 20


# ---- R47: ends ----


def end_in_any_order(kind):
    first = dist.new_group(backend="smfar")
    second = dist.new_group(backend="smfar")
    tensor = smfar.empty(1000, device="cpu", group=second).fill_(1)
    dist.all_reduce(tensor, group=second)
    dist.all_reduce(torch.ones(3), group=first)
    backend = second._get_backend(torch.device("cpu"))
    begin = time.monotonic()
    if kind == "one rank":
        if dist.get_rank() == 1:
            backend.shutdown()
    elif kind == "twice":
        backend.shutdown()
        backend.shutdown()
    elif kind == "memory last":
        dist.destroy_process_group(second)
        assert tensor.tolist() == [float(dist.get_world_size())] * 1000
    elif kind == "after a failure":
        backend.abort()
        with pytest.raises(dist.DistBackendError):
            for _ in range(100):
                dist.all_reduce(tensor, group=second)
        backend.shutdown()
    dist.all_reduce(torch.ones(3), group=first)
    dist.destroy_process_group(first)
    assert time.monotonic() - begin < TIMEOUT / 2


@pytest.mark.parametrize("kind", ["one rank", "twice", "memory last", "after a failure"])
def test_r47_groups_end_in_any_order(ranks, kind):
    ranks.run(end_in_any_order, kind)


# "daemon": rank 0's interpreter is still ending when its thread's collective fails: rank 1 has left
EXIT = """
import sys, threading, time
import torch, torch.distributed as dist
import smfar
rank, kind, store = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("smfar", init_method=f"file://{store}", rank=rank, world_size=2)
tensor = smfar.empty(1000, device="cpu").fill_(1)
dist.all_reduce(tensor)
dist.barrier()
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(2)
if kind == "exception":
    raise SystemExit(7)
if kind == "daemon" and rank == 0:
    slow = Slow()
    threading.Thread(target=dist.all_reduce, args=(tensor,), daemon=True).start()
    time.sleep(0.3)
if kind == "daemon" and rank == 1:
    time.sleep(1)
"""


@pytest.mark.parametrize("kind", ["nothing", "exception", "daemon"])
def test_r47_an_interpreter_exits_without_destroying(tmp_path, kind):
    commands = [[sys.executable, "-c", EXIT, str(r), kind, str(tmp_path / "s")] for r in range(2)]
    processes = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=DEADLINE)
            assert process.returncode == (7 if kind == "exception" else 0), errors
    finally:
        for process in processes:
            process.kill()


# ---- R36: abort from another thread ----


def abort_from_another_thread():
    group = dist.new_group(backend="smfar", timeout=timedelta(seconds=TIMEOUT))
    dist.barrier(group=group)
    if dist.get_rank() != 0:
        with pytest.raises(dist.DistBackendError):
            while True:
                dist.all_reduce(torch.ones(10), group=group)
        return 0
    backend = group._get_backend(torch.device("cpu"))
    time.sleep(0.1)
    timer = threading.Timer(0.3, backend.abort)
    begin = time.monotonic()
    timer.start()
    # the others wait for this rank in collectives; this one waits in an allocation
    with pytest.raises(dist.DistBackendError, match="abort"):
        smfar.empty(10, device="cpu", group=group)
    return time.monotonic() - begin


def test_r36_abort_releases_whoever_waits(ranks):
    assert ranks.run(abort_from_another_thread)[0] < TIMEOUT / 2


def fork_and_end():
    """A forked child touches everything and exits normally; the parent goes on."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.barrier()
    child = os.fork()
    if child == 0:
        backend.abort()
        backend.shutdown()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [float(dist.get_world_size())] * 5
    return os.waitstatus_to_exitcode(status)


def test_r47_a_forked_child_ends_nothing_of_its_parent(ranks):
    assert ranks.run(fork_and_end) == [0] * 4
