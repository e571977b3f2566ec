"""python -m smfar bench --device cuda: the all-reduce beside what users would pick instead.

The peers: torch's symmetric memory (one-shot and two-shot) and, where every rank has a GPU of its
own, NCCL. Everything is measured the same way, turn about in one run, on bf16:

    time    microseconds per call, calls issued back to back; the host's cost hides or is the limit
    device  the same with the calls queued behind a busy GPU: what the GPU alone needs
    host    microseconds that the host spends per call
    graph   per call in a CUDA graph of GRAPH_CALLS calls, its replays queued behind a busy GPU
    #wrong  elements that a replay of smfar's graph left wrong, on any rank

Each time is the median over interleaved repeats of the slowest rank's; `spread` is the middle half
of `time`. A second table says what each holds of the GPU (bench_profile.py), from a pass of its own
after all times, which a profiler would disturb. Not here: arguments and output files, which are
bench.py's, and how ranks start (bench_ranks.py).
"""

import statistics

import torch
import torch.distributed as dist

import smfar
from smfar import bench_contenders, bench_profile
from smfar.bench_ranks import (
    finish,
    interleaved,
    join_on_gpu,
    machine_line,
    microseconds,
    own_gpus,
    slowest,
)

GRAPH_CALLS = 20
REPLAYS = 10  # at most, in one repeat
SECONDS = 0.01  # of one repeat
PROFILED_CALLS = 10
SPLIT_BUDGET = 4
SPLIT_LEAST = 1 << 20
ONE_SHOT_MOST = 4 << 20  # above, one-shot moves too much to be anybody's choice


