"""python -m smfar bench train: steps of DDP and FSDP2 over smfar and over NCCL, turn about.

A transformer of about a billion parameters in bf16 (bench_model.py) with AdamW, one copy for each
variant, all alive at once and given the same tokens. After some steps to warm up, blocks of steps
are timed turn about:

    step      milliseconds of the slowest rank, the median over steps; `spread` is the middle half
    tokens/s  of all ranks
    loss      the mean over ranks at the last step, and how far it is from the first variant's
    staged    bytes a step that smfar had to copy in or out, because a tensor was not in the window
    SM-ms     what the collectives' kernels hold in a step (bench_profile.py), in a pass of its own

smfar comes with tensors where PyTorch has them, with gradients (DDP) or the tensors of collectives
(FSDP2) in the window, and with that and budgets, or copy engines for what FSDP2 gathers. The peer
is the first variant: NCCL where every rank has a GPU of its own, gloo with --device cpu. Ends with
1 where losses differ by more than a percent, or where ranks of a replica do not have the same
parameters.
"""

import os
import statistics
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import smfar
from smfar import bench_model, bench_profile
from smfar.bench_ranks import (
    at_least,
    finish,
    interleaved,
    join,
    join_on_gpu,
    launch,
    machine_line,
    meet,
    no_gpu,
    own_gpus,
    slowest,
    write_json,
)

RATE = 1e-4  # of AdamW
WARM_STEPS = 4  # DDP arranges its buckets anew after the first
BLOCK = 5  # steps
PROFILED_STEPS = 2
TOLERANCE = 0.01  # of a loss
WINDOW_OVER_PARAMETERS = 3  # buckets that come and go, and staging
COMM_MEM = "DDP_DISABLE_COMM_MEM"
TIMEOUT = timedelta(minutes=2)


def budgets(text):
    """ "1,4" -> [1, 4]; "" -> []"""
    return [at_least(1)(part) for part in text.split(",") if part]


def add_arguments(parser):
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--ranks", type=at_least(2), default=2)
    parser.add_argument("--params", choices=list(bench_model.SIZES), default="1b")
    parser.add_argument("--strategy", choices=["ddp", "fsdp"], nargs="+", default=["ddp", "fsdp"])
    parser.add_argument("--budgets", type=budgets, default=[1, 4], help="of smfar, e.g. 1,4")
    parser.add_argument(
        "--steps", type=at_least(2 * BLOCK), default=50, help="at most, per variant"
    )
    parser.add_argument("--seconds", type=at_least(1), default=60, help="at most, per variant")
    parser.add_argument("--json", metavar="FILE", help="write every figure there, too")


def run(args):
    """Measures, prints, and returns the exit status: 1 if variants did not train alike."""
    if args.device == "cuda" and no_gpu("bench train"):
        return 77
    result = launch(rank_main, args)
    write_json(args.json, result)
    return 0 if all(row["agrees"] for row in result["train"]) else 1


def rank_main(rank, args, folder):
    os.environ[COMM_MEM] = "0"
    if args.device == "cpu":
        torch.set_num_threads(1)
        join("gloo", rank, args, folder)
        result = {"ranks": args.ranks, "torch": torch.__version__}
    else:
        _, result = join_on_gpu(rank, args, folder, 0)
    say = print if rank == 0 else lambda *_, **__: None
    say(header(args), flush=True)
    result |= {"params": args.params, "train": []}
    for strategy in args.strategy:
        result["train"] += compare(strategy, args, say)
    finish(rank, result, folder)


# ---- the variants ----


@dataclass(frozen=True)
class Variant:
    strategy: str
    path: str
    ours: bool = True
    window: bool = False
    budget: int | None = None
    copies: bool = False


