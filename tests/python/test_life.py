"""Groups and processes: options, first calls, end and new beginning, fork."""

import copy
import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness import TIMEOUT

import smfar


def test_options_are_checked_and_copied():
    options = smfar.Options(sm_budget=3, multicast=False, window_bytes=1 << 20)
    for twin in (copy.copy(options), copy.deepcopy(options)):
        assert (twin.sm_budget, twin.multicast, twin.window_bytes) == (3, False, 1 << 20)
    assert smfar.Options(timeout=timedelta(seconds=5)).timeout == timedelta(seconds=5)
    for wrong in ({"sm_budget": 0}, {"window_bytes": -1}, {"timeout": timedelta(0)}):
        with pytest.raises(ValueError):
            smfar.Options(**wrong)


def test_backend_is_registered():
    assert "smfar" in dist.Backend.backend_list
    assert dist.Backend.backend_capability["smfar"] == ["cpu", "cuda"]


def test_a_shim_for_another_torch_is_refused(monkeypatch):
    from smfar import backend

    backend.shim.cache_clear()
    monkeypatch.setattr(torch, "__version__", "2.4.0")
    with pytest.raises(ImportError, match="built for torch"):
        backend.shim()
    backend.shim.cache_clear()


TAKE_A_GROUP = [
    lambda group: smfar.empty(3, device="cpu", group=group),
    lambda group: smfar.explain(3, group=group, device="cpu"),
    lambda group: smfar.ops.all_reduce_(torch.ones(3), group=group),
    lambda group: smfar.ops.all_reduce_rms_norm(torch.ones(3), group=group),
]


def test_needs_a_process_group():
    for call in TAKE_A_GROUP:
        with pytest.raises(ValueError, match="init_process_group"):
            call(None)


def call_with_others_groups():
    group = dist.new_group([0], backend="smfar")
    if dist.get_rank() == 0:
        return
    for call in TAKE_A_GROUP:
        with pytest.raises(ValueError, match="this rank is no member of the group"):
            call(group)


def test_a_rank_that_is_no_member_of_the_group(ranks):
    ranks.run(call_with_others_groups)


def explain_what_has_ended():
    group = dist.new_group(backend="smfar")
    backend = group._get_backend(torch.device("cpu"))
    with pytest.raises(dist.DistBackendError, match="has not used cpu yet"):
        backend._describe(torch.device("cpu"))
    dist.all_reduce(torch.ones(3), group=group)
    dist.destroy_process_group(group)
    with pytest.raises(dist.DistBackendError, match="was shut down"):
        backend._describe(torch.device("cpu"))


def test_a_group_that_has_ended_says_so(ranks):
    ranks.run(explain_what_has_ended)


def ask_for_too_large_a_window():
    options = smfar.Options(window_bytes=1 << 55)
    group = dist.new_group(backend="smfar", pg_options=options)
    with pytest.raises(torch.OutOfMemoryError, match=rf"{1 << 55} bytes: window_bytes or SMFAR"):
        dist.all_reduce(torch.ones(3), group=group)


def test_a_window_that_memory_does_not_hold(ranks):
    ranks.run(ask_for_too_large_a_window)


def initialise(folder, turn, **options):
    dist.init_process_group(
        "smfar",
        init_method=f"file://{folder}/store{turn}",
        rank=int(os.environ["TEST_RANK"]),
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT),
        **options,
    )


def barrier_first(folder):
    initialise(folder, "barrier")
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.destroy_process_group()


def end_and_begin_again(folder):
    for turn in range(3):
        initialise(folder, turn, pg_options=smfar.Options(sm_budget=2))
        tensor = smfar.empty(100, device="cpu").fill_(1)
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        assert tensor.tolist() == [2.0] * 100  # memory of an ended group stays while it is held
        with pytest.raises(ValueError):
            smfar.describe()


def begin_again_on_one_store(folder):
    """As under torchrun, whose store outlives the groups."""
    store = dist.FileStore(f"{folder}/shared", 2)
    rank = int(os.environ["TEST_RANK"])
    for _ in range(3):
        dist.init_process_group("smfar", store=store, rank=rank, world_size=2)
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0] * 10
        dist.destroy_process_group()


