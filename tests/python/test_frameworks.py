"""What is built on torch.distributed, over smfar, against gloo or one process: DDP's variants,
FSDP, tensor parallel, functional collectives, checkpoints, meshes, splits, profiler, debugging."""

import copy
import os
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from data import home
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import smfar

TWO_AND_FOUR = pytest.mark.parametrize("ranks", [2, 4], indirect=True)


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12)).to(home())


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(6, 12, generator=generator).to(home())


def parameters_of(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


# ---- DDP ----


def train(group, variant):
    options = {"static_graph": variant == "static", "process_group": group}
    model = DistributedDataParallel(network(), **options)
    if variant == "hook":
        model.register_comm_hook(group, sum_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        if variant == "no_sync" and step % 2 == 0:
            with model.no_sync():
                model(batch(dist.get_rank(), step)).square().mean().backward()
            continue
        model(batch(dist.get_rank(), step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters_of(model)


def sum_hook(group, bucket):
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0] / dist.get_world_size())


def join_uneven(group):
    model = DistributedDataParallel(network(), process_group=group)
    with model.join():
        for step in range(2 + dist.get_rank()):
            model(batch(dist.get_rank(), step)).square().mean().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def compare_training(variant):
    gloo = dist.new_group(backend="gloo")
    run = join_uneven if variant == "join" else lambda group: train(group, variant)
    torch.testing.assert_close(run(dist.group.WORLD), run(gloo), rtol=1e-5, atol=1e-7)


@TWO_AND_FOUR
@pytest.mark.parametrize("variant", ["static", "no_sync", "hook", "join"])
def test_ddp(ranks, variant):
    ranks.run(compare_training, variant)


# ---- FSDP, tensor parallel ----


def shard_fully(steps=3):
    mesh = init_device_mesh(home().type, (dist.get_world_size(),))
    model, alone = network(), network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    ours = torch.optim.SGD(model.parameters(), lr=0.1)
    theirs = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(steps):
        model(batch(dist.get_rank(), step)).square().mean().backward()
        everything = [batch(r, step) for r in range(dist.get_world_size())]
        sum(alone(x).square().mean() for x in everything).div(len(everything)).backward()
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    full = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(full, parameters_of(alone), rtol=1e-5, atol=1e-6)
    paths = smfar.report(device=home())
    assert {"all_gather", "reduce_scatter"} <= {p.collective for p in paths}


@TWO_AND_FOUR
def test_fsdp(ranks):
    ranks.run(shard_fully)


def tensor_parallel():
    mesh = init_device_mesh(home().type, (dist.get_world_size(),), mesh_dim_names=("tp",))
    model, alone = network(), network()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = batch(0, 0)
    out = model(x)
    torch.testing.assert_close(out, alone(x))
    out.square().mean().backward()
    alone(x).square().mean().backward()
    for mine, whole in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.full_tensor(), whole.grad)


@TWO_AND_FOUR
def test_tensor_parallel(ranks):
    ranks.run(tensor_parallel)


def redistribute():
    n = dist.get_world_size()
    mesh = init_device_mesh(home().type, (n,))
    whole = torch.arange(n * n * 6.0).view(2 * n, 3 * n)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])  # an all-to-all
    assert torch.equal(columns.to_local(), whole.chunk(n, 1)[dist.get_rank()])
    assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(), whole)
    uneven = distribute_tensor(torch.arange(n + 1.0), mesh, [Shard(0)])
    assert torch.equal(uneven.full_tensor(), torch.arange(n + 1.0))
    total = DTensor.from_local(torch.ones(4), mesh, [Replicate()]).sum()
    assert total.full_tensor().item() == 4


@TWO_AND_FOUR
def test_dtensors_change_their_layout(ranks):
    ranks.run(redistribute)


def two_dimensions():
    mesh = init_device_mesh(home().type, (2, 2), mesh_dim_names=("dp", "tp"))
    for name in ("dp", "tp"):
        tensor = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(tensor, group=mesh.get_group(name))
        members = dist.get_process_group_ranks(mesh.get_group(name))
        assert tensor.item() == sum(members)


def test_a_mesh_of_two_dimensions(ranks):
    ranks.run(two_dimensions)


# ---- functional collectives ----


def functionals(x):
    group = dist.group.WORLD
    n = dist.get_world_size()
    gathered = functional.all_gather_tensor(x, 0, group)
    scattered = functional.reduce_scatter_tensor(gathered * 2, "sum", 0, group)
    reduced = functional.all_reduce(scattered, "avg", group)
    exchanged = functional.all_to_all_single(gathered, [x.shape[0]] * n, [x.shape[0]] * n, group)
    return reduced.sum() + exchanged.sum()


def functional_values(compiled):
    n, me = dist.get_world_size(), dist.get_rank()
    run = torch.compile(functionals, backend="aot_eager") if compiled else functionals
    got = run(torch.full((3, 2), float(me + 1)))
    assert got.item() == 6 * n * (n + 1) + 6 * n * (me + 1)


