"""A window that grows, and tensors of other allocators in it: memory of another group's window is
memory that the driver can share. tests/gpu/test_memory.py has PyTorch's own allocator.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from data import expected_sum, numbers, same_bits
from harness import set_deadline

import smfar

MIB = 1 << 20
COUNT = 300_001


def staged(group=None):
    return sum(path.staged_bytes for path in smfar.report(group, device="cpu"))


def check_sum(tensor, iteration, group=None):
    tensor.copy_(numbers(dist.get_rank(), iteration, tensor.numel(), tensor.dtype))
    dist.all_reduce(tensor, group=group)
    want = expected_sum(dist.get_world_size(), iteration, tensor.numel(), tensor.dtype)
    assert same_bits(tensor, want), iteration


def small_group():
    return dist.new_group(pg_options=smfar.Options(window_bytes=4 * MIB))


def reserve():
    """Before the first collective, and when the window is full."""
    group = small_group()
    smfar.reserve(6 * MIB, group, "cpu")
    first = smfar.empty(6 * MIB // 4, device="cpu", group=group)
    with pytest.raises(torch.OutOfMemoryError, match="smfar.reserve"):
        smfar.empty(4 * MIB, device="cpu", group=group)
    smfar.reserve(16 * MIB, group=group, device="cpu")
    second = smfar.empty(4 * MIB, device="cpu", group=group)
    for iteration, tensor in enumerate((first, second)):
        check_sum(tensor, iteration, group)
    assert staged(group) == 0
    assert "twoshot_mc" in smfar.explain(second, group=group)
    smfar.reserve(0, group, "cpu")
    with pytest.raises(ValueError, match="0 or more"):
        smfar.reserve(-1, group, "cpu")
    with pytest.raises(torch.OutOfMemoryError, match="can grow to"):
        smfar.reserve(1 << 50, group, "cpu")
    check_sum(second, 7, group)


def test_reserve(ranks):
    ranks.run(reserve)


def reserve_unequal():
    group = small_group()
    bytes = 8 * MIB if dist.get_rank() else 4 * MIB
    with pytest.raises(dist.DistBackendError, match="rank 0 asks for 4194304 bytes, rank 1 for"):
        smfar.reserve(bytes, group, "cpu")
    smfar.reserve(8 * MIB, group, "cpu")


def test_ranks_must_reserve_the_same(ranks):
    ranks.run(reserve_unequal)


def collectives(tensor, group):
    """In place and not, of parts and of the whole."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    check_sum(tensor, 3, group)
    part = tensor.numel() // ranks
    whole = tensor[: part * ranks]
    tensor.fill_(rank)
    dist.all_gather_into_tensor(whole, whole[rank * part : (rank + 1) * part], group=group)
    assert torch.equal(whole, torch.arange(ranks).repeat_interleave(part).to(tensor.dtype))
    tensor.fill_(rank)
    dist.broadcast(tensor, group_src=2, group=group)
    assert torch.all(tensor == 2)
    for place in (rank, 0):  # its own part, and one that rank 0 is to read
        tensor.fill_(3)
        out = whole[place * part : (place + 1) * part]
        dist.reduce_scatter_tensor(out, whole, group=group)
        assert torch.all(out == 3 * ranks)


def register(algorithm):
    """Of the other group's window; nothing is staged but where that is always so."""
    group = small_group()
    begin = 4096 * dist.get_rank()  # at unequal places
    tensor = smfar.empty(2 * COUNT, device="cpu")[begin : begin + COUNT]
    with smfar.algorithm(algorithm):
        with smfar.register(tensor, group):
            check_sum(tensor, 1, group)
            assert "no staging" in smfar.explain(tensor, group=group)
            collectives(tensor, group)
        paths = smfar.report(group, device="cpu")
        assert not any(path.staged_bytes for path in paths if path.collective == "all_reduce")
        check_sum(tensor, 2, group)
        assert "copied through a staging slot" in smfar.explain(tensor, group=group)


@pytest.mark.parametrize("algorithm", [None, "twoshot_peer", "split_peer", "split_mc"])
def test_register(ranks, algorithm):
    ranks.run(register, algorithm)


