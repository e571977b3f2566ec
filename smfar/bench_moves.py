"""python -m smfar bench moves: all-gather, reduce-scatter, broadcast and all-to-all by size.

The peers are NCCL, where every rank has a GPU of its own, and torch's symmetric memory, where it
has such an operator that needs no switch; with --device cpu gloo. Everything is bf16, all-gather in
place. `size` is the longer of a rank's two tensors; `algbw` is size / time and `busbw` what the
busiest link carries for it, both as nccl-tests has them (doc/PERFORMANCE.md). On GPUs:

    time    microseconds per call, calls issued back to back
    device  the same with the calls queued behind a busy GPU: what the GPU alone needs
    graph   per call in a CUDA graph, its replays queued behind a busy GPU
    host    microseconds that the host spends per call

Each is the median over interleaved repeats of the slowest rank's; `spread` is the middle half of
`time`. What is held of a GPU comes from a pass of its own (bench_profile.py). Results are checked
once per row. Not here: who moves the data, and what is right (bench_collectives.py).
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

import smfar
from smfar import bench_profile
from smfar.bench_collectives import COLLECTIVES, Field
from smfar.bench_ranks import (
    at_least,
    finish,
    interleaved,
    join,
    join_on_gpu,
    launch,
    machine_line,
    microseconds,
    no_gpu,
    parse_size,
    slowest,
    write_json,
)

SECONDS = 0.01  # of one repeat
CALLS = range(2, 200)  # of one repeat
BUSY_CALLS = 50
GRAPH_CALLS = 10
REPLAYS = 10
PROFILED_CALLS = 10
ELEMENT = 2  # bytes


def collectives(text):
    """ "all_gather,broadcast" -> the two names"""
    names = text.split(",")
    for name in names:
        if name not in COLLECTIVES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(COLLECTIVES)}")
    return names


def add_arguments(parser):
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--ranks", type=at_least(2), default=2)
    parser.add_argument("--collective", type=collectives, default=list(COLLECTIVES), metavar="A,B")
    parser.add_argument("--min", type=parse_size, default="256", help="smallest size")
    parser.add_argument(
        "--max", type=parse_size, default="64M", help="largest size, always measured"
    )
    parser.add_argument("--step", type=at_least(2), default=16, help="times the last size")
    parser.add_argument("--repeats", type=at_least(2), default=20, help="the median counts")
    parser.add_argument("--json", metavar="FILE", help="write every figure there, too")


def run(args):
    """Measures, prints, and returns the exit status: 1 if any result was wrong."""
    if args.device == "cuda" and no_gpu("bench moves"):
        return 77
    least = ELEMENT * args.ranks
    if not least <= args.min <= args.max:
        print(f"bench moves: --min must be {least} bytes or more, and --max no less than --min")
        return 2
    result = launch(rank_main, args)
    write_json(args.json, result)
    return 1 if any(row["wrong"] for row in result["moves"]) else 0


def rank_main(rank, args, folder):
    group, result = (join_on_cpu if args.device == "cpu" else join_on_gpu)(
        rank, args, folder, args.max, tensors=3
    )
    say = print if rank == 0 else lambda *_, **__: None
    device = torch.device(args.device, torch.cuda.current_device() if gpu(args) else None)
    field = Field(args.max, device, group)
    result["moves"] = []
    for name in args.collective:
        result["moves"] += sweep(name, field, args, say)
    say("\n" + smfar.describe(group, args.device))
    finish(rank, result, folder)


def join_on_cpu(rank, args, folder, largest, tensors):
    """As join_on_gpu, on the software switch; gloo serves the default group."""
    torch.set_num_threads(1)
    join("gloo", rank, args, folder)
    options = smfar.Options(window_bytes=max(1 << 28, tensors * largest))
    group = dist.new_group(backend="smfar", pg_options=options)
    return group, {"ranks": args.ranks, "torch": torch.__version__}


def gpu(args):
    return args.device == "cuda"


def sizes(args):
    """Multiples of what every rank has a part of; args.max is the last."""
    found, unit = [args.min], ELEMENT * args.ranks
    while found[-1] * args.step < args.max:
        found.append(found[-1] * args.step)
    return sorted({size // unit * unit for size in [*found, args.max]})


def sweep(name, field, args, say):
    rank, rows = dist.get_rank(), []
    say(header(name, args), flush=True)
    for size in sizes(args):
        collective = COLLECTIVES[name](size // ELEMENT, rank, args.ranks)
        pattern = field.pattern[: collective.count]
        found = [Measured(one) for one in field.contenders(collective, say)]
        wrong = [one.contender.count_wrong(collective, pattern) for one in found]
        measure(found, args, say)
        for one, count in zip(found, wrong, strict=True):
            row = {"collective": name, "size": size, "count": collective.count, "wrong": count}
            row |= one.row(size, collective.bus(args.ranks))
            if gpu(args):
                calls = min(PROFILED_CALLS, one.calls)
                row |= bench_profile.measure(one.contender.call, calls).row()
            rows.append(row)
            say(line(row), flush=True)
    return rows


# ---- times ----


class Measured:
    """A contender, its calls per repeat, and what was measured of it."""

    def __init__(self, contender):
        self.contender, self.calls, self.graph = contender, 0, None
        self.times, self.devices, self.hosts, self.graphs = [], [], [], []

    def row(self, size, bus):
        quarters = statistics.quantiles(self.times, n=4)
        row = {"type": "bfloat16", "path": self.contender.name}
        row |= {"us": quarters[1], "spread": quarters[2] - quarters[0]}
        row |= {"algbw": size / quarters[1] / 1e3, "busbw": size / quarters[1] / 1e3 * bus}
        figures = {"device_us": self.devices, "host_us": self.hosts, "graph_us": self.graphs}
        return row | {name: statistics.median(them) for name, them in figures.items() if them}


def measure(found, args, say):
    for one in found:
        once = wall(one.contender.call, 2) if not gpu(args) else ready(one.contender.call)
        one.calls = max(CALLS[0], min(CALLS[-1], int(SECONDS * 1e6 / max(once, 1))))
        if gpu(args) and one.contender.graph:
            one.graph = capture(one.contender, min(GRAPH_CALLS, one.calls), say)
    for one in interleaved(found, args.repeats):
        (take_times if gpu(args) else take_wall)(one)
    for one in found:
        one.graph = None  # before a profiler comes, and before the group ends


def ready(call):
    """Microseconds of a call, once all that a first one does is done; the same on every rank."""
    for _ in range(2):
        call()
    return microseconds(call, 2)[0]


def wall(call, calls):
    """Microseconds per call by the host's clock, on the slowest rank: where calls block it."""
    slowest(torch.zeros(1))
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return slowest(torch.tensor((time.perf_counter() - begin) * 1e6 / calls)).item()


