"""python -m smfar tune: measures all-reduces on this machine, and writes what is faster.

For every number of ranks, all algorithms that can run there, with so many blocks, are each measured
turn about with what programs take now: what a table says where there is one, or the plan's own.
The best of each size is then measured again beside it, and takes its place only if it is faster by
more than the spread: the middle halves of their times must not meet. Times are those of the GPU,
with calls queued behind a busy one; on the software switch the host's. All are on bf16 in the
window, and every choice's sums are checked.

Not here: the file (plan_table.py), and how ranks start (bench_ranks.py).
"""

import copy
import math
import os
import re
import statistics
import sys
import time
from dataclasses import asdict, replace

import torch
import torch.distributed as dist

import smfar
from smfar import _C, plan_table
from smfar.bench_ranks import (
    at_least,
    finish,
    interleaved,
    join,
    launch,
    microseconds,
    no_gpu,
    parse_size,
    slowest,
    write_json,
)
from smfar.plan_table import Row

# of sums of floats: a one-shot through the switch has none
ALGORITHMS = ("push_mc", "twoshot_mc", "push_peer", "oneshot_peer", "twoshot_peer")
SPLITS = ("split_mc", "split_peer")  # whose calls block the host: only when asked for
WHOLE = ("push_mc", "push_peer", "oneshot_peer")
ELEMENT = 2  # bytes
SECONDS = 0.01  # of one repeat
SCAN_REPEATS = 5
BUSY_CALLS = 50
PLAN = ("the plan's own",)  # a choice: no row


def numbers(least):
    """A type for argparse: "2,4" -> [2, 4], none below `least`."""

    def parse(text):
        return sorted({at_least(least)(part) for part in text.split(",")})

    parse.__name__ = "list of whole numbers"
    return parse


def add_arguments(parser):
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if there is one")
    parser.add_argument("--ranks", type=numbers(2), help="e.g. 2,4,8; default: one per GPU; 4")
    parser.add_argument("--min", type=parse_size, default="1K", help="smallest size, e.g. 1K")
    parser.add_argument("--max", type=parse_size, help="largest; default: 256M, on the CPU 4M")
    parser.add_argument("--step", type=at_least(2), default=4, help="each size's ratio to the last")
    parser.add_argument("--blocks", type=numbers(1), default="1,2,4,8,16,32", help="to try")
    parser.add_argument("--repeats", type=at_least(4), default=20, help="of what is decided by")
    parser.add_argument(
        "--splits", action="store_true", help="try split_mc and split_peer: calls block the host"
    )
    parser.add_argument("--out", metavar="FILE", help='default: where programs look; "-": none')
    parser.add_argument("--json", metavar="FILE", help="write every figure there, too")


def fill_in(args):
    """What was left to this machine."""
    gpus = torch.cuda.device_count()
    args.device = args.device or ("cuda" if gpus else "cpu")
    on_gpus = args.device == "cuda"
    args.ranks = args.ranks or [max(2, gpus) if on_gpus else 4]
    args.max = args.max or (256 << 20 if on_gpus else 4 << 20)


def run(args):
    """Measures, prints, writes; returns the exit status: 1 where a sum was wrong or the
    table could not be written, 2 where there is no size to measure."""
    fill_in(args)
    if args.device == "cuda" and no_gpu("tune --device cuda"):
        return 77
    if not ELEMENT <= args.min <= args.max:
        said = f"--min must be {ELEMENT} bytes or more, and --max no less than --min"
        print(f"tune: {said}", file=sys.stderr)
        return 2
    path = args.out or plan_table.place()
    if not path:
        print("tune: HOME names no folder for the table: give --out FILE", file=sys.stderr)
        return 2
    text = "" if path == "-" else read_table(path)
    results = [launch(rank_main, one_of(args, ranks)) for ranks in args.ranks]
    for result in results:
        rows = [Row(**row) for row in result["rows"]]
        text = plan_table.replace_section(text, result["topology"], rows)
    write_json(args.json, {"tune": results})
    if any(wrong(line) for result in results for line in result["sizes"]):
        print("sums were wrong: nothing is written")
        return 1
    return hand_over(path, text)


def hand_over(path, text):
    """What has taken so long is not lost where it cannot be written."""
    try:
        if path != "-":
            plan_table.write(path, text)
            print(f"\n{path} is written")
            return 0
    except OSError as error:
        print(f"tune: {path} cannot be written, so here it is: {error}", file=sys.stderr)
    shown = text.encode(errors="surrogateescape").decode(errors="replace")
    print(f"\n{shown}", end="")
    return 0 if path == "-" else 1


