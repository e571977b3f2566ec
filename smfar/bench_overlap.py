"""python -m smfar bench overlap: what an all-reduce costs the matrix products that run beside it.

Two workloads: bf16 products of `edge`³, and the products, attention and elementwise steps of a
transformer layer of half that width. Each is run alone, and with one all-reduce beside each of its
steps, on another stream of high priority, from the step's beginning:

    slowdown    how much longer a step takes than alone, in percent
    alone       the all-reduce with nothing beside it
    beside      the same beside a step, from the step's beginning until the all-reduce has ended
    both        from a step's beginning until both have ended, over all steps
    SM-us       what the all-reduce holds meanwhile (bench_profile.py), in a pass of its own

Times are microseconds of the slowest rank, medians over interleaved repeats; `spread` is the middle
half of a step's time.
"""

import statistics

import torch

import smfar
from smfar.bench_contenders import everybody
from smfar.bench_profile import LEAD, Recording, multiprocessors, over_ranks, summarize
from smfar.bench_ranks import (
    at_least,
    finish,
    interleaved,
    join_on_gpu,
    launch,
    machine_line,
    meet,
    no_gpu,
    own_gpus,
    parse_size,
    slowest,
    stay_busy,
    write_json,
)

HEADS = 32
STEPS = 20  # of one repeat
PROFILED_STEPS = 8


def add_arguments(parser):
    parser.add_argument("--ranks", type=at_least(2), default=2)
    parser.add_argument("--bytes", type=parse_size, default="64M", help="of the all-reduce")
    parser.add_argument("--edge", type=int, default=8192, help="of the matrices")
    parser.add_argument("--repeats", type=at_least(2), default=10)
    parser.add_argument("--json", metavar="FILE", help="write every figure there, too")


def run(args):
    if no_gpu("bench overlap"):
        return 77
    write_json(args.json, launch(rank_main, args))
    return 0