def leave_without_destroying(folder):
    initialise(folder, "left")
    tensor = torch.ones(10)
    dist.all_reduce(tensor, async_op=True).wait()


@pytest.mark.parametrize(
    "function",
    [barrier_first, end_and_begin_again, begin_again_on_one_store, leave_without_destroying],
)
def test_begin_and_end(fresh_ranks, tmp_path, function):
    env_of = {rank: {"TEST_RANK": str(rank)} for rank in range(2)}
    ranks = fresh_ranks(2, init=False, env_of=env_of)
    ranks.run(function, str(tmp_path))
    processes = list(ranks.processes)
    ranks.stop()
    assert [process.exitcode for process in processes] == [0, 0]


def exit_with_a_tensor_in_hand():
    """Rank 1 leaves in good order, keeps a tensor and a Work, and its process ends."""
    tensor = smfar.empty(100, device="cpu").fill_(1)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        assert tensor.tolist() == [2.0] * 100
        work.wait()
        os._exit(0)  # the tensor and the Work are still there
    time.sleep(0.5)  # ten looks of the watchdog
    with pytest.raises(dist.DistBackendError, match="rank 1 has left the group"):
        dist.all_reduce(tensor)


def test_an_exit_after_destroy_is_no_death(fresh_ranks):
    fresh_ranks(2).run(exit_with_a_tensor_in_hand, dies=(1,))


def wrong_options():
    with pytest.raises(TypeError, match=r"smfar\.Options"):
        dist.new_group(backend="smfar", pg_options=object())


def test_options_of_another_kind(ranks):
    ranks.run(wrong_options)


def forked():
    dist.barrier()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            dist.all_reduce(torch.ones(3))
        except dist.DistBackendError as error:
            status = 2 if "forked child" in str(error) else 3
        try:
            work.wait()
            status = 4
        except dist.DistBackendError:
            pass
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    dist.barrier()


def test_a_forked_child_gets_an_error(ranks):
    ranks.run(forked)


def timeouts():
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    own = dist.new_group(
        backend="smfar",
        timeout=timedelta(seconds=9),
        pg_options=smfar.Options(timeout=timedelta(seconds=7)),
    )._get_backend(torch.device("cpu"))
    return backend.options.timeout.seconds, own.options.timeout.seconds


def test_timeouts_come_from_the_group_or_the_options(ranks):
    assert ranks.run(timeouts) == [(TIMEOUT, 7)] * 4


def window_tensors():
    tensor = smfar.empty(3, 4, dtype=torch.bfloat16, device="cpu")
    assert tensor.shape == (3, 4) and tensor.dtype == torch.bfloat16
    assert smfar.empty((2, 2), device="cpu").shape == (2, 2)
    assert smfar.empty(0, device="cpu").numel() == 0
    assert tensor.data_ptr() % 512 == 0
    with pytest.raises(torch.OutOfMemoryError):
        smfar.empty(1 << 40, device="cpu")
    for _ in range(8):  # a fifth of the window each time: freed memory comes back
        smfar.empty(13 << 20, device="cpu").fill_(1)


def test_window_tensors(ranks):
    ranks.run(window_tensors)


def allocation_hook():
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu"))
    tensor.fill_(1)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [4.0] * 1000
    # larger than the window: ordinary memory, on every rank, and no error
    large = backend.allocate_tensor(1 << 28, dtype=torch.float32, device=torch.device("cpu"))
    assert large.numel() == 1 << 28
    part = large[:1000].fill_(1)
    dist.all_reduce(part)
    assert part.tolist() == [4.0] * 1000


def test_tensors_allocated_for_communication(ranks):
    ranks.run(allocation_hook)


def sequence_numbers():
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    assert backend._get_sequence_number_for_group() == before + 2
    assert backend.name() == "smfar"


def test_sequence_numbers(ranks):
    ranks.run(sequence_numbers)
