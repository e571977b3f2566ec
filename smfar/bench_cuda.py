"""python -m smfar bench --device cuda: the all-reduce beside what users would pick instead.

The peers: torch's symmetric memory (one-shot and two-shot) and, where every rank has a GPU of its
own, NCCL. Everything is measured the same way, turn about in one run, on bf16:

    time    microseconds per call, calls issued back to back; the host's cost hides or is the limit
    device  the same with the calls queued behind a busy GPU: what the GPU alone needs
    host    microseconds that the host spends per call
    graph   per call in a CUDA graph of GRAPH_CALLS calls (the peers'; smfar's are not there yet)

Each is the median over REPEATS interleaved repeats of the slowest rank's; `spread` is the middle
half of `time`. Blocks are what each launches; an SM is held for about blocks x device time. Not
here: ranks, arguments and output files, which bench.py has.
"""

import statistics
import time

import torch
import torch.distributed as dist

import smfar

REPEATS = 20
GRAPH_CALLS = 10
SECONDS = 0.01  # of one repeat
BUSY_CYCLES = 2_000_000  # about a millisecond: the queue fills meanwhile
ONE_SHOT_MOST = 4 << 20  # above, one-shot moves too much to be anybody's choice


class Contender:
    """One way of reducing one bf16 tensor, with what it launches."""

    def __init__(self, name, call, blocks="", graph=False):
        self.name, self.call, self.blocks, self.graph = name, call, blocks, graph
        self.times, self.devices, self.hosts = [], [], []
        self.replay = None

    def row(self, size, ranks):
        middle = statistics.quantiles(self.times, n=4)
        row = {"size": size, "count": size // 2, "type": "bfloat16", "redop": "sum"}
        row |= {"path": self.name, "us": middle[1], "spread": middle[2] - middle[0]}
        row["algbw"] = size / middle[1] / 1e3
        row["busbw"] = row["algbw"] * 2 * (ranks - 1) / ranks
        row |= {"device_us": statistics.median(self.devices), "blocks": self.blocks}
        row["host_us"] = statistics.median(self.hosts)
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
                "<= 24",
                graph=True,
            )
        ]
        if count * 2 <= ONE_SHOT_MOST:
            found.append(
                Contender(
                    "torch one-shot",
                    lambda: ops.one_shot_all_reduce(part, "sum", group),
                    "<= 24",
                    graph=True,
                )
            )
        return found


def sweep(args, group, say):
    """The rows of every size. `group` is smfar's; the default group is the peers'."""
    device = torch.device("cuda", torch.cuda.current_device())
    nccl = torch.cuda.device_count() >= args.ranks
    window = smfar.empty(args.max // 2, dtype=torch.bfloat16, device=device, group=group)
    plain = torch.zeros(args.max // 2, dtype=torch.bfloat16, device=device)
    window.zero_()
    peers = Peers(args.max, device)
    peers.tensor.zero_()
    say(header(args.ranks))
    rows, size = [], args.min
    while size <= args.max:
        count = size // 2
        found = ours(window[:count], plain[:count], group) + peers.contenders(count)
        if nccl:
            mine = plain[:count]
            found.append(Contender("nccl", lambda mine=mine: dist.all_reduce(mine), graph=True))
        rows += measure(found, size, args.ranks, say)
        size *= 4
    return rows


def ours(window, plain, group):
    def blocks_of(tensor):
        text = smfar.explain(tensor, group=group)
        return text.split(" blocks of ")[0].split()[-1]

    name, direct = group.group_name, torch.ops.smfar.all_reduce_
    return [
        Contender("smfar direct", lambda: direct(window, "sum", name), blocks_of(window)),
        Contender("smfar window", lambda: dist.all_reduce(window, group=group), blocks_of(window)),
        Contender("smfar plain", lambda: dist.all_reduce(plain, group=group), blocks_of(plain)),
    ]


def header(ranks):
    gpus = torch.cuda.device_count()
    return (
        f"# {ranks} ranks on {min(gpus, ranks)} x {torch.cuda.get_device_name()}, torch "
        f"{torch.__version__}; us are microseconds per call\n"
        f"#{'size':>10} {'type':>9} {'redop':>6} {'path':>15} {'time':>9} {'spread':>7}"
        f" {'algbw':>8} {'busbw':>8} {'device':>9} {'graph':>8} {'host':>7} {'blocks':>7}\n"
        f"#{'(B)':>10} {'':>9} {'':>6} {'':>15} {'(us)':>9} {'(us)':>7}"
        f" {'(GB/s)':>8} {'(GB/s)':>8} {'(us)':>9} {'(us)':>8} {'(us)':>7}"
    )


def measure(contenders, size, ranks, say):
    for contender in contenders:
        for _ in range(3):
            contender.call()
        torch.cuda.synchronize()
        contender.calls = calls_for(contender)
        if contender.graph:
            contender.replay = capture(contender.call)
    graphs = {contender.name: [] for contender in contenders}
    for _ in range(REPEATS):
        for contender in contenders:
            contender.times.append(microseconds(contender.call, contender.calls)[0])
            device, host = microseconds(contender.call, min(contender.calls, 50), busy=True)
            contender.devices.append(device)
            contender.hosts.append(host)
            if contender.replay:
                graphs[contender.name].append(microseconds(contender.replay, 5)[0] / GRAPH_CALLS)
    rows = []
    for contender in contenders:
        row = contender.row(size, ranks)
        if graphs[contender.name]:
            row["graph_us"] = statistics.median(graphs[contender.name])
        rows.append(row)
        say(line(row))
    return rows


def line(row):
    graph = f"{row['graph_us']:8.1f}" if "graph_us" in row else f"{'':>8}"
    return (
        f" {row['size']:>10} {row['type']:>9} {row['redop']:>6} {row['path']:>15} {row['us']:>9.1f}"
        f" {row['spread']:>7.1f} {row['algbw']:>8.1f} {row['busbw']:>8.1f} {row['device_us']:>9.1f}"
        f" {graph} {row['host_us']:>7.1f} {row['blocks']:>7}"
    )


def calls_for(contender):
    """As many calls as fill a repeat; the same on every rank."""
    estimate = torch.tensor(microseconds(contender.call, 5)[0])
    slowest(estimate)
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


def microseconds(call, calls, busy=False):
    """(on the GPU, on the host) per call, of the slowest rank."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    slowest(torch.zeros(1))  # ranks begin together
    if busy:
        torch.cuda._sleep(BUSY_CYCLES + 100_000 * calls)
    start = time.perf_counter()
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    host = (time.perf_counter() - start) * 1e6 / calls
    torch.cuda.synchronize()
    found = torch.tensor([begin.elapsed_time(end) * 1e3 / calls, host])
    slowest(found)
    return found.tolist()


def slowest(tensor):
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)  # on the CPU, by gloo
