"""python -m smfar bench held: do copies go on while a kernel holds every multiprocessor?

On every rank a kernel fills all SMs and spins. Then each collective that only moves data is called
on tensors in the window, and must end before the kernel is let go; a small kernel enqueued at the
same time must not, which shows that there was no room. Beside them, the plain copy to the next
rank's memory that a copy engine does. GB/s are bytes that leave the busiest rank, in the slowest's
time.

Needs a GPU for each rank: copies inside one GPU run on its SMs. So does a rank's own part of an
all-to-all, which is why that has split sizes here, and none for oneself.
"""

import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

import smfar
from smfar.bench_hold import Holder, copy
from smfar.bench_ranks import (
    at_least,
    finish,
    interleaved,
    join_on_gpu,
    launch,
    machine_line,
    meet,
    no_gpu,
    parse_size,
    slowest,
    write_json,
)

CALLS = 10
IN_TIME, LATE, NOT_HELD = range(3)
LIMIT_S = 2.0  # for CALLS calls that take some milliseconds


def add_arguments(parser):
    parser.add_argument("--ranks", type=at_least(2), default=2)
    parser.add_argument("--bytes", type=parse_size, default="64M", help="to each other rank")
    parser.add_argument("--repeats", type=at_least(2), default=5)
    parser.add_argument("--json", metavar="FILE", help="write every figure there, too")


def run(args):
    if no_gpu("bench held"):
        return 77
    gpus = torch.cuda.device_count()
    if gpus < args.ranks:
        print(
            f"bench held: {args.ranks} ranks need {args.ranks} GPUs, one each, and this machine has"
            f" {gpus}; copies inside one GPU run on its SMs"
        )
        return 77
    result = launch(rank_main, args)
    write_json(args.json, result)
    return 0 if all(row["ended"] for row in result["held"]) else 1


def rank_main(rank, args, folder):
    group, result = join_on_gpu(rank, args, folder, args.ranks * args.bytes)
    say = print if rank == 0 else lambda *_, **__: None
    say(f"# {machine_line()}; {args.bytes} bytes to each other rank, SMs held by a spinning kernel")
    movers = [*peer_copy(args.bytes), *ours(args.bytes, group)]
    result |= {"bytes": args.bytes, "held": measure(movers, args.repeats, say)}
    say("\n" + smfar.describe(group, "cuda"))
    finish(rank, result, folder)


# ---- what moves data ----


class Mover:
    """`sent` bytes leave the busiest rank in each call, which enqueues on the current stream."""

    def __init__(self, name, call, sent):
        self.name, self.call, self.sent = name, call, sent
        self.free, self.held = [], []  # GB/s
        self.ended = True


def peer_copy(bytes_):
    """To the next rank's symmetric memory of torch's."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device())
    shared = symmetric.empty(bytes_, dtype=torch.uint8, device=device)
    handle = symmetric.rendezvous(shared, dist.group.WORLD.group_name)
    mine = torch.zeros(bytes_, dtype=torch.uint8, device=device)
    target = handle.buffer_ptrs[(rank + 1) % ranks]
    keep = (shared, handle, mine)

    def call():
        copy(target, keep[2].data_ptr(), bytes_)

    return [Mover("copy to one peer", call, bytes_)]


def ours(bytes_, group):
    """In the window; what is a rank's own stays where it is."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device())
    room = smfar.empty(ranks * bytes_, dtype=torch.uint8, device=device, group=group)
    room.zero_()
    mine, shared = room[rank * bytes_ : (rank + 1) * bytes_], room[:bytes_]
    root = dist.get_global_rank(group, 0)

    def all_gather():
        with smfar.sm_budget(0):
            dist.all_gather_into_tensor(room, mine, group=group)

    def broadcast():
        with smfar.sm_budget(0):
            dist.broadcast(shared, root, group=group)

    splits = [bytes_ if r != rank else 0 for r in range(ranks)]
    others = room[: (ranks - 1) * bytes_]
    sent = torch.zeros((ranks - 1) * bytes_, dtype=torch.uint8, device=device)

    def all_to_all():
        with smfar.sm_budget(0):
            dist.all_to_all_single(others, sent, splits, splits, group=group)

    return [
        Mover("all-gather", all_gather, (ranks - 1) * bytes_),
        Mover("broadcast", broadcast, (ranks - 1) * bytes_),
        Mover("all-to-all", all_to_all, (ranks - 1) * bytes_),
    ]


# ---- with every SM held, and without ----


def measure(movers, repeats, say):
    holder, stream = Holder(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for mover in movers:  # what is loaded or allocated at the first use is there from now on
            mover.call()
    meet()
    say(header(), flush=True)
    for mover in interleaved(movers, repeats):
        mover.free.append(rate(mover, stream))
        if mover.ended:
            with holder:
                mover.held.append(rate(mover, stream, holder))
            mover.ended = bool(mover.held[-1])
    best = statistics.median(movers[0].free)
    rows = [row(mover, best) for mover in movers]
    for one in rows:
        say(line(one), flush=True)
    return rows


def rate(mover, stream, holder=None):
    """GB/s of CALLS calls on the slowest rank; 0 if any rank's have not ended in time."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    slowest(torch.zeros(1))
    with torch.cuda.stream(stream):
        begin.record()
        for _ in range(CALLS):
            mover.call()
        end.record()
    limit = time.monotonic() + LIMIT_S
    while not end.query() and time.monotonic() < limit:
        time.sleep(1e-4)
    verdict = LATE if not end.query() else IN_TIME
    if holder is not None and not holder.holds():
        verdict = NOT_HELD
    verdict = slowest(torch.tensor(verdict)).item()
    if verdict == NOT_HELD:
        raise RuntimeError("bench held: a small kernel found room: the SMs were not all held")
    if verdict == LATE:
        return 0.0
    seconds = slowest(torch.tensor(begin.elapsed_time(end) / 1e3, dtype=torch.float64))
    return CALLS * mover.sent / seconds.item() / 1e9


def row(mover, best):
    free = statistics.median(mover.free)
    found = {"path": mover.name, "sent": mover.sent, "ended": mover.ended, "free_GBps": free}
    if mover.ended:
        held = statistics.median(mover.held)
        found |= {"held_GBps": held, "of_copy": held / best}
        found["spread"] = max(mover.held) - min(mover.held)
    return found


def header():
    return (
        f"#{'path':>18} {'sent':>12} {'SMs free':>9} {'SMs held':>9} {'spread':>7}"
        f" {'of the copy':>12}\n"
        f"#{'':>18} {'(B)':>12} {'(GB/s)':>9} {'(GB/s)':>9} {'(GB/s)':>7}"
    )


def line(row):
    text = f" {row['path']:>18} {row['sent']:>12} {row['free_GBps']:>9.1f}"
    if not row["ended"]:
        return f"{text} has not ended within {LIMIT_S:.0f} s: it needs an SM"
    return f"{text} {row['held_GBps']:>9.1f} {row['spread']:>7.1f} {row['of_copy']:>12.3f}"