def take_wall(one):
    one.times.append(wall(one.contender.call, one.calls))


def take_times(one):
    call = one.contender.call
    one.times.append(microseconds(call, one.calls)[0])
    device, host = microseconds(call, min(one.calls, BUSY_CALLS), busy=True)
    one.devices.append(device)
    one.hosts.append(host)
    if one.graph:
        in_graph = min(GRAPH_CALLS, one.calls)
        replays = max(1, min(REPLAYS, one.calls // in_graph))
        one.graphs.append(microseconds(one.graph.replay, replays, busy=True)[0] / in_graph)


def capture(contender, calls, say):
    """A graph of so many calls; None, after saying why, where a rank cannot capture them."""
    graph, stream, why = torch.cuda.CUDAGraph(), torch.cuda.Stream(), ""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        contender.call()  # whatever a first call on a stream does
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                contender.call()
    except RuntimeError as error:
        why = str(error).splitlines()[0]
    if slowest(torch.tensor(float(bool(why)))).item():
        say(f"# {contender.name} in a graph is left out: {why or 'another rank cannot'}")
        return None
    return graph


# ---- the table ----


def header(name, args):
    where = machine_line() if gpu(args) else f"{args.ranks} ranks on the software switch"
    text = (
        f"\n# {name}, {where}; us are microseconds per call\n"
        f"#{'size':>11} {'path':>21} {'wrong':>6} {'time':>9} {'spread':>8} {'algbw':>8}"
        f" {'busbw':>8}"
    )
    if not gpu(args):
        return text
    return (
        f"{text} {'device':>9} {'graph':>9} {'host':>7} {'blocks':>7} {'threads':>8} {'SM-us':>9}"
        f" {'copies':>7} {'copy':>8}"
    )


def line(row):
    text = (
        f" {row['size']:>11} {row['path']:>21} {row['wrong']:>6} {row['us']:>9.1f}"
        f" {row['spread']:>8.1f} {row['algbw']:>8.3f} {row['busbw']:>8.3f}"
    )
    if "device_us" not in row:
        return text
    graph = f"{row['graph_us']:9.1f}" if "graph_us" in row else f"{'':>9}"
    text = f"{text} {row['device_us']:>9.1f} {graph} {row['host_us']:>7.1f}"
    if "note" in row:
        return f"{text} {row['note']}"
    return (
        f"{text} {row['blocks']:>7} {row['threads']:>8} {row['sm_us']:>9.1f}"
        f" {row['copies']:>7.1f} {row['copy_us']:>8.1f}"
    )
