"""python -m smfar bench norm: all-reduce and RMSNorm in one launch, and one by one.

bf16, in the window (smfar) or in symmetric memory (torch), without a residual and with one. `time`
is a call's on its stream when nothing else keeps the host busy, `device` when the host is ahead;
medians over repeats, of the slowest rank. SM-us is what bench_profile.py says. Before it is timed,
what the fused kernel makes of random numbers is compared with the steps one by one.
"""

import argparse
import statistics

import torch
import torch.distributed as dist
from torch.nn.functional import rms_norm

import smfar
from smfar import bench_profile
from smfar.bench_contenders import torch_two_shot
from smfar.bench_ranks import (
    at_least,
    finish,
    interleaved,
    join_on_gpu,
    launch,
    machine_line,
    microseconds,
    no_gpu,
    slowest,
    write_json,
)

EPS = 1e-6
TOKENS = (1, 16, 64, 256, 1024, 4096, 8192)
HIDDEN = (1024, 4096, 8192)
SECONDS = 0.02  # that one repeat is to take
PROFILED_CALLS = 10


def numbers(text):
    """ "16,4096" -> [16, 4096]"""
    return [at_least(1)(part) for part in text.split(",")]


def algorithm(text):
    """A name that smfar.algorithm knows."""
    try:
        with smfar.algorithm(text):
            return text
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_arguments(parser):
    parser.add_argument("--ranks", type=at_least(2), default=2)
    parser.add_argument("--tokens", type=numbers, default=list(TOKENS), help="e.g. 16,4096")
    parser.add_argument("--hidden", type=numbers, default=list(HIDDEN), help="e.g. 1024,4096")
    parser.add_argument(
        "--algorithm", type=algorithm, help="of all calls of smfar's, e.g. twoshot_peer"
    )
    parser.add_argument("--repeats", type=at_least(2), default=10)
    parser.add_argument("--json", metavar="FILE", help="write every figure there, too")


def run(args):
    """Measures, prints, and returns the exit status: 1 if any result was wrong."""
    if no_gpu("bench norm"):
        return 77
    result = launch(rank_main, args)
    write_json(args.json, result)
    return 1 if any(row["wrong"] for row in result["norm"]) else 0


def rank_main(rank, args, folder):
    largest = 2 * max(args.tokens) * max(args.hidden)
    group, result = join_on_gpu(rank, args, folder, largest)
    say = print if rank == 0 else lambda *_, **__: None
    say(header(), flush=True)
    result |= {"algorithm": args.algorithm, "norm": []}
    with smfar.algorithm(args.algorithm):
        for hidden in args.hidden:
            for tokens in args.tokens:
                result["norm"] += measure(Shape(tokens, hidden, group), args.repeats, say)
    for path in smfar.report(group, "cuda"):
        say(f"# {path.collective} by {path.algorithm}: {path.reason}")
    say("\n" + smfar.describe(group, "cuda"))
    finish(rank, result, folder)


class Shape:
    """The tensors of one size, and who normalises them."""

    def __init__(self, tokens, hidden, group):
        self.tokens, self.hidden, self.group = tokens, hidden, group
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.x, self.residual = self.in_window(), self.in_window()
        rows = smfar.ops.own_rows(tokens, group)
        self.shard = torch.zeros_like(self.residual[rows])
        self.weight = torch.ones(hidden, dtype=torch.bfloat16, device=self.device)
        self.two_shot = torch_two_shot(tokens * hidden, self.device)

    def in_window(self):
        shape = (self.tokens, self.hidden)
        made = smfar.empty(*shape, dtype=torch.bfloat16, device=self.device, group=self.group)
        return made.zero_()

    def fused(self, residual=None, layout="replicated"):
        return smfar.ops.all_reduce_rms_norm_(
            self.x, self.weight, EPS, residual, self.group, residual_layout=layout
        )

    def norm(self, x):
        return rms_norm(x.view(self.tokens, self.hidden), (self.hidden,), self.weight, EPS)

    def add(self, x):
        return self.residual.add_(x.view(self.tokens, self.hidden))

    def contenders(self):
        """(path, call); zeros stay zeros, however often they are summed."""
        x, group = self.x, self.group

        def ours():
            return smfar.ops.all_reduce_(x, group=group)

        def theirs():
            return self.two_shot.call()

        return [
            ("fused", self.fused),
            ("smfar, then norm", lambda: self.norm(ours())),
            ("torch two-shot, then norm", lambda: self.norm(theirs())),
            ("fused, residual sharded", lambda: self.fused(self.shard, "sharded")),
            ("fused, residual replicated", lambda: self.fused(self.residual)),
            ("smfar, add, norm", lambda: self.norm(self.add(ours()))),
            ("torch two-shot, add, norm", lambda: self.norm(self.add(theirs()))),
        ]

    def count_wrong(self):
        """Of the fused result: each step rounds alike, so that few bits can differ."""
        torch.manual_seed(dist.get_rank())
        mine = torch.randn_like(self.x)
        want = self.x.copy_(mine)
        smfar.ops.all_reduce_(want, group=self.group)
        want = self.norm(want.add_(self.residual.fill_(0.5))).float()
        self.x.copy_(mine)
        self.fused(self.residual)
        wrong = (self.x.float() - want).abs() > 0.02 * want.abs() + 1e-3
        wrong = int(wrong.sum()) + int((~self.x.isfinite()).sum())
        self.x.zero_(), self.residual.zero_()
        return int(slowest(torch.tensor(float(wrong))))


def calls_for(call):
    """As many as fill a repeat; the same on every rank."""
    estimate = slowest(torch.tensor(microseconds(call, 5)[0])).item()
    return max(5, min(200, int(SECONDS * 1e6 / max(estimate, 1))))


def measure(shape, repeats, say):
    contenders, wrong = shape.contenders(), shape.count_wrong()
    times = {path: [] for path, _ in contenders}
    devices = {path: [] for path, _ in contenders}
    for _, call in contenders:
        call()
    calls = {path: calls_for(call) for path, call in contenders}
    for path, call in interleaved(contenders, repeats):
        times[path].append(microseconds(call, calls[path])[0])
        devices[path].append(microseconds(call, min(calls[path], 50), busy=True)[0])
    rows = []
    for path, call in contenders:
        row = {"tokens": shape.tokens, "hidden": shape.hidden, "path": path}
        row |= {"us": statistics.median(times[path]), "spread": spread(times[path])}
        row |= {"device_us": statistics.median(devices[path])}
        row |= {"wrong": wrong if path.startswith("fused") else 0}
        row |= bench_profile.measure(call, PROFILED_CALLS).row()
        say(line(row), flush=True)
        rows.append(row)
    return rows


def spread(values):
    quarters = statistics.quantiles(values, n=4)
    return quarters[2] - quarters[0]


def header():
    return (
        f"# {machine_line()}; bf16; us are microseconds per call\n"
        f"#{'tokens':>7} {'hidden':>7} {'path':>27} {'time':>9} {'spread':>7} {'device':>9}"
        f" {'wrong':>6} {'blocks':>7} {'threads':>8} {'kernels':>8} {'SM-us':>9}"
    )


def line(row):
    text = (
        f" {row['tokens']:>7} {row['hidden']:>7} {row['path']:>27} {row['us']:>9.1f}"
        f" {row['spread']:>7.1f} {row['device_us']:>9.1f} {row['wrong']:>6}"
    )
    if "note" in row:
        return f"{text} {row['note']}"
    return (
        f"{text} {row['blocks']:>7} {row['threads']:>8} {row['kernels']:>8.1f} {row['sm_us']:>9.1f}"
    )
