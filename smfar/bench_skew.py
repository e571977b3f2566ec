"""python -m smfar bench skew: what a late rank costs the others.

The last rank's GPU is kept busy for some milliseconds before each all-reduce; SM-us is what the
other ranks hold meanwhile (bench_profile.py), per call, the mean over them. `waiting` is how much
of it the delay adds. Ranks are brought together before every call: nothing else makes them wait.
"""

import torch
import torch.distributed as dist

import smfar
from smfar.bench_contenders import everybody
from smfar.bench_profile import LEAD, Recording, multiprocessors, over_ranks, summarize
from smfar.bench_ranks import (
    BUSY_CYCLES,
    at_least,
    finish,
    join_on_gpu,
    launch,
    machine_line,
    meet,
    no_gpu,
    own_gpus,
    parse_size,
    write_json,
)

DELAYS_MS = (0, 1, 2, 5)
BUDGETS = (4,)
CALLS = 5


def add_arguments(parser):
    parser.add_argument("--ranks", type=at_least(2), default=2)
    parser.add_argument("--bytes", type=parse_size, default="64M", help="of the all-reduce")
    parser.add_argument("--json", metavar="FILE", help="write every figure there, too")


def run(args):
    if no_gpu("bench skew"):
        return 77
    write_json(args.json, launch(rank_main, args))
    return 0


def rank_main(rank, args, folder):
    group, result = join_on_gpu(rank, args, folder, args.bytes)
    say = print if rank == 0 else lambda *_, **__: None
    say(f"# {machine_line()}; all-reduce of {args.bytes} bytes of bf16, rank {args.ranks - 1} late")
    if not own_gpus():
        say("# ranks share a GPU: the late rank's kernel takes one of its multiprocessors")
    contenders = everybody(args.bytes, group, say, BUDGETS)
    per_ms = cycles_per_ms()
    for contender in contenders:
        wait_for_late(contender, 0, 1)  # to warm up
    say(header(), flush=True)
    result |= {"bytes": args.bytes, "skew": []}
    for contender in contenders:
        result["skew"] += measure(contender, per_ms, say)
    say("\n" + smfar.describe(group, "cuda"))
    finish(rank, result, folder)


def cycles_per_ms():
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(BUSY_CYCLES)  # the clock rises
    begin.record()
    torch.cuda._sleep(10 * BUSY_CYCLES)
    end.record()
    end.synchronize()
    return 10 * BUSY_CYCLES / begin.elapsed_time(end)


def is_late():
    return dist.get_rank() == dist.get_world_size() - 1


def wait_for_late(contender, cycles, calls):
    for _ in range(calls):
        meet()
        torch.cuda._sleep(BUSY_CYCLES + (int(cycles) if is_late() else 0))
        contender.call()


def measure(contender, per_ms, say):
    rows = []
    for delay in DELAYS_MS:
        meet()
        with Recording() as recording:
            wait_for_late(contender, delay * per_ms, LEAD + CALLS)
        held = summarize(recording, LEAD + CALLS, multiprocessors())
        held = over_ranks(held, counts=not is_late())
        rows.append(contender.row() | {"late_ms": delay} | held.row())
        if not held.note and "sm_us" in rows[0]:
            rows[-1]["waiting_sm_us"] = held.sm_us - rows[0]["sm_us"]
        say(line(rows[-1]), flush=True)
    return rows


def header():
    return (
        f"#{'path':>20} {'late':>6} {'blocks':>7} {'threads':>7} {'kernels':>7} {'SM-us':>10}"
        f" {'waiting':>10}\n#{'':>20} {'(ms)':>6} {'':>7} {'':>7} {'':>7} {'':>10} {'(SM-us)':>10}"
    )


def line(row):
    text = f" {row['path']:>20} {row['late_ms']:>6}"
    if "note" in row:
        return f"{text} {row['note']}"
    return (
        f"{text} {row['blocks']:>7} {row['threads']:>7} {row['kernels']:>7.1f}"
        f" {row['sm_us']:>10.1f} {row['waiting_sm_us']:>10.1f}"
    )
