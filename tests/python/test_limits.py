"""What runs out, and who waits: few descriptors, ranks that leave, threads beside a waiting one."""

import contextlib
import os
import resource
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from harness import TIMEOUT

import smfar


def limit_descriptors(spare):
    """No more than `spare` further descriptors; returns the limits before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    free = [number for number in range(max(taken) + spare + 2) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], before[1]))
    return before


def first_collective(spare):
    """Makes a group while rank 1 can open `spare` descriptors; returns "" or the error's words."""
    group = dist.new_group(backend="smfar")
    limits = limit_descriptors(spare) if dist.get_rank() == 1 else None
    begin = time.monotonic()
    try:
        dist.all_reduce(torch.ones(4), group=group)
        said = ""
    except dist.DistBackendError as error:
        said = str(error)
    finally:
        if limits:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert time.monotonic() - begin < TIMEOUT / 2, "a rank waited for the deadline"
    described = smfar.describe(group, "cpu") if not said else ""
    dist.destroy_process_group(group)  # and so the multicast object, which the next must make again
    return said, described


def test_few_descriptors_end_in_one_verdict(fresh_ranks):
    """Each number of free descriptors fails another step of set-up, or none."""
    ranks = fresh_ranks(3)
    ranks.run(first_collective, 40)  # loads what is loaded once
    seen = set()
    for spare in range(3, 12):
        said, described = zip(*ranks.run(first_collective, spare), strict=True)
        assert all(said) or not any(said), said
        if any(said):
            assert all("failed on rank 1" in text for text in said), said
        seen.add("error" if said[0] else "peers" if "multicast off" in described[0] else "switch")
    assert seen == {"error", "peers", "switch"}


def meet_in_threads(port):
    """Two groups' first collectives, which each rank begins in another order."""
    rank = int(os.environ["TEST_RANK"])
    store = dist.TCPStore("localhost", port)
    dist.init_process_group(
        "smfar", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=TIMEOUT)
    )
    groups = [dist.new_group(backend="smfar") for _ in range(2)]
    sums = [torch.ones(3), torch.ones(3)]
    threads = [
        threading.Thread(target=dist.all_reduce, args=(sums[i],), kwargs={"group": groups[i]})
        for i in (rank, 1 - rank)
    ]
    for thread in threads:
        thread.start()
        time.sleep(1)  # until it waits
    for thread in threads:
        thread.join()
    assert [one.tolist() for one in sums] == [[2.0] * 3] * 2


def test_groups_meet_on_several_threads_over_one_connection_to_the_store(fresh_ranks):
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    env_of = {rank: {"TEST_RANK": str(rank)} for rank in range(2)}
    fresh_ranks(2, init=False, env_of=env_of).run(meet_in_threads, server.port)


def while_another_thread_waits():
    """A thread of rank 0 waits for rank 1, which comes when another thread has gone on."""
    store = dist.distributed_c10d._get_default_store()
    held = smfar.empty(10, device="cpu")
    group = dist.new_group(backend="smfar")

    def report():
        with contextlib.suppress(dist.DistBackendError):  # no communicator yet
            smfar.report(group, "cpu")

    def free():
        nonlocal held
        held = None

    cases = (
        (lambda: dist.all_reduce(torch.ones(3), group=group), report),
        (lambda: smfar.empty(10, device="cpu"), free),
    )
    for number, (wait, action) in enumerate(cases):
        if dist.get_rank() == 1:
            store.wait([f"gone on {number}"])
            wait()
            continue
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(1)  # until it waits
        action()
        assert thread.is_alive()
        store.set(f"gone on {number}", "")
        thread.join()


def test_other_threads_go_on_while_one_waits(fresh_ranks):
    fresh_ranks(2).run(while_another_thread_waits)
