"""Who moves one bf16 tensor for bench_moves.py, by which call, and whether what arrives is right.

`count` elements are the longer of a rank's two tensors, as nccl-tests counts them; each rank's part
is count / ranks. Element i of rank r's tensor is i % 7 + r, so that sums over 16 ranks are exact in
bf16. Everything that is called returns the tensor in which the result lies.
"""

import torch
import torch.distributed as dist

import smfar
from smfar.bench_ranks import own_gpus, slowest

PERIOD = 7
ROOT = 0


class Collective:
    """One collective on tensors of one size, without any memory of its own."""

    def __init__(self, count, rank, ranks):
        self.rank, self.ranks = rank, ranks
        self.count, self.part = count, count // ranks

    @staticmethod
    def bus(ranks):
        """busbw / algbw (nccl-tests, doc/PERFORMANCE.md)."""
        return (ranks - 1) / ranks

    def own(self, tensor):
        """This rank's part."""
        return tensor[self.rank * self.part : (self.rank + 1) * self.part]

    def by_part(self, tensor):
        """`tensor`, and onto each part the number of the rank that it comes from."""
        numbers = torch.arange(self.ranks, dtype=tensor.dtype, device=tensor.device)
        return (tensor.view(-1, self.part) + numbers.view(-1, 1)).flatten()


class AllGather(Collective):
    """In place, as FSDP calls it."""

    def tensors(self, first, _second):
        target = first[: self.count]
        return target, self.own(target)

    def call(self, target, source, group):
        dist.all_gather_into_tensor(target, source, group=group)

    def given(self, pattern):
        return self.own(pattern) + self.rank

    def right(self, pattern):
        return self.by_part(pattern)


class ReduceScatter(Collective):
    def tensors(self, first, second):
        return second[: self.part], first[: self.count]

    def call(self, target, source, group):
        dist.reduce_scatter_tensor(target, source, group=group)

    def given(self, pattern):
        return pattern + self.rank

    def right(self, pattern):
        return self.own(pattern) * self.ranks + self.ranks * (self.ranks - 1) // 2


class Broadcast(Collective):
    @staticmethod
    def bus(_ranks):
        return 1.0

    def tensors(self, first, _second):
        return first[: self.count], first[: self.count]

    def call(self, target, _source, group):
        dist.broadcast(target, ROOT, group=group)

    def given(self, pattern):
        return pattern if self.rank == ROOT else torch.full_like(pattern, torch.nan)

    def right(self, pattern):
        return pattern


class AllToAll(Collective):
    def tensors(self, first, second):
        return second[: self.count], first[: self.count]

    def call(self, target, source, group):
        dist.all_to_all_single(target, source, group=group)

    def given(self, pattern):
        return pattern + self.rank

    def right(self, pattern):
        return self.by_part(self.own(pattern))


COLLECTIVES = {
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "broadcast": Broadcast,
    "all_to_all": AllToAll,
}


class Contender:
    """One way of moving the tensor. `graph`: can it be captured?"""

    def __init__(self, name, call, source, target=None, graph=True):
        self.name, self.call, self.graph = name, call, graph
        self.source, self.target = source, target

    def count_wrong(self, collective, pattern):
        """Elements that are not what they must be, on any rank."""
        if self.target is not None:
            self.target.fill_(torch.nan)
        self.source.copy_(collective.given(pattern))
        wrong = (self.call() != collective.right(pattern)).sum().cpu()
        dist.all_reduce(wrong)
        return int(wrong)


class Field:
    """Memory for the largest size, and everybody who moves parts of it."""

    def __init__(self, bytes_, device, group):
        self.group, self.device, count = group, device, bytes_ // 2
        self.window = [self.in_window(count) for _ in range(2)]
        self.plain = [self.zeros(count) for _ in range(2)]
        self.pattern = (torch.arange(count, dtype=torch.int32, device=device) % PERIOD).bfloat16()
        self.shared = torch_memory(count, device) if device.type == "cuda" else None

    def in_window(self, count):
        return smfar.empty(
            count, dtype=torch.bfloat16, device=self.device, group=self.group
        ).zero_()

    def zeros(self, count):
        return torch.zeros(count, dtype=torch.bfloat16, device=self.device)

    def contenders(self, collective, say):
        found = [
            caller("smfar window", collective, self.window, self.group),
            caller("smfar plain", collective, self.plain, self.group),
        ]
        if not isinstance(collective, ReduceScatter):
            found.append(without_sm(caller("smfar, no SM", collective, self.window, self.group)))
        if self.shared is None:
            return [*found, caller("gloo", collective, self.plain, dist.group.WORLD)]
        for one in torch_contenders(collective, self.shared, self.plain):
            if works(one, say):
                found.append(one)
        if own_gpus():
            found.append(caller("nccl", collective, self.plain, dist.group.WORLD))
        return found


def caller(name, collective, memory, group):
    target, source = collective.tensors(*memory)

    def call():
        collective.call(target, source, group)
        return target

    return Contender(name, call, source, target)


def without_sm(contender):
    inner = contender.call

    def call():
        with smfar.sm_budget(0):
            return inner()

    contender.call, contender.graph = call, False
    return contender


# ---- torch's symmetric memory: what works over peers, without the switch ----


def torch_memory(count, device):
    import torch.distributed._symmetric_memory as symmetric

    tensor = symmetric.empty(count, dtype=torch.bfloat16, device=device)
    symmetric.rendezvous(tensor, dist.group.WORLD.group_name)
    return tensor.zero_()


def torch_contenders(collective, shared, plain):
    group, ops = dist.group.WORLD.group_name, torch.ops.symm_mem
    wait = torch.ops._c10d_functional.wait_tensor
    if isinstance(collective, AllGather):
        part = shared[: collective.part]
        return [
            Contender(
                "torch low-contention",
                lambda: wait(ops._low_contention_all_gather(part, group)),
                part,
            )
        ]
    if isinstance(collective, ReduceScatter):
        target, source = collective.tensors(shared, plain[1])
        return [
            Contender(
                "torch low-contention",
                lambda: wait(ops._low_contention_reduce_scatter(source, "sum", group)),
                source,
            ),
            Contender(
                "torch reduce-scatter",
                lambda: ops.reduce_scatter_out(source, group, False, target),
                source,
                target,
            ),
        ]
    return []


def works(contender, say):
    """Can it be called here? Not every version of torch has it, nor for every size."""
    why = ""
    try:
        contender.call()
    except (AttributeError, RuntimeError, ValueError, AssertionError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0][:120]
    fails = slowest(torch.tensor(float(bool(why)))).item()
    if fails:
        say(f"# {contender.name} is left out: {why or 'another rank cannot call it'}")
    return not fails