def rank_main(rank, args, folder):
    group, result = join_on_gpu(rank, args, folder, args.bytes)
    say = print if rank == 0 else lambda *_, **__: None
    say(f"# {machine_line()}; all-reduce of {args.bytes} bytes of bf16")
    if not own_gpus():
        say("# ranks and their products share a GPU: neither links nor copy engines show here")
    contenders = everybody(args.bytes, group, say)
    result |= {"bytes": args.bytes, "overlap": []}
    for workload in (Products(args.edge), Layer(args.edge // 2)):
        result["overlap"].append(measure(workload, contenders, args.repeats, say))
    say("\n" + smfar.describe(group, "cuda"))
    finish(rank, result, folder)


# ---- what runs beside it ----


def random(*size):
    device = torch.device("cuda", torch.cuda.current_device())
    return torch.randn(*size, device=device, dtype=torch.bfloat16)


class Products:
    """One product of two square matrices a step."""

    def __init__(self, edge):
        self.name = f"{edge}x{edge}x{edge}"
        self.left, self.right, self.out = random(edge, edge), random(edge, edge), random(edge, edge)

    def step(self):
        torch.mm(self.left, self.right, out=self.out)


class Layer:
    """One transformer layer a step: as many tokens as it is wide, forward only."""

    def __init__(self, width):
        self.name = f"layer of {width}"
        self.width, self.heads = width, min(HEADS, width // 64)
        self.tokens = random(1, width, width)
        scale = width**-0.5
        sizes = {"qkv": 3 * width, "out": width, "up": 4 * width}
        self.weights = {name: random(size, width) * scale for name, size in sizes.items()}
        self.down = random(width, 4 * width) * scale / 2

    @torch.no_grad()
    def step(self):
        functional, width = torch.nn.functional, self.width
        normed = functional.layer_norm(self.tokens, (width,))
        parts = functional.linear(normed, self.weights["qkv"]).chunk(3, dim=-1)
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        mixed = mixed.transpose(1, 2).flatten(-2)
        tokens = self.tokens + functional.linear(mixed, self.weights["out"])
        inner = functional.gelu(functional.linear(tokens, self.weights["up"]))
        return tokens + functional.linear(inner, self.down)


# ---- times ----


class Times:
    """What one contender (None: nobody) does to a workload, a number per repeat."""

    def __init__(self, contender):
        self.contender = contender
        self.step, self.beside, self.both, self.alone = [], [], [], []

    def take(self, workload, side):
        step, beside, both = run_beside(workload, self.contender, side)
        self.step.append(step)
        self.beside.append(beside)
        self.both.append(both)
        if self.contender:
            self.alone.append(run_beside(None, self.contender, side)[1])


def run_beside(workload, contender, side):
    """(a step, an all-reduce, until both have ended): microseconds each, of the slowest rank."""
    main = torch.cuda.current_stream()
    first, last, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    pairs = []
    meet()
    stay_busy(3 * STEPS)
    first.record()
    for _ in range(STEPS):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        if contender:
            with torch.cuda.stream(side):
                side.wait_event(begun)
                contender.call()
                ended.record(side)
            pairs.append((begun, ended))
        if workload:
            workload.step()
        elif contender:
            main.wait_event(ended)  # one after the other
    last.record()
    main.wait_stream(side)
    end.record()
    torch.cuda.synchronize()
    beside = statistics.median(a.elapsed_time(b) for a, b in pairs) if pairs else 0.0
    found = [first.elapsed_time(last) / STEPS, beside, first.elapsed_time(end) / STEPS]
    return (slowest(torch.tensor(found)) * 1e3).tolist()


def measure(workload, contenders, repeats, say):
    side = torch.cuda.Stream(priority=-1)
    nobody = Times(None)
    all_times = [Times(contender) for contender in contenders]
    for times in (nobody, *all_times):
        run_beside(workload, times.contender, side)  # to warm up
    for times in interleaved([nobody, *all_times], repeats):
        times.take(workload, side)
    alone = statistics.median(nobody.step)
    names = names_of(workload)
    say(header(workload, nobody, alone), flush=True)
    rows = []
    for times in all_times:
        held = hold(workload, times.contender, side, names)
        rows.append(times.contender.row() | figures(times, alone) | held.row())
        say(line(rows[-1]), flush=True)
    return {
        "workload": workload.name,
        "step_us": alone,
        "spread": spread(nobody.step),
        "rows": rows,
    }


def spread(values):
    middle = statistics.quantiles(values, n=4)
    return middle[2] - middle[0]


def figures(times, alone):
    row = {name: statistics.median(getattr(times, name)) for name in ("step", "beside", "both")}
    row = {f"{name}_us": value for name, value in row.items()}
    row |= {"spread": spread(times.step), "alone_us": statistics.median(times.alone)}
    return row | {"slowdown": 100 * (row["step_us"] / alone - 1)}


# ---- what is held ----


def names_of(workload):
    """The names of a workload's kernels: all others, later, are the all-reduce's."""
    meet()
    with Recording() as recording:
        for _ in range(2):
            workload.step()
    return {event["name"] for event in recording.events}


def hold(workload, contender, side, names):
    steps = LEAD + PROFILED_STEPS
    meet()
    with Recording() as recording:
        meet()
        stay_busy(3 * steps)
        for _ in range(steps):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                contender.call()
            workload.step()
        torch.cuda.current_stream().wait_stream(side)
    recording.events = [event for event in recording.events if event["name"] not in names]
    return over_ranks(summarize(recording, steps, multiprocessors()))


# ---- the table ----


def header(workload, nobody, alone):
    return (
        f"\n# {workload.name}: {alone:.1f} us alone (spread {spread(nobody.step):.1f})\n"
        f"#{'path':>20} {'step':>9} {'spread':>7} {'slowdown':>9} {'alone':>8} {'beside':>8}"
        f" {'both':>9} {'blocks':>7} {'threads':>7} {'SM-us':>9} {'copies':>7} {'copy':>8}\n"
        f"#{'':>20} {'(us)':>9} {'(us)':>7} {'(%)':>9} {'(us)':>8} {'(us)':>8} {'(us)':>9}"
        f" {'':>7} {'':>7} {'':>9} {'':>7} {'(us)':>8}"
    )


def line(row):
    text = (
        f" {row['path']:>20} {row['step_us']:>9.1f} {row['spread']:>7.1f} {row['slowdown']:>9.1f}"
        f" {row['alone_us']:>8.1f} {row['beside_us']:>8.1f} {row['both_us']:>9.1f}"
    )
    if "note" in row:
        return f"{text} {row['note']}"
    return (
        f"{text} {row['blocks']:>7} {row['threads']:>7} {row['sm_us']:>9.1f} {row['copies']:>7.1f}"
        f" {row['copy_us']:>8.1f}"
    )
