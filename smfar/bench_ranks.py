"""How a bench starts its ranks, and what it has them agree on.

A bench is a function `main(rank, args, folder)` that ends with `finish`; rank 0's result comes back
through a file. Between ranks, times and verdicts travel by gloo, on the CPU, so that asking for
them puts nothing on a GPU.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import smfar

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
BUSY_CYCLES = 2_000_000  # of the GPU's clock, about a millisecond: the queue fills meanwhile
CYCLES_PER_CALL = 100_000


def parse_size(text):
    """ "64M" -> 67108864"""
    unit = UNITS.get(text[-1].upper(), 1)
    return int(text[:-1] if unit > 1 else text) * unit


def interleaved(contenders, repeats):
    """Each contender, `repeats` times: every time round in another order, the same on all ranks.
    Who came before has warmed the GPU, or let it cool.

    In twice as many repeats as there are contenders each comes equally often at each place, and
    behind each other one of a round (E. J. Williams, 1949: 0, -1, 1, -2, 2, ... one further on
    every time; of an odd number the second half backwards).
    """
    count = len(contenders)
    for repeat in range(repeats):
        order = [(repeat + (-1) ** i * ((i + 1) // 2)) % count for i in range(count)]
        if count % 2 and repeat // count % 2:
            order.reverse()
        yield from (contenders[place] for place in order)


def at_least(least):
    """A type for argparse: a whole number, not below `least`."""

    def parse(text):
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is below {least}")
        return number

    parse.__name__ = "whole number"  # what argparse calls it where it is none
    return parse


def launch(main, args, scratch=None):
    """Rank 0's result of `main` on args.ranks processes; their folder is made in `scratch`."""
    folder = tempfile.mkdtemp(prefix="smfar-bench-", dir=scratch)
    try:
        mp.spawn(main, (args, folder), args.ranks)
        with open(os.path.join(folder, "result.json")) as file:
            return json.load(file)
    finally:
        shutil.rmtree(folder)


def write_json(path, result):
    if path:
        with open(path, "w") as file:
            json.dump(result, file, indent=1)


def read_json(path):
    """What write_json has written; SystemExit, in a sentence, where that is not so."""
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path} does not hold what a bench's --json writes: {error}") from error


def join(backends, rank, args, folder):
    dist.init_process_group(
        backends,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=args.ranks,
        timeout=timedelta(minutes=2),
    )


def finish(rank, result, folder):
    if rank == 0:
        with open(os.path.join(folder, "result.json"), "w") as file:
            json.dump(result, file)
    dist.barrier()
    dist.destroy_process_group()


# ---- on GPUs ----


def join_on_gpu(rank, args, folder, largest, tensors=4):
    """(smfar's group, what to write about this machine). The default group is the peers'.

    The window is as large as so many `tensors` of `largest` bytes, of which staging takes some.
    Rank r takes GPU r modulo their number; NCCL serves the default group where every rank has a GPU
    of its own.
    """
    gpus = torch.cuda.device_count()
    torch.cuda.set_device(rank % gpus)
    if gpus < args.ranks:
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    join("cpu:gloo,cuda:nccl" if gpus >= args.ranks else "gloo", rank, args, folder)
    window = max(1 << 28, tensors * largest)
    group = dist.new_group(backend="smfar", pg_options=smfar.Options(window_bytes=window))
    machine = {"ranks": args.ranks, "gpus": gpus, "gpu": torch.cuda.get_device_name()}
    return group, machine | {"torch": torch.__version__}


def no_gpu(bench):
    """Says so where nothing can be measured."""
    if torch.cuda.is_available():
        return False
    print(f"{bench}: this machine has no GPU that torch can use")
    return True


def own_gpus():
    """Has every rank a GPU of its own?"""
    return torch.cuda.device_count() >= dist.get_world_size()


def machine_line():
    ranks, gpus = dist.get_world_size(), torch.cuda.device_count()
    name = torch.cuda.get_device_name()
    return f"{ranks} ranks on {min(gpus, ranks)} x {name}, torch {torch.__version__}"


def slowest(tensor):
    """The largest of every rank's, in place."""
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)  # on the CPU, by gloo
    return tensor


def meet():
    """Every rank's GPU is idle, and the ranks go on together."""
    torch.cuda.synchronize()
    slowest(torch.zeros(1))


def stay_busy(calls):
    """Keeps the GPU busy while the host enqueues so many calls behind it."""
    torch.cuda._sleep(BUSY_CYCLES + CYCLES_PER_CALL * calls)


def microseconds(call, calls, busy=False):
    """[on the GPU, on the host] per call, of the slowest rank. Behind a busy GPU a call more comes
    first, so that ranks begin together."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    meet()
    if busy:
        stay_busy(calls + 1)
        call()
    start = time.perf_counter()
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    host = (time.perf_counter() - start) * 1e6 / calls
    torch.cuda.synchronize()
    return slowest(torch.tensor([begin.elapsed_time(end) * 1e3 / calls, host])).tolist()