@TWO_AND_FOUR
@pytest.mark.parametrize("compiled", [False, True])
def test_functional_collectives(ranks, compiled):
    ranks.run(functional_values, compiled)


def coalesced_functionals():
    n, me = dist.get_world_size(), dist.get_rank()
    inputs = [torch.full((2,), float(me)), torch.full((3,), 10.0 * me)]
    gathered = functional.all_gather_into_tensor_coalesced(inputs, dist.group.WORLD)
    assert gathered[0].tolist() == [float(r) for r in range(n) for _ in range(2)]
    assert gathered[1].tolist() == [10.0 * r for r in range(n) for _ in range(3)]
    sums = functional.all_reduce_coalesced(inputs, "sum", dist.group.WORLD)
    assert [one[0].item() for one in sums] == [n * (n - 1) / 2, 10 * n * (n - 1) / 2]


@TWO_AND_FOUR
def test_coalesced_functional_collectives(ranks):
    ranks.run(coalesced_functionals)


# ---- checkpoints, groups, profiler ----


def save_and_load(folder):
    mesh = init_device_mesh(home().type, (dist.get_world_size(),))
    whole = torch.arange(40.0).view(8, 5)
    state = {"weight": distribute_tensor(whole, mesh, [Shard(0)]), "step": 3}
    checkpoint.save(state, checkpoint_id=folder)
    empty = {"weight": distribute_tensor(torch.zeros(8, 5), mesh, [Shard(1)]), "step": 0}
    checkpoint.load(empty, checkpoint_id=folder)
    assert torch.equal(empty["weight"].full_tensor(), whole) and empty["step"] == 3


@TWO_AND_FOUR
def test_checkpoints(ranks):
    with tempfile.TemporaryDirectory() as folder:
        ranks.run(save_and_load, os.path.join(folder, "saved"))


def split():
    n, me = dist.get_world_size(), dist.get_rank()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_splitting
    options = copy.deepcopy(backend.options)
    assert options.timeout == backend.options.timeout and options is not backend.options
    backend.perform_nocolor_split(torch.device("cpu"))
    mine = list(range(0, n, 2)) if me % 2 == 0 else list(range(1, n, 2))
    group = dist.group.WORLD.split_group(mine, opts=options, group_name=f"every second {me % 2}")
    tensor = torch.tensor([float(me)])
    group.allreduce([tensor]).wait()
    assert tensor.item() == sum(mine)
    assert group.size() == len(mine) and group.rank() == mine.index(me)


def test_split_groups(ranks):
    ranks.run(split)


def allocate():
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu"))
    tensor.fill_(dist.get_rank())
    dist.barrier()
    before = sum(path.staged_bytes for path in smfar.report())
    dist.all_reduce(tensor)
    assert sum(path.staged_bytes for path in smfar.report()) == before


def test_allocated_tensors_lie_in_the_window(ranks):
    ranks.run(allocate)


def profile():
    n, me = dist.get_world_size(), dist.get_rank()
    with torch.profiler.profile() as profiler:
        dist.all_reduce(torch.ones(4))
        dist.all_to_all_single(torch.empty(n), torch.ones(n))
        dist.reduce_scatter_tensor(torch.empty(1), torch.ones(n))
        request = dist.irecv(torch.empty(1), (me - 1) % n)
        dist.send(torch.ones(1), (me + 1) % n)
        request.wait()
    names = {event.name for event in profiler.events()}
    wanted = ("all_reduce", "all_to_all", "reduce_scatter", "send", "recv")
    assert {f"smfar:{name}" for name in wanted} <= names
    assert "record_param_comms" in names


def test_profiler_names(ranks):
    for _ in range(5):  # ranges of messages end on another thread
        ranks.run(profile)


def debugged():
    n, me = dist.get_world_size(), dist.get_rank()
    output = torch.empty(2)
    dist.reduce_scatter_tensor(output, torch.ones(2 * n))
    assert output.tolist() == [n, n]
    parts = list(torch.empty(n).unbind())
    dist.all_to_all(parts, list(torch.full((n,), float(me)).unbind()))
    assert [one.item() for one in parts] == list(range(n))
    request = dist.irecv(torch.empty(1), (me - 1) % n)
    dist.send(torch.ones(1), (me + 1) % n)
    request.wait()
    objects = [None] * n
    dist.all_gather_object(objects, me)
    assert objects == list(range(n))


def test_the_debugging_wrapper(fresh_ranks):
    fresh_ranks(2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}).run(debugged)


def mixed():
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0] * 3
    assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "gloo"
    assert "smfar" in dist.get_backend_config()


def test_a_backend_per_device(fresh_ranks):
    fresh_ranks(2, backend="cpu:gloo,cuda:smfar").run(mixed)
