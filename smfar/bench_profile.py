"""What calls hold of a GPU: blocks, threads and SM-microseconds, measured alike for everybody.

The figures are CUPTI's, through torch.profiler: each kernel's grid, block and duration on the GPU.
SM-µs is the sum over kernels of min(blocks, SMs) x duration: the multiprocessors a kernel held, for
as long as its last block stayed: an upper bound where blocks leave early or share an SM. Copies and
fills are listed apart: a copy engine's time is not an SM's (but copies inside one GPU do run on its
SMs, whatever the list calls them). Waits and writes made by streams appear nowhere.
"""

import json
import os
import statistics
import tempfile
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from smfar.bench_ranks import meet, stay_busy

SPIN = "spin_kernel"  # torch.cuda._sleep's, which only keeps the GPU busy
LEAD = 2  # calls before those that count: in the first one ranks still find each other
NOTHING = "the profiler recorded no kernel here"


@dataclass
class Held:
    """Per call, the mean over ranks; `note` says why there are no figures."""

    sm_us: float = 0.0
    blocks: int = 0  # of the kernel that holds most
    threads: int = 0
    kernels: float = 0.0
    kernel_us: float = 0.0
    copies: float = 0.0
    copy_us: float = 0.0
    note: str = ""

    def row(self):
        """As columns of a row of JSON."""
        fields = asdict(self)
        note = fields.pop("note")
        return {"note": note} if note else fields


class Recording:
    """The GPU's events of what runs inside `with`, in order, once the block has ended.

    Each is kineto's: name, cat ("kernel", "gpu_memcpy", "gpu_memset"), ts and dur in µs, args. What
    the profiler cannot do raises nothing, since other ranks wait for this one: it stands in `note`.
    """

    warm = False  # a process's first record may miss kernels while CUPTI comes up

    def __init__(self):
        self.events, self.note = [], ""
        self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def __enter__(self):
        if not Recording.warm:
            Recording.warm = True
            # where CUDA graphs have been captured, CUPTI must not be taken down and up again
            os.environ.setdefault("TEARDOWN_CUPTI", "0")
            with Recording():
                torch.cuda._sleep(1000)
        self.attempt(self.profile.start)
        return self

    def __exit__(self, *raised):
        torch.cuda.synchronize()
        self.attempt(self.profile.stop)
        self.attempt(self.read)

    def attempt(self, step):
        if self.note:
            return
        try:
            step()
        except (RuntimeError, AssertionError, OSError, ValueError, KeyError) as error:
            self.note = f"the profiler failed: {error}"

    def read(self):
        with tempfile.TemporaryDirectory(prefix="smfar-trace-") as folder:
            path = os.path.join(folder, "trace.json")
            self.profile.export_chrome_trace(path)
            with open(path, errors="replace") as file:
                self.events = on_the_gpu(json.load(file, strict=False)["traceEvents"])


def on_the_gpu(events):
    """A trace's kernels, copies and fills, by the time they began."""
    found = []
    for event in events:
        kind = str(event.get("cat", "")).lower()
        if kind in ("kernel", "gpu_memcpy", "gpu_memset") and SPIN not in event["name"]:
            found.append(event | {"cat": kind})
    return sorted(found, key=lambda event: event["ts"])


def shape(kernel):
    """(blocks, threads per block)"""
    product = [1, 1]
    for index, name in enumerate(("grid", "block")):
        for size in kernel["args"][name]:
            product[index] *= int(size)
    return tuple(product)


def held_by(kernel, sms):
    """SM-µs of one kernel."""
    return min(shape(kernel)[0], sms) * kernel["dur"]


def per_call(events, calls, value):
    """The median over calls of the sum of `value`, without the first LEAD; `calls` counts them all.

    Where the events do not divide evenly among the calls: the mean over all.
    """
    each, rest = divmod(len(events), calls)
    if rest or calls <= LEAD:
        return sum(map(value, events)) / calls
    sums = [sum(map(value, events[i * each : (i + 1) * each])) for i in range(LEAD, calls)]
    return statistics.median(sums)


def summarize(recording, calls, sms):
    """What this rank's events say, per call."""
    kernels = [event for event in recording.events if event["cat"] == "kernel"]
    copies = [event for event in recording.events if event["cat"] != "kernel"]
    if not kernels and not copies:
        return Held(note=recording.note or NOTHING)
    held = Held(kernels=len(kernels) / calls, copies=len(copies) / calls)
    held.copy_us = per_call(copies, calls, lambda copy: copy["dur"])
    if kernels:
        held.blocks, held.threads = shape(max(kernels, key=lambda kernel: held_by(kernel, sms)))
        held.kernel_us = per_call(kernels, calls, lambda kernel: kernel["dur"])
        held.sm_us = per_call(kernels, calls, lambda kernel: held_by(kernel, sms))
    return held


def over_ranks(held, counts=True):
    """The mean over the ranks that count; collective. If one of them has nothing, all have."""
    numbers = [held.sm_us, held.kernels, held.kernel_us, held.copies, held.copy_us]
    total = torch.tensor([*numbers, float(bool(held.note)), 1.0], dtype=torch.float64)
    dist.all_reduce(total if counts else total.zero_())
    *total, missing, ranks = total.tolist()
    if missing:
        return Held(note=held.note or NOTHING)
    mean = [number / ranks for number in total]
    held.sm_us, held.kernels, held.kernel_us, held.copies, held.copy_us = mean
    return held


def multiprocessors():
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


def measure(call, calls):
    """What a call holds, of `calls` issued behind a busy GPU so that no rank waits for another's
    host. Collective."""
    meet()
    with Recording() as recording:
        meet()  # starting the profiler takes each rank another time
        stay_busy(LEAD + calls)
        for _ in range(LEAD + calls):
            call()
    return over_ranks(summarize(recording, LEAD + calls, multiprocessors()))
