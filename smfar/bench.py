"""python -m smfar bench: the all-reduce beside its peers, turn about in one run.

Starts its own ranks. Prints nccl-tests' columns: `algbw` is bytes of one rank's tensor / time,
`busbw` is algbw * 2 (n - 1) / n (nccl-tests, doc/PERFORMANCE.md). Every time is the median over
interleaved repeats of the slowest rank's. With --device cpu the peer is gloo; the measurements on
GPUs are in bench_cuda.py.
"""

import math
import os
import shutil
import statistics
import time

import torch
import torch.distributed as dist

import smfar
from smfar import backend
from smfar.bench_ranks import (
    at_least,
    finish,
    interleaved,
    join,
    launch,
    no_gpu,
    parse_size,
    write_json,
)

RATE_BYTES = 16 << 20
REPEATS = 5
REPEAT_SECONDS = 0.05
LARGEST_SUM = 1e30  # repeated sums grow by a factor of n each time and must stay finite


def add_arguments(parser):
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="cpu: software switch"
    )
    parser.add_argument(
        "--ranks", type=at_least(1), default=4, help="on cuda ranks may share a GPU"
    )
    parser.add_argument("--min", type=parse_size, default="1K", help="smallest size, e.g. 1K")
    parser.add_argument("--max", type=parse_size, default="64M", help="largest size, e.g. 64M")
    parser.add_argument(
        "--step", type=at_least(2), default=4, help="on cuda: each size is so many times the last"
    )
    parser.add_argument(
        "--repeats", type=at_least(2), default=20, help="on cuda: of which the median counts"
    )
    parser.add_argument("--json", metavar="FILE", help="write every figure there, too")


def run(args):
    """Measures, prints, and returns the exit status: 1 if any result was wrong."""
    if args.device == "cuda":
        if no_gpu("bench --device cuda"):
            return 77
        from smfar import bench_cuda

        result = launch(bench_cuda.rank_main, args)
    else:
        result = launch(rank_main, args, shared_folder(args.ranks))
    write_json(args.json, result)
    return 1 if any(row.get("wrong") for row in result["all_reduce"]) else 0


def shared_folder(ranks):
    """Where the plain loop's copies fit: in memory if possible."""
    need = ranks * RATE_BYTES + (1 << 20)
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return None
    return "/dev/shm" if free > need else None


def rank_main(rank, args, folder):
    torch.set_num_threads(1)
    join("gloo", rank, args, folder)
    switch = dist.new_group(backend="smfar")
    say = print if rank == 0 else lambda *_: None
    result = {"ranks": args.ranks, "torch": torch.__version__, "cpus": os.cpu_count()}
    result["all_reduce"] = sweep(args, switch, say)
    result["rates"] = rates(args.ranks, folder, switch, say)
    say("\n" + smfar.describe(switch, "cpu"))
    finish(rank, result, folder)


# ---- all sizes ----


def sweep(args, switch, say):
    say(
        f"# {args.ranks} ranks on {os.cpu_count()} CPUs; ratio: gloo's time / this time\n"
        f"#{'size':>10} {'count':>10} {'type':>6} {'redop':>6} {'path':>13}"
        f" {'time':>10} {'algbw':>8} {'busbw':>8} {'#wrong':>7} {'ratio':>7}\n"
        f"#{'(B)':>10} {'(elements)':>10} {'':>6} {'':>6} {'':>13}"
        f" {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8}"
    )
    rows = []
    size = args.min
    while size <= args.max:
        rows += measure_size(size, args.ranks, switch, say)
        size *= 4 if size < 16 << 20 and size * 4 <= args.max else 2
    return rows


