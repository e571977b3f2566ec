"""smfar.sm_budget and smfar.algorithm: what a block of code wishes for, and for how long."""

import threading

import pytest
import torch
import torch.distributed as dist
from test_surface import moves
from test_values import broadcast_sizes, gather_sizes

import smfar

COUNT = 40_000
BIG = 1 << 22  # enough for several blocks


def explained(count=COUNT):
    return smfar.explain(count, device="cpu")


def calls(collective, algorithm):
    """How often this rank has called the collective by this algorithm."""
    return sum(
        path.calls
        for path in smfar.report(device="cpu")
        if (path.collective, path.algorithm) == (collective, algorithm)
    )


def summed(tensor):
    """Sums the tensor over the ranks, and says whether every element is right."""
    tensor.copy_(torch.arange(tensor.numel()) % 50 + dist.get_rank())
    dist.all_reduce(tensor)
    ranks = dist.get_world_size()
    expected = torch.arange(tensor.numel()) % 50 * ranks + sum(range(ranks))
    return torch.equal(tensor, expected.to(tensor.dtype))


def take_each():
    window = smfar.empty(COUNT, device="cpu")
    for name in ("twoshot_mc", "split_mc", "split_peer", "twoshot_peer"):
        before = calls("all_reduce", name)
        with smfar.algorithm(name):
            assert f"{name}" in explained() and "it was asked for" in explained()
            assert summed(window) and summed(torch.empty(COUNT))
        assert calls("all_reduce", name) == before + 2, name
        assert "it was asked for" not in explained()


def test_each_algorithm(ranks):
    ranks.run(take_each)


def pull():
    """Large parts that make no whole vectors are copied unless the kernel is asked for."""
    count, dtype = 70_001, torch.float32
    names = ("all_gather", "all_to_all", "broadcast", "gather", "scatter")
    before = [calls(name, "pull_peer") for name in names]
    for algorithm in (None, "pull_peer"):
        assert [calls(name, "pull_peer") for name in names] == before
        with smfar.algorithm(algorithm):
            moves(count, dtype)
            broadcast_sizes(dtype, [count])
            gather_sizes(dtype, [count])
    after = [calls(name, "pull_peer") for name in names]
    assert all(more > less for more, less in zip(after, before, strict=True)), after


def test_what_moves_by_the_kernel_that_pulls(ranks):
    ranks.run(pull)


def fall_back():
    default = explained()
    with smfar.algorithm("oneshot_peer"):
        assert "oneshot_peer" in explained(1000)
        assert explained() == default  # too large for it
    with smfar.algorithm("push_mc"):
        assert "push_mc" in explained(1000) and "asked for" in explained(1000)
        assert explained() == default
    with smfar.algorithm("oneshot_mc"):
        tensor = torch.full((1001,), dist.get_rank(), dtype=torch.int32)
        before = calls("all_reduce", "oneshot_mc")
        dist.all_reduce(tensor)
        assert (tensor == sum(range(dist.get_world_size()))).all()
        assert calls("all_reduce", "oneshot_mc") == before + 1
        with pytest.raises(NotImplementedError, match="different bits; ask for push_mc"):
            dist.all_reduce(torch.ones(10))
    with smfar.algorithm("split_mc"):
        tensor = torch.full((100,), 2, dtype=torch.int64)  # of which it has no kernel
        dist.all_reduce(tensor, op=dist.ReduceOp.PRODUCT)
        assert (tensor == 2 ** dist.get_world_size()).all()
    with smfar.algorithm(None):
        assert explained() == default


def test_what_an_algorithm_cannot_serve_takes_the_usual_way(ranks):
    ranks.run(fall_back)


def nest():
    default = explained(BIG)
    with smfar.sm_budget(1):
        one = explained(BIG)
        assert "1 block" in one and one != default
        with smfar.algorithm("split_peer"):
            assert "split_peer" in explained(BIG) and "1 block" in explained(BIG)
            with smfar.sm_budget(2), smfar.algorithm("twoshot_peer"):
                assert "twoshot_peer" in explained(BIG) and "2 blocks" in explained(BIG)
            assert "split_peer" in explained(BIG) and "1 block" in explained(BIG)
            assert summed(torch.empty(COUNT))
        assert explained(BIG) == one
        with pytest.raises(KeyError), smfar.algorithm("twoshot_peer"):
            raise KeyError
        assert explained(BIG) == one
    assert explained(BIG) == default


