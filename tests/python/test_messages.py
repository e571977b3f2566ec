"""send, recv and their kin: patterns of pipelines, tags, any source, futures, failures."""

import time

import pytest
import torch
import torch.distributed as dist
from harness import TIMEOUT, set_deadline


def size():
    return dist.get_world_size()


def rank():
    return dist.get_rank()


def ring(count):
    n, me = size(), rank()
    sent = torch.full((count,), float(me))
    got = torch.empty(count)
    works = [dist.isend(sent, (me + 1) % n), dist.irecv(got, (me - 1) % n)]
    for work in works:
        work.wait()
        assert work.is_completed()
    assert (got == (me - 1) % n).all()


@pytest.mark.parametrize("count", [0, 1, 1000, 1_000_003])
def test_a_ring(ranks, count):
    ranks.run(ring, count)


def batch():
    n, me = size(), rank()
    got = [torch.full((100,), -1.0) for _ in range(n)]
    sent = [torch.full((100,), float(10 * me + r)) for r in range(n)]
    operations = []
    for r in range(n):
        if r != me:
            operations.append(dist.P2POp(dist.isend, sent[r], r))
            operations.append(dist.P2POp(dist.irecv, got[r], r))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for r in range(n):
        assert (got[r] == (10 * r + me if r != me else -1)).all()


def test_batch_isend_irecv(ranks):
    ranks.run(batch)


def pipeline():
    """One forward, one backward, as a pipeline schedule has it, beside all-reduces."""
    n, me = size(), rank()
    for micro in range(8):
        x = torch.full((5000,), float(micro))
        if me > 0:
            dist.recv(x, me - 1)
        x += 1
        sent = dist.isend(x.clone(), me + 1) if me < n - 1 else None
        reduced = dist.all_reduce(torch.ones(10), async_op=True)
        if me == n - 1:
            assert (x == micro + n).all()
        back = torch.empty(5000)
        if me < n - 1:
            dist.recv(back, me + 1, tag=1)
            assert (back == micro + n).all()
        else:
            back = x.clone()
        if me > 0:
            dist.send(back, me - 1, tag=1)
        if sent:
            sent.wait()
        reduced.wait()


def test_a_pipeline(ranks):
    ranks.run(pipeline)


def tags():
    if rank() == 0:
        works = [dist.isend(torch.tensor([tag]), 1, tag=tag) for tag in range(10)]
        for work in works:
            work.wait()
    elif rank() == 1:
        for tag in reversed(range(10)):
            got = torch.tensor([-1])
            assert dist.recv(got, 0, tag=tag) == 0
            assert got.item() == tag


def test_tags_in_any_order(ranks):
    ranks.run(tags)


def any_source():
    if rank() != 0:
        dist.send(torch.tensor([float(rank())]), 0)
        return
    seen = set()
    for _ in range(size() - 1):
        got = torch.zeros(1)
        source = dist.recv(got)
        assert got.item() == source
        seen.add(source)
    assert seen == set(range(1, size()))


def test_any_source(ranks):
    ranks.run(any_source)


def futures():
    n, me = size(), rank()
    got = torch.zeros(3)
    work = dist.irecv(got, (me - 1) % n)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    dist.send(torch.full((3,), float(me)), (me + 1) % n)
    assert doubled.wait().tolist() == [2.0 * ((me - 1) % n)] * 3
    # a message that is not there yet holds up neither collectives nor their futures
    late = dist.irecv(torch.zeros(1), (me - 1) % n, tag=5)
    reduced = dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    assert reduced[0].item() == n
    assert not late.is_completed()
    dist.barrier()  # nobody sends before all have looked
    dist.send(torch.ones(1), (me + 1) % n, tag=5)
    late.wait()


def test_futures(ranks):
    ranks.run(futures)


def drop():
    """The memory of a message lasts as long as the message."""
    n, me = size(), rank()
    for _ in range(20):
        dist.isend(torch.full((100_000,), float(me)), (me + 1) % n)
    got = torch.empty(100_000)
    for _ in range(20):
        dist.recv(got, (me - 1) % n)
        assert (got == (me - 1) % n).all()


def test_works_that_nobody_keeps(ranks):
    ranks.run(drop)


def objects():
    n, me = size(), rank()
    if me == 0:
        dist.send_object_list([{"a": 1}, "text"], 1)
    elif me == 1:
        got = [None, None]
        dist.recv_object_list(got, 0)
        assert got == [{"a": 1}, "text"]
    gathered = [None] * n if me == 0 else None
    dist.gather_object({"rank": me}, gathered, dst=0)
    if me == 0:
        assert gathered == [{"rank": r} for r in range(n)]
    got = [None]
    dist.scatter_object_list(got, [f"for {r}" for r in range(n)] if me == 0 else None, src=0)
    assert got == [f"for {me}"]
    everything = [None] * n
    dist.all_gather_object(everything, ("x" * me, me))
    assert everything == [("x" * r, r) for r in range(n)]


def test_objects(ranks):
    ranks.run(objects)


# ---- failures ----


def unequal_sizes():
    if rank() > 1:
        return
    tensor = torch.zeros(4 if rank() == 0 else 3)
    begin = time.monotonic()
    with pytest.raises(dist.DistBackendError, match="rank 0 sends 16 bytes.*rank 1 receives 12"):
        dist.send(tensor, 1) if rank() == 0 else dist.recv(tensor, 0)
    assert time.monotonic() - begin < TIMEOUT / 2


def test_unequal_sizes_fail_both_sides(fresh_ranks):
    fresh_ranks(2).run(unequal_sizes)


def nobody_receives():
    dist.barrier()
    set_deadline(2)
    if rank() == 0:
        work = dist.isend(torch.zeros(4), 1, tag=3)
        with pytest.raises(dist.DistBackendError, match="with tag 3 to rank 1.*within"):
            work.wait()
        with pytest.raises(Exception, match="smfar"):
            work.get_future().wait()


def test_a_message_that_nobody_wants(fresh_ranks):
    fresh_ranks(2).run(nobody_receives)


def end_with_pending():
    dist.irecv(torch.zeros(4), (rank() + 1) % size())
    begin = time.monotonic()
    dist.destroy_process_group()
    return time.monotonic() - begin


def test_a_pending_receive_does_not_keep_the_group(fresh_ranks):
    assert max(fresh_ranks(2).run(end_with_pending)) < TIMEOUT / 2