class Contender:
    """One way of reducing one bf16 tensor; with `tensor`, one whose replays are checked there."""

    def __init__(self, name, call, graph=False, tensor=None):
        self.name, self.call, self.graph, self.tensor = name, call, graph, tensor
        self.times, self.devices, self.hosts, self.graphs = [], [], [], []
        self.replay = None

    def row(self, size, ranks):
        middle = statistics.quantiles(self.times, n=4)
        row = {"size": size, "count": size // 2, "type": "bfloat16", "redop": "sum"}
        row |= {"path": self.name, "us": middle[1], "spread": middle[2] - middle[0]}
        row["algbw"] = size / middle[1] / 1e3
        row["busbw"] = row["algbw"] * 2 * (ranks - 1) / ranks
        row["device_us"] = statistics.median(self.devices)
        row["host_us"] = statistics.median(self.hosts)
        if self.graphs:
            row["graph_us"] = statistics.median(self.graphs)
        if self.replay and self.tensor is not None:
            row["wrong"] = wrong_after(self.replay, self.tensor)
        return row


class Peers:
    """torch's symmetric memory: its tensor and its group; None where it cannot run."""

    def __init__(self, bytes_, device):
        import torch.distributed._symmetric_memory as symmetric

        self.group = dist.group.WORLD.group_name
        self.tensor = symmetric.empty(bytes_ // 2, dtype=torch.bfloat16, device=device)
        symmetric.rendezvous(self.tensor, self.group)

    def contenders(self, count):
        part, ops, group = self.tensor[:count], torch.ops.symm_mem, self.group
        found = [
            Contender(
                "torch two-shot",
                lambda: ops.two_shot_all_reduce_(part, "sum", group),
                graph=True,
            )
        ]
        if count * 2 <= ONE_SHOT_MOST:
            found.append(
                Contender(
                    "torch one-shot",
                    lambda: ops.one_shot_all_reduce(part, "sum", group),
                    graph=True,
                )
            )
        return found


class Field:
    """The tensors, and everybody who reduces them."""

    def __init__(self, args, group):
        device = torch.device("cuda", torch.cuda.current_device())
        self.group = group
        self.window = smfar.empty(args.max // 2, dtype=torch.bfloat16, device=device, group=group)
        self.plain = torch.zeros(args.max // 2, dtype=torch.bfloat16, device=device)
        self.window.zero_()
        self.peers = Peers(args.max, device)
        self.peers.tensor.zero_()

    def contenders(self, size):
        count = size // 2
        plain = self.plain[:count]
        found = ours(self.window[:count], plain, self.group) + self.peers.contenders(count)
        found += self.split(self.window[:count])
        if own_gpus():
            found.append(Contender("nccl", lambda: dist.all_reduce(plain), graph=True))
        return found

    def split(self, window):
        """The split with few blocks, where the plan takes it when asked; nobody waits on an SM."""
        algorithm = f"split_{bench_contenders.ending(self.group)}"
        asked = bench_contenders.ours(window, self.group, algorithm, SPLIT_BUDGET)
        if window.nbytes < SPLIT_LEAST or not bench_contenders.runs(asked, self.group):
            return []
        return [Contender(asked.name, asked.call)]


def ours(window, plain, group):
    direct = smfar.ops.all_reduce_
    calls = [
        ("smfar direct", lambda: direct(window, group=group), window),
        ("smfar window", lambda: dist.all_reduce(window, group=group), window),
        ("smfar plain", lambda: dist.all_reduce(plain, group=group), plain),
    ]
    return [Contender(name, call, graph=True, tensor=tensor) for name, call, tensor in calls]


def rank_main(rank, args, folder):
    group, result = join_on_gpu(rank, args, folder, args.max)
    say = print if rank == 0 else lambda *_, **__: None
    result["all_reduce"] = sweep(args, group, say)
    say("\n" + smfar.describe(group, "cuda"))
    finish(rank, result, folder)


def sweep(args, group, say):
    """The rows of every size. `group` is smfar's; the default group is the peers'."""
    field, rows = Field(args, group), []
    sizes = [args.min]
    while sizes[-1] * args.step <= args.max:
        sizes.append(sizes[-1] * args.step)
    say(header())
    for size in sizes:
        rows += measure(field.contenders(size), size, args, say)
    say(held_header())
    for size in sizes:
        hold(field.contenders(size), [row for row in rows if row["size"] == size], say)
    return rows


# ---- times ----


def header():
    return (
        f"# {machine_line()}; us are microseconds per call\n"
        f"#{'size':>10} {'type':>9} {'redop':>6} {'path':>15} {'time':>9} {'spread':>7}"
        f" {'algbw':>8} {'busbw':>8} {'device':>9} {'graph':>8} {'host':>7} {'#wrong':>7}\n"
        f"#{'(B)':>10} {'':>9} {'':>6} {'':>15} {'(us)':>9} {'(us)':>7}"
        f" {'(GB/s)':>8} {'(GB/s)':>8} {'(us)':>9} {'(us)':>8} {'(us)':>7}"
    )


def measure(contenders, size, args, say):
    for contender in contenders:
        for _ in range(3):
            contender.call()
        torch.cuda.synchronize()
        contender.calls = calls_for(contender)
        if contender.graph:
            contender.replay = capture(contender.call)
    for contender in interleaved(contenders, args.repeats):
        take_times(contender)
    rows = [contender.row(size, args.ranks) for contender in contenders]
    for row in rows:
        say(line(row), flush=True)
    return rows


def take_times(contender):
    contender.times.append(microseconds(contender.call, contender.calls)[0])
    device, host = microseconds(contender.call, min(contender.calls, 50), busy=True)
    contender.devices.append(device)
    contender.hosts.append(host)
    if contender.replay:
        replays = max(1, min(REPLAYS, contender.calls // GRAPH_CALLS))
        per_replay = microseconds(contender.replay, replays, busy=True)[0]
        contender.graphs.append(per_replay / GRAPH_CALLS)


def line(row):
    graph = f"{row['graph_us']:8.1f}" if "graph_us" in row else f"{'':>8}"
    wrong = f"{row['wrong']:>7}" if "wrong" in row else ""
    return (
        f" {row['size']:>10} {row['type']:>9} {row['redop']:>6} {row['path']:>15} {row['us']:>9.1f}"
        f" {row['spread']:>7.1f} {row['algbw']:>8.1f} {row['busbw']:>8.1f} {row['device_us']:>9.1f}"
        f" {graph} {row['host_us']:>7.1f} {wrong}"
    )


def calls_for(contender):
    """As many calls as fill a repeat; the same on every rank."""
    estimate = slowest(torch.tensor(microseconds(contender.call, 5)[0]))
    return max(5, min(200, int(SECONDS * 1e6 / max(estimate.item(), 1))))


def capture(call):
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(GRAPH_CALLS):
            call()
    return graph.replay


def wrong_after(replay, tensor):
    """Elements that one replay of a graph leaves wrong, on any rank; the tensor is zero again.

    Every call after the first adds equal numbers, so each result is ranks times the last, rounded.
    """
    ranks = dist.get_world_size()
    start = torch.arange(tensor.numel(), dtype=torch.int32, device=tensor.device) % 2 + 1
    tensor.copy_(start * (dist.get_rank() + 1))
    replay()
    right = (start * (ranks * (ranks + 1) // 2)).to(tensor.dtype)
    for _ in range(GRAPH_CALLS - 1):
        right = (right.float() * ranks).to(tensor.dtype)
    wrong = (tensor != right).sum().cpu()
    tensor.zero_()
    dist.all_reduce(wrong)  # by gloo
    return int(wrong)


# ---- what is held ----


def held_header():
    return (
        "\n# held per call, by CUPTI, mean over ranks; SM-us: min(blocks, SMs) x duration, summed"
        " over kernels;\n# payload: bytes of one rank's tensor per SM-us; copies and fills apart\n"
        f"#{'size':>10} {'path':>15} {'blocks':>7} {'threads':>7} {'kernels':>7} {'kernel':>9}"
        f" {'SM-us':>9} {'payload':>9} {'copies':>7} {'copy':>9}\n"
        f"#{'(B)':>10} {'':>15} {'':>7} {'':>7} {'':>7} {'(us)':>9} {'':>9} {'(B/SM-us)':>9}"
        f" {'':>7} {'(us)':>9}"
    )


def hold(contenders, rows, say):
    for contender, row in zip(contenders, rows, strict=True):
        held = bench_profile.measure(contender.call, PROFILED_CALLS)
        row |= held.row()
        say(held_line(row["size"], contender.name, held), flush=True)


def held_line(size, name, held):
    if held.note:
        return f" {size:>10} {name:>15} {held.note}"
    payload = f"{size / held.sm_us:9.0f}" if held.sm_us else f"{'':>9}"
    return (
        f" {size:>10} {name:>15} {held.blocks:>7} {held.threads:>7} {held.kernels:>7.1f}"
        f" {held.kernel_us:>9.1f} {held.sm_us:>9.1f} {payload} {held.copies:>7.1f}"
        f" {held.copy_us:>9.1f}"
    )
