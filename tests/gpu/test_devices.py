"""Which GPUs a process sees, in which order, is its own matter: ranks compare them by UUID."""

import pytest
import torch
import torch.distributed as dist
from harness import Ranks

import smfar

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def uuids():
    found = (torch.cuda.get_device_properties(i).uuid for i in range(torch.cuda.device_count()))
    return [f"GPU-{uuid}" for uuid in found]


def reduce_on(index):
    """Sums on GPU `index` of those that this rank sees; gives its UUID."""
    torch.cuda.set_device(index[dist.get_rank()])
    here = torch.device("cuda", torch.cuda.current_device())
    ranks = dist.get_world_size()
    for count in (17, 1_000_003):
        for tensor in (torch.empty(count, device=here), smfar.empty(count, device=here)):
            tensor.fill_(dist.get_rank() + 1)
            dist.all_reduce(tensor)
            assert (tensor == ranks * (ranks + 1) / 2).all()
    return f"GPU-{torch.cuda.get_device_properties(here).uuid}"


def run(visible, index):
    env_of = {rank: {"CUDA_VISIBLE_DEVICES": text} for rank, text in enumerate(visible)}
    made = Ranks(2, timeout=60, env_of=env_of)
    try:
        return made.run(reduce_on, index)
    finally:
        made.stop()


@two_gpus
def test_each_rank_sees_its_own_gpu_alone():
    first, second = uuids()[:2]
    assert run([first, second], [0, 0]) == [first, second]


@two_gpus
def test_ranks_see_the_gpus_in_another_order():
    first, second = uuids()[:2]
    assert run(["0,1", "1,0"], [0, 0]) == [first, second]
    assert run([f"{second},{first}", "0,1"], [1, 1]) == [first, second]


@two_gpus
def test_one_rank_sees_one_gpu_and_the_other_both():
    first, second = uuids()[:2]
    assert run([second, "0,1"], [0, 0]) == [second, first]


def test_both_ranks_name_the_same_gpu():
    (first, *_) = uuids()
    assert run([first, first], [0, 0]) == [first, first]
