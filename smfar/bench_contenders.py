"""Who reduces one bf16 tensor beside other work: smfar by algorithm and budget, torch, NCCL.

Each is called on the stream that is to wait for it, and runs where its users would have it run: on
the group's own stream (smfar, NCCL), or on the caller's (torch's symmetric memory). All tensors are
zeros, so that sums stay finite however often they are repeated.
"""

import contextlib

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

import smfar
from smfar.bench_ranks import own_gpus

BUDGETS = (1, 2, 4, 8)


class Contender:
    def __init__(self, name, call, algorithm=None, budget=None):
        self.name, self.call, self.algorithm, self.budget = name, call, algorithm, budget

    def row(self):
        row = {"path": self.name}
        return row | ({"algorithm": self.algorithm, "budget": self.budget} if self.budget else {})


def everybody(bytes_, group, say, budgets=BUDGETS):
    """All contenders that run here, on tensors of so many bytes. Collective."""
    device, count = torch.device("cuda", torch.cuda.current_device()), bytes_ // 2
    window = smfar.empty(count, dtype=torch.bfloat16, device=device, group=group)
    window.zero_()
    found = [ours(window, group, *variant) for variant in variants(group, budgets)]
    for contender in [one for one in found if not runs(one, group)]:
        say(f"# {contender.name} is left out: the plan takes something else here")
        found.remove(contender)
    found.append(torch_two_shot(count, device))
    if own_gpus():
        plain = torch.zeros(count, dtype=torch.bfloat16, device=device)
        found.append(Contender("nccl", lambda: dist.all_reduce(plain, async_op=True).wait()))
    return found


def variants(group, budgets):
    """(algorithm, budget) pairs; None leaves the choice to the plan."""
    end = ending(group)
    pairs = [(f"{name}_{end}", budget) for name in ("twoshot", "split") for budget in budgets]
    return [(None, None), *pairs]


def ending(group):
    """Of the names of the algorithms that suit the group."""
    return "mc" if "multicast on" in smfar.describe(group, "cuda") else "peer"


def ours(window, group, algorithm, budget):
    def call():
        with hints(algorithm, budget):
            work = dist.all_reduce(window, group=group, async_op=True)
        work.wait()

    name = f"{algorithm} / {budget}" if algorithm else "smfar, as planned"
    return Contender(name, call, algorithm, budget)


def runs(contender, group):
    """Does a call take the algorithm that it asks for? A wish that cannot be served is none."""

    def calls():
        paths = smfar.report(group, "cuda")
        return {path.algorithm: path.calls for path in paths if path.collective == "all_reduce"}

    before = calls()
    contender.call()
    taken = [name for name, count in calls().items() if count != before.get(name, 0)]
    return contender.algorithm is None or contender.algorithm in taken


@contextlib.contextmanager
def hints(algorithm, budget):
    if algorithm is None:
        yield
        return
    with smfar.algorithm(algorithm), smfar.sm_budget(budget):
        yield


def torch_two_shot(count, device):
    tensor = symmetric.empty(count, dtype=torch.bfloat16, device=device)
    group = dist.group.WORLD.group_name
    symmetric.rendezvous(tensor, group)
    tensor.zero_()
    operator = torch.ops.symm_mem.two_shot_all_reduce_
    return Contender("torch two-shot", lambda: operator(tensor, "sum", group))