def measure_size(size, ranks, switch, say):
    count = size // 4
    contenders = {
        "smfar window": Reduction(smfar.empty(count, device="cpu", group=switch), switch),
        "smfar plain": Reduction(torch.empty(count), switch),
        "gloo": Reduction(torch.empty(count), dist.group.WORLD),
    }
    wrong = {name: contender.count_wrong() for name, contender in contenders.items()}
    seconds = medians(contenders)
    rows = []
    for name in contenders:
        row = {"size": size, "count": count, "type": "float", "redop": "sum", "path": name}
        row |= {"us": seconds[name] * 1e6, "algbw": size / seconds[name] / 1e9}
        row["busbw"] = row["algbw"] * 2 * (ranks - 1) / ranks
        row |= {"wrong": wrong[name], "ratio": seconds["gloo"] / seconds[name]}
        rows.append(row)
        say(
            f" {size:>10} {count:>10} {'float':>6} {'sum':>6} {name:>13} {row['us']:>10.1f}"
            f" {row['algbw']:>8.3f} {row['busbw']:>8.3f} {wrong[name]:>7} {row['ratio']:>7.2f}"
        )
    return rows


class Reduction:
    """One way of reducing one tensor in place."""

    def __init__(self, tensor, group):
        self.tensor, self.group = tensor, group

    def fill(self):
        self.tensor.copy_(torch.arange(self.tensor.numel()) % 7 + 1).mul_(dist.get_rank() + 1)

    def __call__(self):
        dist.all_reduce(self.tensor, group=self.group)

    def count_wrong(self):
        """Elements that are not the exact sum, on any rank; the values are small integers."""
        self.fill()
        self()
        ranks = dist.get_world_size()
        right = (torch.arange(self.tensor.numel()) % 7 + 1) * (ranks * (ranks + 1) // 2)
        wrong = (self.tensor != right).sum()
        dist.all_reduce(wrong)
        return int(wrong)


def medians(contenders):
    """Seconds per call of each, the repeats turn about."""
    once = {name: slowest(contender, 1) for name, contender in contenders.items()}
    most = int(math.log(LARGEST_SUM, max(2, dist.get_world_size())))
    iterations = {
        name: max(1, min(most, int(REPEAT_SECONDS / seconds))) for name, seconds in once.items()
    }
    times = {name: [] for name in contenders}
    for name, contender in interleaved(list(contenders.items()), REPEATS):
        times[name].append(slowest(contender, iterations[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def slowest(contender, iterations):
    """Seconds per call on the slowest rank."""
    contender.fill()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        contender()
    seconds = torch.tensor((time.perf_counter() - begin) / iterations, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


# ---- payload at 16 MiB, beside a loop with no library ----


class PlainLoop:
    """Read n copies, add, write n copies, over files that every rank maps."""

    def __init__(self, folder, ranks):
        def mapped(name, count, dtype):
            path = os.path.join(folder, name)
            return torch.from_file(path, shared=True, size=count, dtype=dtype)

        self.copies = [mapped(f"copy{r}", RATE_BYTES // 4, torch.float32) for r in range(ranks)]
        self.meeting = mapped("meeting", 2, torch.int32)

    def fill(self):
        self.copies[dist.get_rank()].fill_(1)

    def __call__(self):
        backend.shim().plain_loop(self.copies, dist.get_rank(), self.meeting)


def rates(ranks, folder, switch, say):
    count = RATE_BYTES // 4
    contenders = {
        "smfar": Reduction(smfar.empty(count, device="cpu", group=switch), switch),
        "plain C loop": PlainLoop(folder, ranks),
        "gloo": Reduction(torch.empty(count), dist.group.WORLD),
    }
    seconds = medians(contenders)
    found = {name: RATE_BYTES / value / 1e9 for name, value in seconds.items()}
    say(f"\n# payload of one rank's 16 MiB f32 window tensor at n = {ranks}, GB/s")
    for name, rate in found.items():
        say(f"{name:>14} {rate:8.3f}")
    found["smfar / plain C loop"] = found["smfar"] / found["plain C loop"]
    found["smfar / gloo"] = found["smfar"] / found["gloo"]
    say(f"smfar / plain C loop {found['smfar / plain C loop']:.3f}")
    say(f"smfar / gloo         {found['smfar / gloo']:.3f}")
    return found
