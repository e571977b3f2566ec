"""Every test in processes of its own, several tests at once, within a time limit.

What a test gave is written at once, so that a later run goes on where this one stopped.
"""

import json
import os
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from page import last_line
from runner import DEADLINE, Runner

LEAST_S = 20  # that a test is begun for
KEPT = 4000  # characters of a reason: its end


class Record:
    """Outcomes by backend and test, in a file; `about` says of what."""

    def __init__(self, path, about):
        self.path, self.about, self.lock = path, about, threading.Lock()
        self.results = self.read()

    def read(self):
        """What an earlier run has written; ValueError where that was a run of something else."""
        if self.path is None or not self.path.exists():
            return {}
        found = json.loads(self.path.read_text())
        results = found.pop("results", {})
        if found != self.about:
            raise ValueError(f"{self.path} is of {found}, not of {self.about}: remove it")
        return results

    def of(self, backend):
        return {name: tuple(one[:2]) for name, one in self.results.get(backend, {}).items()}

    def add(self, backend, name, outcome, why, seconds):
        with self.lock:
            self.results.setdefault(backend, {})[name] = (outcome, why[-KEPT:], round(seconds, 1))
            if self.path is None:
                return
            fresh = self.path.with_suffix(".new")
            fresh.write_text(json.dumps(self.about | {"results": self.results}, indent=1))
            os.replace(fresh, self.path)


def run_all(record, chosen, backends, ranks, peer, jobs, limit, after):
    """How many are left when time.monotonic() reaches `limit`; `after()` follows each outcome."""
    runs = [(b, n) for n in chosen for b in backends if n not in record.of(b)]
    runs = [run for run in runs if not skip(record, *run, Runner(run[0], ranks, peer))]
    todo = queue.SimpleQueue()
    for run in runs:
        todo.put(run)

    def work():
        done = 0
        while limit - time.monotonic() > LEAST_S:
            try:
                backend, name = todo.get_nowait()
            except queue.Empty:
                break
            done += run_one_of(record, backend, name, ranks, peer, limit)
            after()
        return done

    with ThreadPoolExecutor(jobs) as pool:
        workers = [pool.submit(work) for _ in range(jobs)]
        return len(runs) - sum(worker.result() for worker in workers)


def skip(record, backend, name, runner):
    """Needs the test no ranks, since it says by itself that it is not for this backend?"""
    _, reason = runner.asks_for(name)
    if reason:
        record.add(backend, name, "skipped", reason, 0)
    return bool(reason)


def run_one_of(record, backend, name, ranks, peer, limit):
    """Was there time enough for an outcome?"""
    begin = time.monotonic()
    deadline = min(DEADLINE, limit - begin)
    runner = Runner(backend, ranks, peer)
    outcome, why = runner.run(name, deadline)
    runner.ranks.stop()
    seconds = time.monotonic() - begin
    if outcome == "failed" and deadline <= seconds < DEADLINE:
        return False
    record.add(backend, name, outcome, why, seconds)
    print(f"{backend:5} {outcome:7} {seconds:5.1f} s {name} {last_line(why)}", flush=True)
    return True