def wrong(line):
    return line["old"]["wrong"] or line.get("new", line["old"])["wrong"]


def read_table(path):
    """Before anything is measured: rows for other topologies will stand beside the new ones."""
    try:
        return plan_table.read(path)
    except smfar.ArgumentError as error:
        raise SystemExit(f"tune: {error}; mend or remove it, or give --out") from error


def one_of(args, ranks):
    one = copy.copy(args)
    one.ranks = ranks
    return one


# ---- a way of reducing, and its times ----


class Way:
    """A group with a table, "0": none, None: what programs get now. Collective, as all here."""

    def __init__(self, args, table):
        window = max(1 << 28, 4 * args.max)
        options = smfar.Options(window_bytes=window, plan_table=table)
        self.file = table or plan_table.place()
        self.group, self.device = dist.new_group(backend="smfar", pg_options=options), args.device
        self.tensor = smfar.empty(
            args.max // ELEMENT, dtype=torch.bfloat16, device=device(args), group=self.group
        )

    def close(self):
        self.tensor = None
        dist.destroy_process_group(self.group)

    def call(self, size):
        part = self.tensor[: size // ELEMENT]
        return lambda: smfar.ops.all_reduce_(part, group=self.group)

    def path(self, size):
        """(what a call takes, elements of its sums that are wrong on any rank)"""
        ranks, rank = dist.get_world_size(), dist.get_rank()
        part = self.tensor[: size // ELEMENT]
        values = torch.arange(part.numel(), dtype=torch.int32, device=part.device) % 2 + 1
        part.copy_(values * (rank + 1))
        before = self.calls()
        self.call(size)()
        wrong = (part != values * (ranks * (ranks + 1) // 2)).sum().cpu()
        part.zero_()
        dist.all_reduce(wrong)
        (taken,) = (p for p in self.paths() if p.calls != before.get(p.algorithm, 0))
        return taken, int(wrong)

    def calls(self):
        return {path.algorithm: path.calls for path in self.paths()}

    def paths(self):
        paths = smfar.report(self.group, self.device)
        return [path for path in paths if path.collective == "all_reduce"]


def device(args):
    return torch.device("cuda", torch.cuda.current_device()) if args.device == "cuda" else "cpu"


def turn_about(ways, size, repeats):
    """Microseconds per call of each way, a list per way."""
    calls = [way.call(size) for way in ways]
    time_of = on_gpu if ways[0].device == "cuda" else on_host
    for call in calls:
        call()
    numbers_of_calls = [
        max(3, min(BUSY_CALLS, int(SECONDS * 1e6 / max(time_of(call, 3), 1)))) for call in calls
    ]
    times = [[] for _ in ways]
    for found, call, number in interleaved(
        list(zip(times, calls, numbers_of_calls, strict=True)), repeats
    ):
        found.append(time_of(call, number))
    return times


def on_gpu(call, number):
    return microseconds(call, number, busy=True)[0]


def on_host(call, number):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(number):
        call()
    each = (time.perf_counter() - begin) * 1e6 / number
    return slowest(torch.tensor(each, dtype=torch.float64)).item()


# ---- what to try ----


def limit(algorithm, ranks):
    """The most bytes that an algorithm takes; None: any."""
    return _C.WHOLE_BYTES // ranks if algorithm in WHOLE else None


def choices(args, described):
    """(algorithm, blocks) pairs that can run where `described` was said."""
    most = min(map(int, re.findall(r"(\d+) SMs", described))) // int(
        re.search(r"ranks_per_gpu=(\d+)", described)[1]
    )
    multicast = "multicast=on" in described
    return [
        (algorithm, blocks)
        for algorithm in ALGORITHMS + (SPLITS if args.splits else ())
        for blocks in args.blocks
        if blocks <= max(most, 1)
        and (multicast or not algorithm.endswith("_mc"))
        and (limit(algorithm, args.ranks) or args.min) >= args.min
    ]


class Tables:
    """Files in the run's folder, each read by a group as it is made."""

    def __init__(self, folder, topology):
        self.folder, self.topology, self.made = folder, topology, 0

    def write(self, rows):
        self.made += 1
        path = os.path.join(self.folder, f"table{self.made}")
        if dist.get_rank() == 0:
            plan_table.write(path, plan_table.replace_section("", self.topology, rows))
        dist.barrier()
        return path


# ---- one number of ranks ----


def rank_main(rank, args, folder):
    torch.set_num_threads(1)
    if args.device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    join("gloo", rank, args, folder)
    now = Way(args, None)
    described = smfar.describe(now.group, args.device)
    topology = re.search(r"topology (.*)", described)[1]
    say = print if rank == 0 else lambda *_, **__: None
    say(f"# {topology}; torch {torch.__version__}")
    tables = Tables(folder, topology)
    best = scan(args, now, choices(args, described), tables, say)
    lines = decide(args, now, best, tables)
    say(table_of(lines))
    rows = rows_of(lines, args)
    now.close()
    result = {"ranks": args.ranks, "device": args.device, "topology": topology, "sizes": lines}
    finish(rank, result | {"rows": [asdict(row) for row in rows]}, folder)


def sizes_of(args):
    sizes = [args.min]
    while sizes[-1] * args.step <= args.max:
        sizes.append(sizes[-1] * args.step)
    return sizes


def scan(args, now, tried, tables, say):
    """{size: (time as a part of today's, choice)} where a choice looks faster than today's."""
    best = {}
    if "plan table: none" not in smfar.describe(now.group, args.device):
        tried = [PLAN, *tried]
    for number, choice in enumerate(tried, 1):
        most = limit(choice[0], args.ranks)
        way = Way(args, "0" if choice == PLAN else tables.write([Row(0, most, *choice)]))
        for size in sizes_of(args):
            if most is None or size <= most:
                old, new = map(statistics.median, turn_about([now, way], size, SCAN_REPEATS))
                best[size] = min(best.get(size, (1.0, None)), (new / old, choice))
        way.close()
        say(f"# {number} of {len(tried)} tried: {' / '.join(map(str, choice))}", flush=True)
    return {size: choice for size, (_, choice) in best.items() if choice}


def decide(args, now, best, tables):
    """A line of figures for every size. `best` is what scan has found."""
    rows = [Row(size, size, *choice) for size, choice in best.items() if choice != PLAN]
    way, lines = Way(args, tables.write(rows)), []
    for size in sizes_of(args):
        line = {"size": size, "old": side(now, size)}
        if size in best:
            old, new = turn_about([now, way], size, args.repeats)
            line["new"] = side(way, size) | figures(new)
        else:
            (old,) = turn_about([now], size, args.repeats)
        line["old"] |= figures(old)
        lines.append(line | {"changed": "new" in line and is_faster(line["new"], line["old"])})
    way.close()
    return lines


def side(way, size):
    path, wrong = way.path(size)
    number = re.match(r"line (\d+) of the plan table", path.reason)
    row = plan_table.row_at(way.file, int(number[1])) if number else None
    taken = {"algorithm": path.algorithm, "blocks": path.blocks, "threads": path.threads}
    return taken | {"row": row and asdict(row), "wrong": wrong}


def figures(times):
    low, middle, high = statistics.quantiles(times, n=4)
    return {"us": middle, "low": low, "high": high}


def is_faster(new, old):
    """By more than the spread: the middle halves of their times do not meet."""
    return new["high"] < old["low"]


# ---- what becomes of it ----


def rows_of(lines, args):
    """The rows of a section: what is faster, and what a table said already. Each reaches half a
    step beyond its size."""
    rows, half = [], math.sqrt(args.step)
    for line in lines:
        taken = line["new"] if line["changed"] else line["old"]
        if taken["row"]:
            begin, end = int(line["size"] / half) + 1, int(line["size"] * half)
            most = limit(taken["algorithm"], args.ranks) or end
            rows.append(Row(**taken["row"] | {"begin": begin, "end": min(end, most)}))
    return joined(rows)


def joined(rows):
    """Neighbours that say the same as one."""
    found = []
    for row in rows:
        last = found[-1] if found else None
        if (
            last
            and last.end == row.begin - 1
            and last == replace(row, begin=last.begin, end=last.end)
        ):
            found[-1] = replace(last, end=row.end)
        else:
            found.append(row)
    return found


def table_of(lines):
    text = [
        f"#{'size':>10} {'now':>22} {'time':>9} {'spread':>7} {'best of others':>22} {'time':>9}"
        f" {'spread':>7} {'gain':>7}\n"
        f"#{'(B)':>10} {'':>22} {'(us)':>9} {'(us)':>7} {'':>22} {'(us)':>9} {'(us)':>7}"
    ]
    for line in lines:
        text.append(f" {line['size']:>10} {side_text(line['old'])}")
        if "new" in line:
            gain = (line["old"]["us"] / line["new"]["us"] - 1) * 100
            said = "taken" if line["changed"] else "within the spread"
            text[-1] += f" {side_text(line['new'])} {gain:>+6.1f}% {said}"
    return "\n".join(text)


def side_text(side):
    shape = f"{side['algorithm']} {side['blocks']}x{side['threads']}"
    return f"{shape:>22} {side['us']:>9.1f} {side['high'] - side['low']:>7.1f}"