def test_nesting_and_exceptions(ranks):
    ranks.run(nest)


def refuse_values():
    default = explained(BIG)
    with pytest.raises(ValueError, match="sm_budget"):
        smfar.sm_budget(-1)
    with smfar.sm_budget(1):
        one = explained(BIG)
        with pytest.raises(ValueError, match="threeshot"), smfar.algorithm("threeshot"):
            raise AssertionError("entered")
        with pytest.raises(TypeError), smfar.sm_budget("two"):
            raise AssertionError("entered")
        assert explained(BIG) == one  # a refused wish changes nothing
    assert explained(BIG) == default


def test_wrong_values(ranks):
    ranks.run(refuse_values)


def wish_in_threads():
    default, seen = explained(), {}
    entered, looked = threading.Event(), threading.Event()

    def other():
        with smfar.sm_budget(1), smfar.algorithm("split_peer"):
            entered.set()
            looked.wait()
            seen["other"] = explained()
        seen["after"] = explained()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    seen["mine"] = explained()
    looked.set()
    thread.join()
    assert seen["mine"] == default and seen["after"] == default
    assert "split_peer" in seen["other"]


def test_a_wish_is_a_thread_s_own(ranks):
    ranks.run(wish_in_threads)


def differ_in_budget():
    with smfar.sm_budget(1 + dist.get_rank()):
        assert summed(torch.empty(COUNT)) and summed(smfar.empty(COUNT, device="cpu"))


def test_ranks_may_differ_in_their_budgets(ranks):
    ranks.run(differ_in_budget)


def do_without_sms():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    window = smfar.empty(ranks, COUNT, device="cpu")
    for tensor in (window, torch.empty(ranks, COUNT)):
        before = calls("barrier", "streams")
        with smfar.sm_budget(0):
            with pytest.raises(NotImplementedError, match="copy engines cannot add"):
                dist.all_reduce(tensor)
            tensor.fill_(-1)
            tensor[rank] = rank
            dist.all_gather_into_tensor(tensor.view(-1), tensor[rank])
            assert all((tensor[r] == r).all() for r in range(ranks))
            tensor[0].fill_(rank + 5)
            dist.broadcast(tensor[0], 1)
            assert (tensor[0] == 6).all()
            received = torch.empty(ranks * 3)
            dist.all_to_all_single(received, torch.full((ranks * 3,), float(rank)))
            assert received.tolist() == [float(r) for r in range(ranks) for _ in range(3)]
            received.zero_()
            sent = torch.full((ranks, 3), 1.0 + rank)
            dist.all_to_all(list(received.view(ranks, 3)), list(sent))
            assert received.tolist() == [1.0 + r for r in range(ranks) for _ in range(3)]
            dist.barrier()
        assert calls("barrier", "streams") == before + 1
        assert summed(tensor[0].clone())


def test_no_sms(ranks):
    ranks.run(do_without_sms)


def gather_by_copy_engines():
    group = dist.new_group(backend="smfar", pg_options=smfar.Options(copy_engines=True))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for count in (1 << 18, 1 << 10):  # of 4 bytes: enough, and not
        window = smfar.empty(ranks, count, device="cpu", group=group)
        window[rank] = rank
        dist.all_gather_into_tensor(window.view(-1), window[rank], group=group)
        assert all((window[r] == r).all() for r in range(ranks))
        tensor = torch.full((count,), 1.0)
        dist.all_reduce(tensor, group=group)
        assert (tensor == ranks).all()
    blocks = {
        path.algorithm: path.blocks
        for path in smfar.report(group, device="cpu")
        if path.collective == "all_gather"
    }
    assert blocks.pop("pull_peer") == 1
    assert list(blocks.values()) == [0]  # by copies


def test_copy_engines(ranks):
    ranks.run(gather_by_copy_engines)


def work_later():
    with smfar.algorithm("split_mc"):
        works = [dist.all_reduce(smfar.empty(COUNT, device="cpu").fill_(1), async_op=True)]
    tensor = torch.ones(COUNT)
    works.append(dist.all_reduce(tensor, async_op=True))
    for work in works:
        work.wait()
        assert work.is_completed()
    assert (tensor == dist.get_world_size()).all()


def test_a_work_outlives_the_wish(ranks):
    ranks.run(work_later)
