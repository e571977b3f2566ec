"""Ranks for tests: processes that start once per module and run the functions that a test sends.

A test's function runs on every rank and must be defined at the top of a test module. What it
returns comes back as a list over ranks; what it raises fails the test, with every failing rank's
traceback. After a failure, or past the deadline, the processes are ended and the next run gets
fresh ones.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import traceback
from datetime import timedelta

TIMEOUT = 120  # seconds: a group's, in which nobody is missed on a machine that is slow and busy
DEADLINE = TIMEOUT + 60.0  # per run: a group that hangs has said why by then
LEAVE_S = 60.0  # in which idle ranks end
STACK_SIGNAL = signal.SIGUSR1  # asks a rank to write where its threads stand


class Ranks:
    """`count` processes in a default group. `env` is set in all of them, `env_of[rank]` in one.

    `timeout` is the group's, in seconds; `init` False leaves init_process_group to the test.
    """

    def __init__(self, count, backend="smfar", timeout=TIMEOUT, env=None, env_of=None, init=True):
        self.count, self.init = count, init
        self.setup = (backend, timeout)
        self.env, self.env_of = env or {}, env_of or {}
        self.processes, self.pipes, self.folder = [], [], None

    def start(self):
        context = multiprocessing.get_context("spawn")
        self.folder = tempfile.mkdtemp(prefix="smfar-test-")
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            env = {**self.env, **self.env_of.get(rank, {})}
            arguments = (theirs, rank, self.count, self.folder, env, self.setup, self.init)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)

    def stop(self):
        for pipe in self.pipes:
            pipe.close()  # an idle rank leaves by itself
        limit = time.monotonic() + LEAVE_S
        for process in self.processes:
            process.join(max(0, limit - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.processes, self.pipes, self.folder = [], [], None

    def run(self, function, *arguments, deadline=DEADLINE, dies=()):
        """What `function(*arguments)` returns on each rank; None for ranks that die on purpose."""
        if not self.processes:
            self.start()
        for pipe in self.pipes:
            with contextlib.suppress(OSError):  # a rank that has died since: `receive` says so
                pipe.send((function, arguments))
        limit = time.monotonic() + deadline
        answers = [self.receive(rank, limit) for rank in range(self.count)]
        failures = [
            f"---- rank {rank} ----\n{value}"
            for rank, (outcome, value) in enumerate(answers)
            if outcome != "returned" and not (outcome == "died" and rank in dies)
        ]
        if failures or dies:
            self.stop()
        if failures:
            raise AssertionError(f"{function.__name__}{arguments}\n" + "\n".join(failures))
        return [value for _, value in answers]

    def receive(self, rank, limit):
        try:
            if self.pipes[rank].poll(max(0, limit - time.monotonic())):
                return self.pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            self.processes[rank].join(5)
            return "died", f"ended with exit code {self.processes[rank].exitcode}"
        return "late", self.stack_of(rank)

    def stack_of(self, rank):
        """Where a rank that did not answer stands."""
        os.kill(self.processes[rank].pid, STACK_SIGNAL)
        time.sleep(0.5)
        try:
            with open(os.path.join(self.folder, f"stack{rank}")) as file:
                return "did not answer in time\n" + file.read()
        except OSError:
            return "did not answer in time"


def serve(pipe, rank, count, folder, env, setup, init):
    """A rank's process: joins the group, then runs what comes through the pipe."""
    os.environ.update(env)
    with open(os.path.join(folder, f"stack{rank}"), "w") as stacks:
        faulthandler.register(STACK_SIGNAL, stacks)
        joined = not init
        while True:
            try:
                function, arguments = pipe.recv()
            except EOFError:
                break
            try:
                if not joined:
                    join(rank, count, folder, *setup)
                    joined = True
                pipe.send(("returned", function(*arguments)))
            except BaseException:
                pipe.send(("raised", traceback.format_exc()))
    leave()


def join(rank, count, folder, backend, timeout):
    import torch
    import torch.distributed as dist

    import smfar  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=timeout),
    )


def set_deadline(seconds, group=None, device="cpu"):
    """Bounds what the group waits for from now on. Setting up counts: ranks that are to have their
    time for it meet in a barrier first."""
    import torch
    import torch.distributed as dist

    backend = (group or dist.group.WORLD)._get_backend(torch.device(device))
    backend.set_timeout(timedelta(seconds=seconds))


def leave():
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