def register_inside():
    tensor = smfar.empty(COUNT, device="cpu")
    found = smfar.register(tensor)
    found.deregister()
    found.deregister()
    collectives(tensor, None)


def test_what_lies_in_the_window_needs_nothing(ranks):
    ranks.run(register_inside)


def deregister_again():
    """What was refused can be asked for again."""
    group = small_group()
    tensor = smfar.empty(COUNT, device="cpu")
    found = [smfar.register(tensor, group), smfar.register(tensor[1:], group)]
    with pytest.raises(dist.DistBackendError, match="rank 0 asks for number 1, rank 1 for 2"):
        found[dist.get_rank() % 2].deregister()
    for one in found:  # each holds until its own end
        assert "no staging" in smfar.explain(tensor[1:], group=group)
        one.deregister()
    assert "copied through a staging slot" in smfar.explain(tensor, group=group)


def test_deregister_after_a_refusal(ranks):
    ranks.run(deregister_again)


def raise_inside():
    """On one rank, which then is in no collective."""
    group = small_group()
    tensor = smfar.empty(COUNT, device="cpu")
    registered = smfar.register(tensor, group)
    if dist.get_rank() == 1:
        with pytest.raises(ZeroDivisionError), registered:
            raise ZeroDivisionError
        assert "no staging" in smfar.explain(tensor, group=group)
    registered.deregister()


def test_an_exception_is_not_kept_back(ranks):
    ranks.run(raise_inside)


def refuse():
    group = small_group()
    with pytest.raises(NotImplementedError, match="smfar.empty or smfar.mem_pool"):
        smfar.register(torch.empty(COUNT), group)
    shared = smfar.empty(COUNT, device="cpu")
    mine = shared if dist.get_rank() != 2 else torch.empty(COUNT)
    with pytest.raises(NotImplementedError, match="failed on rank 2"):
        smfar.register(mine, group)
    with pytest.raises(ValueError, match="gaps"):
        smfar.register(shared[::2], group)
    with pytest.raises(dist.DistBackendError, match="rank 0 asks for"):
        smfar.register(shared[dist.get_rank() :], group)
    check_sum(shared, 5, group)


def test_memory_that_cannot_be_shared(ranks):
    ranks.run(refuse)


def empty_after_looking():
    """At the lowest place that is free: a reserve looks for what all ranks have given back."""
    smfar.reserve(0, device="cpu")
    return smfar.empty(COUNT, device="cpu")


def keep():
    """The memory is nobody else's as long as others may write to it."""
    group = small_group()
    tensor = empty_after_looking()
    place, registered = tensor.data_ptr(), smfar.register(tensor, group)
    del tensor
    assert empty_after_looking().data_ptr() != place
    registered.deregister()
    again = empty_after_looking()
    assert again.data_ptr() == place
    registered = smfar.register(again, group)
    check_sum(again, 4, group)
    dist.destroy_process_group(group)
    registered.deregister()  # nothing is left to do


def test_kept_until_it_is_deregistered(ranks):
    ranks.run(keep)


def deregister_in_threads():
    group = small_group()
    tensor = smfar.empty(COUNT, device="cpu")
    for _ in range(20):
        registered = smfar.register(tensor, group)
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(registered.deregister) for _ in range(4)]:
                done.result()
    check_sum(tensor, 5, group)


def test_threads_that_deregister_at_once(ranks):
    ranks.run(deregister_in_threads)


def fail_with_a_late_rank():
    """Rank 1's stream has been left in a collective that failed, and it has not ended the group."""
    group = small_group()
    tensor = empty_after_looking()
    place, registered = tensor.data_ptr(), smfar.register(tensor, group)
    set_deadline(2, group)
    if dist.get_rank() == 1:
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(tensor, group=group)
    dist.barrier()
    del tensor, registered
    if dist.get_rank() == 0:
        dist.destroy_process_group(group)
        del group
    dist.barrier()
    if dist.get_rank() == 1:
        dist.destroy_process_group(group)
        del group
    assert empty_after_looking().data_ptr() != place  # rank 0 has kept it


def test_kept_where_a_device_may_still_write(fresh_ranks):
    fresh_ranks(2).run(fail_with_a_late_rank)
