"""Asynchronous works, futures, several groups, several threads."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
from data import expected_sum, numbers, same_bits

import smfar

COUNT = 3001


def reduced(iteration, ranks=None):
    return expected_sum(ranks or dist.get_world_size(), iteration, COUNT, torch.float32)


def mine(iteration):
    return numbers(dist.get_rank(), iteration, COUNT, torch.float32)


def many_at_once():
    tensors = [mine(i) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work.wait() is True
        assert work.is_completed()
        assert work.is_success()
        work.wait()  # again is harmless
    for i, tensor in enumerate(tensors):
        assert same_bits(tensor, reduced(i))


def test_works_may_be_waited_for_in_any_order(ranks):
    ranks.run(many_at_once)


def dropped_works():
    tensors = [mine(i) for i in range(5)]
    for tensor in tensors:
        dist.all_reduce(tensor.clone(), async_op=True)  # neither work nor tensor is kept
    dist.all_reduce(tensors[0])
    assert same_bits(tensors[0], reduced(0))


def test_a_dropped_work_keeps_its_tensors(ranks):
    ranks.run(dropped_works)


def futures():
    called = []
    tensor = mine(0)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    doubled = future.then(lambda done: called.append(1) or done.value()[0] * 2)
    assert torch.equal(doubled.wait(), reduced(0) * 2)
    assert called == [1]
    assert torch.equal(future.wait()[0], reduced(0))
    assert torch.equal(work.result()[0], tensor)


def test_futures_complete_with_the_tensors(ranks):
    ranks.run(futures)


def collective_in_callback():
    """A callback that starts the next collective must not lock up the thread that ran it."""
    second = mine(1)

    def next_one(done):
        return dist.all_reduce(second, async_op=True)

    work = dist.all_reduce(mine(0), async_op=True)
    work.get_future().then(next_one).wait().wait()
    assert same_bits(second, reduced(1))


def test_a_callback_may_start_a_collective(ranks):
    ranks.run(collective_in_callback)


def failing_callback():
    def fail(done):
        raise ValueError("from the callback")

    future = dist.all_reduce(mine(0), async_op=True).get_future().then(fail)
    with pytest.raises(Exception, match="from the callback"):
        future.wait()
    tensor = mine(1)
    dist.all_reduce(tensor)
    assert same_bits(tensor, reduced(1))


def test_a_failing_callback_fails_its_future_only(ranks):
    ranks.run(failing_callback)


def short_wait():
    """A wait with a limit that passes leaves the group usable."""
    from datetime import timedelta

    tensor = mine(0)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(dist.DistBackendError):
            work.wait(timedelta(milliseconds=50))
        store = dist.distributed_c10d._get_default_store()
        store.set("go", "1")
        work.wait()
    else:
        dist.distributed_c10d._get_default_store().get("go")
        dist.all_reduce(tensor)
    assert same_bits(tensor, reduced(0))


def test_a_wait_may_have_a_limit(ranks):
    ranks.run(short_wait)


def two_groups():
    other = dist.new_group(backend="smfar")
    tensors = [mine(i) for i in range(4)]
    works = [
        dist.all_reduce(tensor, group=other if i % 2 else None, async_op=True)
        for i, tensor in enumerate(tensors)
    ]
    for work in works:
        work.wait()
    for i, tensor in enumerate(tensors):
        assert same_bits(tensor, reduced(i))
    dist.destroy_process_group(other)


def test_two_groups_at_once(ranks):
    ranks.run(two_groups)


def subgroups():
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 2], backend="smfar"), dist.new_group([3, 1], backend="smfar")]
    pair = pairs[rank % 2]
    tensor = torch.tensor([10.0**rank])
    dist.all_reduce(tensor, group=pair)
    assert tensor.item() == (1010.0 if rank % 2 else 101.0)
    sent = torch.tensor([rank])
    dist.broadcast(sent, 2 + rank % 2, group=pair)
    assert sent.item() == 2 + rank % 2
    parts = [torch.empty(1) for _ in range(2)]
    dist.all_gather(parts, torch.tensor([float(rank)]), group=pair)
    members = dist.get_process_group_ranks(pair)
    assert [part.item() for part in parts] == sorted(members)
    inside = smfar.empty(5, device="cpu", group=pair).fill_(1)
    dist.all_reduce(inside, group=pair)
    assert inside.tolist() == [2.0] * 5
    dist.barrier(group=pair)


def test_subgroups(ranks):
    ranks.run(subgroups)


def from_two_threads():
    """Calls from two threads on a group each."""
    groups = [dist.new_group(backend="smfar") for _ in range(2)]
    wrong = []

    def work(number):
        for i in range(10):
            tensor = mine(100 * number + i)
            dist.all_reduce(tensor, group=groups[number])
            if not same_bits(tensor, reduced(100 * number + i)):
                wrong.append((number, i))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_threads(ranks):
    ranks.run(from_two_threads)


def wait_in_callbacks(last):
    """What a future's callback waits for: a collective that was called before, one that it has
    called itself, and a message."""
    n, me = dist.get_world_size(), dist.get_rank()
    if me == last:
        time.sleep(0.1)  # the others have added their callbacks by the end of what they wait for
    first = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    later = dist.all_reduce(torch.full((2,), 2.0), async_op=True).get_future()

    def nested(_):
        other = torch.ones(3)
        dist.all_reduce(other, async_op=True).get_future().then(lambda done: done.value()).wait()
        got = torch.empty(1)
        request = dist.irecv(got, (me - 1) % n)
        dist.send(torch.tensor([float(me)]), (me + 1) % n)
        request.get_future().wait()
        return [later.wait()[0][0].item(), other[0].item(), got.item()]

    assert first.then(nested).wait() == [2 * n, n, (me - 1) % n]


def test_callbacks_may_wait(ranks):
    for last in range(4):
        ranks.run(wait_in_callbacks, last)


def durations():
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    work.wait()
    with pytest.raises(RuntimeError, match="was not timed"):
        work._get_duration()
    dist.group.WORLD._enable_collectives_timing()
    late, store = dist.get_rank() == 0, dist.distributed_c10d._get_default_store()
    if late:
        store.wait(["called"])
        time.sleep(0.2)
    begin = time.monotonic()
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    if not late:
        store.set("called", "")
    work.wait()
    took = 1000 * (time.monotonic() - begin)
    assert 0 < work._get_duration() <= took
    assert late or work._get_duration() > 100


def test_durations(fresh_ranks):
    fresh_ranks(2).run(durations)
