"""The ranks of one backend, which run one of PyTorch's tests after the other."""

import os
import tempfile
from pathlib import Path

from exceptions import OF_NCCL
from harness import Ranks
from suite import run_one, skip_reason

DEADLINE = 150.0


def rank_part(backend, other, name, ranks, folder):
    return run_one(backend, other, name, int(os.environ["CONFORMANCE_RANK"]), ranks, folder)


class Runner:
    """After a failure the ranks are replaced. `peer`: the backend whose tests are run."""

    def __init__(self, backend, ranks, peer="gloo"):
        self.backend, self.count, self.peer = backend, ranks, peer
        env_of = {rank: {"CONFORMANCE_RANK": str(rank)} for rank in range(ranks)}
        env = {"OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "OFF"}
        if backend == "nccl":
            env["NCCL_NVLS_ENABLE"] = "0"
        os.environ["WORLD_SIZE"] = str(ranks)  # some tests decide by it when they are defined
        self.ranks = Ranks(ranks, init=False, env=env, env_of=env_of)

    def asks_for(self, name):
        """(the backend's name that the test wants, why it does not concern us or None)"""
        reason = skip_reason(self.backend, self.peer, name)
        if self.backend == "smfar" and self.peer == "nccl":
            reason = reason or OF_NCCL.get(name)
        if (
            self.backend == "smfar"
            and self.peer == "gloo"
            and (reason or "").startswith("Only MPI")
        ):
            return "mpi", skip_reason(self.backend, "mpi", name)
        return self.peer, reason

    def run(self, name, deadline=DEADLINE):
        """(outcome, why) of one test on all ranks."""
        other, reason = self.asks_for(name)
        if reason:
            return "skipped", reason
        with tempfile.TemporaryDirectory(prefix="smfar-conformance-") as folder:
            for name_of_folder in ("barrier", "test_dir", "init_dir"):
                (Path(folder) / name_of_folder).mkdir()
            try:
                answers = self.ranks.run(
                    rank_part, self.backend, other, name, self.count, folder, deadline=deadline
                )
            except AssertionError as error:
                return "failed", str(error)
        failed = [f"rank {r}: {why}" for r, (what, why) in enumerate(answers) if what == "failed"]
        if failed:
            self.ranks.stop()
            return "failed", "\n".join(failed)
        skipped = [why for what, why in answers if what == "skipped"]
        return ("skipped", skipped[0]) if skipped else ("passed", "")
