"""Fifty steps of training over smfar: losses beside gloo's, and parameters equal to the bit on all
ranks. DDP with PyTorch's communication hooks, FSDP2 (sharded, hybrid, bfloat16), ZeRO's optimizer,
pipeline schedules."""

import copy
import functools

import pytest
import torch
import torch.distributed as dist
from data import home
from torch import nn
from torch.distributed.algorithms import Join
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.parallel import DistributedDataParallel

STEPS = 50
TWO_AND_FOUR = pytest.mark.parametrize("ranks", [2, 4], indirect=True)


def network(group=None):
    torch.manual_seed(7)
    made = nn.Sequential(
        nn.Linear(16, 48),
        nn.LayerNorm(48),
        nn.GELU(),
        nn.Linear(48, 48),
        nn.GELU(),
        nn.Linear(48, 5),
    )
    return made.to(home(group))


def batch(rank, step, model):
    """Something that can be learnt: which of the first five inputs is the largest."""
    inputs = torch.randn(24, 16, generator=torch.Generator().manual_seed(1000 * step + rank))
    device = next(model.parameters()).device
    return inputs.to(device), inputs[:, :5].argmax(1).to(device)


def train(model, optimizer, group, dtype=torch.float32):
    """The mean loss over ranks, step by step."""
    losses = []
    for step in range(STEPS):
        inputs, labels = batch(dist.get_rank(), step, model)
        loss = nn.functional.cross_entropy(model(inputs.to(dtype)).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.SUM, group=group)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def flat(parameters):
    return torch.cat([p.detach().flatten() for p in parameters])


@functools.cache
def gloo():
    """One for all tests: DTensor keeps what it knows of a mesh for the next one like it, with the
    name of the first one's group, also when that has been destroyed (torch 2.11)."""
    return dist.new_group(backend="gloo")


def compare(run, *arguments):
    """Runs over smfar and over gloo; what smfar's run ended with."""
    reference = gloo()
    losses, parameters = run(dist.group.WORLD, *arguments)
    theirs, _ = run(reference, *arguments)
    assert losses[-1] < 0.8 * losses[0], losses
    assert losses == pytest.approx(theirs, rel=0.01)
    return parameters.cpu()


def run_alike(ranks, *arguments):
    first, *others = ranks.run(compare, *arguments)
    assert all(torch.equal(first, other) for other in others)


# ---- DDP ----


def ddp(group, variant):
    # PowerSGD's hook waits for a GPU where there is one: then the reference is there, too
    place = home() if variant == "power" else home(group)
    model = DistributedDataParallel(
        network(group).to(place),
        process_group=group,
        # PowerSGD calls collectives in futures' callbacks: those of several buckets have no order
        bucket_cap_mb=25 if variant == "power" else 0.005,
        static_graph=variant == "static graph",
        gradient_as_bucket_view=variant == "views",
    )
    if variant == "fp16":
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    if variant == "power":
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=4, start_powerSGD_iter=5
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return train(model, optimizer, group), flat(model.parameters())


@TWO_AND_FOUR
@pytest.mark.parametrize("variant", ["plain", "views", "static graph", "fp16", "power"])
def test_ddp(ranks, variant):
    run_alike(ranks, ddp, variant)


def uneven(group):
    """Rank r has r batches more than rank 0: the others join in with zeros meanwhile."""
    model = DistributedDataParallel(network(group), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, process_group=group, lr=0.1
    )
    losses = []
    with Join([model, optimizer]):
        for step in range(STEPS + dist.get_rank()):
            inputs, labels = batch(dist.get_rank(), step, model)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, flat(model.parameters())


@TWO_AND_FOUR
def test_join_with_uneven_inputs(ranks):
    run_alike(ranks, uneven)


def zero(group, parameters_as_bucket_view):
    model = DistributedDataParallel(network(group), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        torch.optim.Adam,
        process_group=group,
        parameters_as_bucket_view=parameters_as_bucket_view,
        lr=0.01,
    )
    losses = train(model, optimizer, group)
    optimizer.consolidate_state_dict(to=0)  # broadcasts of objects
    if dist.get_rank() == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))
    return losses, flat(model.parameters())


@TWO_AND_FOUR
@pytest.mark.parametrize("views", [False, True])
def test_zero_redundancy_optimizer(ranks, views):
    run_alike(ranks, zero, views)


# ---- FSDP2 ----


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def descent(parameters):
    """Knows how large gradients are, where Adam knows hardly more than their signs."""
    return torch.optim.SGD(parameters, lr=0.5)