def variants(strategy, args):
    """The one that the others are compared with comes first."""
    found = []
    if args.device == "cpu" or own_gpus():
        found.append(Variant(strategy, "gloo" if args.device == "cpu" else "nccl", ours=False))
    found += [Variant(strategy, "smfar"), Variant(strategy, "smfar window", window=True)]
    found += [Variant(strategy, f"smfar window / {b}", True, True, b) for b in args.budgets]
    if strategy == "fsdp":  # DDP only reduces
        found.append(Variant(strategy, "smfar copy engines", window=True, copies=True))
    return found


class Trainer:
    """One variant's model, optimizer and group, and what was measured."""

    def __init__(self, variant, args):
        self.variant, self.size = variant, bench_model.SIZES[args.params]
        self.gpu = args.device == "cuda"
        self.device = torch.device(args.device, torch.cuda.current_device() if self.gpu else None)
        model = bench_model.make(self.size, self.device)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.group = self.own_group() if variant.ours else dist.group.WORLD
        self.model = replicated(model, self) if variant.strategy == "ddp" else sharded(model, self)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, fused=self.gpu)
        self.steps, self.losses, self.times, self.staged_warm = 0, [], [], 0

    def own_group(self):
        """DDP takes no memory from groups with several backends, and says whether it does once
        per process."""
        device, options = self.device.type, {}
        if self.variant.window:
            options["window_bytes"] = max(1 << 28, WINDOW_OVER_PARAMETERS * 2 * self.parameters)
        if self.variant.budget:
            options["sm_budget"] = self.variant.budget
        if self.variant.copies:
            options["copy_engines"] = True
        other = "cpu" if self.gpu else "cuda"
        backend = "smfar" if self.variant.window else f"{device}:smfar,{other}:gloo"
        return dist.new_group(backend=backend, timeout=TIMEOUT, pg_options=smfar.Options(**options))

    def step(self, tokens):
        loss = self.model(tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def run(self, steps):
        """Milliseconds of each step on the slowest rank; the losses are kept."""
        rank = dist.get_rank()
        numbers = range(self.steps, self.steps + steps)
        batches = [bench_model.batch(self.size, rank, n).to(self.device) for n in numbers]
        clock = Events() if self.gpu else Wall()
        meet() if self.gpu else slowest(torch.zeros(1))
        clock.tick()
        losses = []
        for tokens in batches:
            losses.append(self.step(tokens))
            clock.tick()
        self.steps += steps
        mean = torch.stack(losses).cpu()
        dist.all_reduce(mean)
        self.losses += (mean / dist.get_world_size()).tolist()
        return slowest(torch.tensor(clock.between())).tolist()

    def staged(self):
        """Bytes that smfar has copied in or out so far."""
        paths = smfar.report(self.group, self.device.type) if self.variant.ours else []
        return sum(path.staged_bytes for path in paths)

    def replicas_agree(self):
        """Has every rank the same parameters, as far as their sum shows?"""
        if self.variant.strategy == "fsdp":
            return True
        total = sum(p.detach().double().sum() for p in self.model.parameters()).cpu()
        return bool(slowest(total.clone()) == -slowest(-total))

    def end(self):
        self.model = self.optimizer = None
        if self.variant.ours:
            dist.destroy_process_group(self.group)


def replicated(model, trainer):
    return DistributedDataParallel(model, process_group=trainer.group, gradient_as_bucket_view=True)


def sharded(model, trainer):
    mesh = DeviceMesh.from_group(trainer.group, trainer.device.type)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if trainer.variant.window:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_allocate_memory_from_process_group_for_comm(True)
    return model


class Events:
    """Milliseconds between ticks on the current stream."""

    def __init__(self):
        self.ticks = []

    def tick(self):
        self.ticks.append(torch.cuda.Event(enable_timing=True))
        self.ticks[-1].record()

    def between(self):
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in zip(self.ticks, self.ticks[1:], strict=False)]


class Wall(Events):
    """The same by the host's clock."""

    def tick(self):
        self.ticks.append(time.perf_counter())

    def between(self):
        return [(b - a) * 1e3 for a, b in zip(self.ticks, self.ticks[1:], strict=False)]


# ---- the comparison ----


