"""Training on GPUs, as tests/python does it on CPUs: DDP, FSDP2, ZeRO, pipelines and tensor
parallel, beside gloo on CPU tensors or one process with the whole network."""

import on_gpu
import pytest
import torch
from test_collectives import device

RUNS = [
    *[("ddp", (variant,)) for variant in ("plain", "views", "static graph", "fp16", "power")],
    ("uneven", ()),
    *[("zero", (views,)) for views in (False, True)],
    ("fsdp", (torch.float32,)),
]
ALONE = ["shard_fully", "tensor_parallel"]


def name_of(run):
    return "-".join(map(str, (run[0], *run[1])))


@pytest.mark.parametrize("run", RUNS, ids=name_of)
def test_fifty_steps(ranks, run):
    """Losses as gloo's on CPUs, parameters equal to the bit on all ranks."""
    first, *others = ranks.run(on_gpu.train, device, "test_training", "compare", *run, deadline=120)
    assert all(torch.equal(first, other) for other in others)


def test_fsdp_in_bfloat16(ranks):
    """Losses as one process has them, on the same GPU."""
    first, *others = ranks.run(
        on_gpu.train,
        device,
        "test_training",
        "compare_alone",
        None,
        (torch.bfloat16,),
        deadline=120,
    )
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_pipelines(ranks, schedule):
    assert all(ranks.run(on_gpu.call, device, "test_training", "pipeline", (schedule,)))


@pytest.mark.parametrize("name", ALONE)
def test_beside_one_process(ranks, name):
    ranks.run(on_gpu.train, device, "test_frameworks", name)


def test_layouts(ranks):
    assert all(ranks.run(on_gpu.call, device, "test_frameworks", "redistribute", ()))