def fsdp(group, dtype, optimizer_of=adam):
    mesh = DeviceMesh.from_group(group, home(group).type)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    model = network(group)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = optimizer_of(model.parameters())
    losses = train(model, optimizer, group, dtype)
    return losses, flat(p.full_tensor() for p in model.parameters())


@TWO_AND_FOUR
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fsdp(ranks, dtype):
    run_alike(ranks, fsdp, dtype)


def alone(dtype):
    """The losses of the same steps in one process: gradients of `dtype`, averaged in float32."""
    ranks, losses, model = dist.get_world_size(), [], network()
    optimizer = descent(model.parameters())
    for step in range(STEPS):
        parts = [copy.deepcopy(model).to(dtype) for _ in range(ranks)]
        optimizer.zero_grad()
        losses.append(0.0)
        for rank, part in enumerate(parts):
            inputs, labels = batch(rank, step, model)
            loss = nn.functional.cross_entropy(part(inputs.to(dtype)).float(), labels)
            loss.backward()
            losses[-1] += loss.item() / ranks
        for whole, *each in zip(*(one.parameters() for one in (model, *parts)), strict=True):
            whole.grad = sum(one.grad.float() for one in each) / ranks
        optimizer.step()
    return losses


def compare_alone(dtype):
    """What FSDP over smfar ended with. Unlike gloo's, these losses are of the same device, where
    bfloat16 is rounded the same way."""
    losses, parameters = fsdp(dist.group.WORLD, dtype, descent)
    assert losses[-1] < 0.8 * losses[0], losses
    assert losses == pytest.approx(alone(dtype), rel=0.005)
    return parameters.cpu()


@TWO_AND_FOUR
def test_fsdp_beside_one_process(ranks):
    first, *others = ranks.run(compare_alone, torch.bfloat16)
    assert all(torch.equal(first, other) for other in others)


def hybrid():
    """Shards inside pairs, replicas across them: each shard must be its replica's to the bit."""
    mesh = init_device_mesh(home().type, (2, 2), mesh_dim_names=("replicate", "shard"))
    model = network()
    fully_shard(model, mesh=mesh)
    losses = train(model, torch.optim.AdamW(model.parameters(), lr=0.01), dist.group.WORLD)
    assert losses[-1] < 0.8 * losses[0]
    return losses, flat(p.to_local() for p in model.parameters()).cpu()


def test_hybrid_shards(ranks):
    losses, shards = zip(*ranks.run(hybrid), strict=True)
    assert torch.equal(shards[0], shards[2]) and torch.equal(shards[1], shards[3])
    (alone,) = {tuple(one) for one in losses}
    assert alone == pytest.approx(ranks.run(compare_hybrid)[0], rel=0.01)


def compare_hybrid():
    return ddp(gloo(), "plain")[0]


# ---- pipelines ----

MICROBATCHES = 8
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


def layers(count):
    torch.manual_seed(3)
    return [nn.Sequential(nn.Linear(12, 12), nn.Tanh()).to(home()) for _ in range(count)]


def distance(output, target):
    return (output - target).square().mean()


def pipeline(name):
    """This rank's parameters after some steps, and those of the same network in one process."""
    n, me = dist.get_world_size(), dist.get_rank()
    chunks = 2 if name == "interleaved" else 1
    whole = nn.Sequential(*layers(n * chunks))
    mine = layers(n * chunks)[me::n]  # stages go round
    stages = [PipelineStage(mine[i], me + i * n, n * chunks, home()) for i in range(chunks)]
    schedule = SCHEDULES[name](
        stages if chunks > 1 else stages[0], n_microbatches=MICROBATCHES, loss_fn=distance
    )
    ours = torch.optim.SGD([p for part in mine for p in part.parameters()], lr=0.2)
    theirs = torch.optim.SGD(whole.parameters(), lr=0.2)
    for step in range(10):
        generator = torch.Generator().manual_seed(step)
        inputs, target = torch.randn(2, 4 * MICROBATCHES, 12, generator=generator).to(home())
        losses = []
        arguments = (inputs,) if me == 0 else ()
        last = {"target": target, "losses": losses} if me == n - 1 else {}
        schedule.step(*arguments, **last)
        loss = distance(whole(inputs), target)
        loss.backward()
        if losses:
            torch.testing.assert_close(torch.stack(losses).mean(), loss, rtol=1e-4, atol=1e-6)
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    for i, part in enumerate(mine):
        wanted = flat(whole[me + i * n].parameters())
        torch.testing.assert_close(flat(part.parameters()), wanted, rtol=1e-4, atol=1e-5)


@TWO_AND_FOUR
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_pipeline_schedules(ranks, name):
    ranks.run(pipeline, name)