def compare(strategy, args, say):
    trainers = [Trainer(variant, args) for variant in variants(strategy, args)]
    longest = max(trainer.run(WARM_STEPS)[-1] for trainer in trainers)
    for trainer in trainers:
        trainer.staged_warm = trainer.staged()
    blocks = min(args.steps // BLOCK, int(args.seconds * 1e3 / longest / BLOCK))
    for trainer in interleaved(trainers, max(2, blocks)):
        trainer.times += trainer.run(BLOCK)
    rows = [row(trainer, trainers[0]) for trainer in trainers]
    for trainer, one in zip(trainers, rows, strict=True):
        if args.device == "cuda":
            one |= hold(trainer)
        say(line(one), flush=True)
    for trainer in trainers:
        trainer.end()
    if args.device == "cuda":
        torch.cuda.empty_cache()
    return rows


def row(trainer, first):
    quarters = statistics.quantiles(trainer.times, n=4)
    variant, size = trainer.variant, trainer.size
    tokens = size.batch * size.tokens * dist.get_world_size()
    loss, theirs = trainer.losses[-1], first.losses[-1]
    found = {"strategy": variant.strategy, "path": variant.path, "steps": trainer.steps}
    found |= {"step_ms": quarters[1], "spread": quarters[2] - quarters[0]}
    found |= {"tokens_per_s": tokens / quarters[1] * 1e3, "parameters": trainer.parameters}
    found |= {"loss": loss, "off": loss / theirs - 1, "losses": list(trainer.losses)}
    found |= {"replicas_agree": trainer.replicas_agree()}
    found["agrees"] = found["replicas_agree"] and alike(loss, theirs)
    if variant.ours:
        found["staged"] = (trainer.staged() - trainer.staged_warm) / len(trainer.times)
    return found


def alike(loss, theirs):
    """False for what is no number, too."""
    return abs(loss / theirs - 1) <= TOLERANCE


def hold(trainer):
    """What the collectives' kernels hold, in a step; copies are anybody's here, and left out."""
    steps = bench_profile.LEAD + PROFILED_STEPS
    with bench_profile.Recording() as recording:
        trainer.run(steps)
    recording.events = [event for event in recording.events if of_collective(event)]
    held = bench_profile.summarize(recording, steps, bench_profile.multiprocessors())
    held = bench_profile.over_ranks(held)
    return {"note": held.note} if held.note else {"sm_ms": held.sm_us / 1e3, "blocks": held.blocks}


def of_collective(event):
    return event["cat"] == "kernel" and (
        "smfar" in event["name"] or "nccl" in event["name"].lower()
    )


# ---- the table ----


def header(args):
    where = (
        machine_line() if args.device == "cuda" else f"{args.ranks} ranks on the software switch"
    )
    return (
        f"# {where}; transformer {args.params}, bf16\n"
        f"#{'':>6} {'path':>18} {'steps':>6} {'step':>9} {'spread':>8} {'tokens/s':>9} {'loss':>8}"
        f" {'off':>9} {'staged':>8} {'blocks':>7} {'SM-ms':>8}\n"
        f"#{'':>6} {'':>18} {'':>6} {'(ms)':>9} {'(ms)':>8} {'':>9} {'':>8} {'(%)':>9} {'(MB)':>8}"
    )


def line(row):
    text = (
        f" {row['strategy']:>6} {row['path']:>18} {row['steps']:>6} {row['step_ms']:>9.2f}"
        f" {row['spread']:>8.2f} {row['tokens_per_s']:>9.0f} {row['loss']:>8.4f}"
        f" {100 * row['off']:>+9.4f}"
    )
    text += f" {row['staged'] / 1e6:>8.1f}" if "staged" in row else f" {'':>8}"
    text += f" {row['blocks']:>7} {row['sm_ms']:>8.2f}" if "sm_ms" in row else ""
    text += f" {row['note']}" if "note" in row else ""
    if not row["agrees"]:
        text += " differs" if row["replicas_agree"] else " ranks have other parameters"
    return text
