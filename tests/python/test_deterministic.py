"""Sums in a fixed order: equal to the bit from run to run, over budgets and places."""

import torch
import torch.distributed as dist

import smfar

COUNT = 70_001
RUNS = 100


def numbers():
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randn(COUNT, generator=generator) * 10 ** torch.randint(
        -3, 4, (COUNT,), generator=generator
    )


def results(group, runs, window=False):
    """The bits of every run's result, the same on all ranks."""
    mine, found = numbers(), []
    for _ in range(runs):
        tensor = smfar.empty(COUNT, device="cpu", group=group) if window else torch.empty(COUNT)
        dist.all_reduce(tensor.copy_(mine), group=group)
        found.append(tensor.view(torch.int32).clone())
        others = [torch.empty_like(found[-1]) for _ in range(dist.get_world_size())]
        dist.all_gather(others, found[-1])
        assert all(torch.equal(other, found[-1]) for other in others)
    return found


def same_bits():
    groups = [
        dist.new_group(
            backend="smfar", pg_options=smfar.Options(deterministic=True, sm_budget=budget)
        )
        for budget in (1, 3, 16)
    ]
    first = results(groups[0], RUNS)
    assert all(torch.equal(one, first[0]) for one in first)
    for group in groups:
        for window in (False, True):
            assert torch.equal(results(group, 1, window)[0], first[0])
        text = smfar.explain(torch.empty(COUNT), group=group)
        assert "peer" in text and "a fixed order was asked for" in text
    algorithms = ("push_mc", "push_peer", "oneshot_peer", "twoshot_peer", "split_peer")
    for algorithm in algorithms:
        with smfar.algorithm(algorithm):
            assert torch.equal(results(groups[0], 1)[0], first[0]), algorithm


def test_options(ranks):
    ranks.run(same_bits)


def globally():
    mine = numbers()
    assert "twoshot_mc" in smfar.explain(mine)
    torch.use_deterministic_algorithms(True)
    try:
        assert "a fixed order was asked for" in smfar.explain(mine)
        first = results(None, 5)
        assert all(torch.equal(one, first[0]) for one in first)
    finally:
        torch.use_deterministic_algorithms(False)
    assert "twoshot_mc" in smfar.explain(mine)


def test_torch_switch(ranks):
    ranks.run(globally)


def switch_orders():
    found = []
    for _ in range(5):
        dist.all_reduce(tensor := numbers())
        found.append(tensor)
    return any(not torch.equal(one, found[0]) for one in found)


def test_the_switch_has_orders_of_its_own(ranks):
    """Otherwise the tests above would hold without a fixed order."""
    assert all(ranks.run(switch_orders))
