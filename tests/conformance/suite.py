"""PyTorch's own tests of its process groups, from the installed wheel, for any backend.

The tests decide by the backend's literal name what to run. Here the name compares equal to another
backend's while it is "smfar" everywhere else: so smfar runs whatever gloo or NCCL does, and what is
for MPI only, an all-to-all of CPU tensors.
"""

import functools
import importlib.util
import os
import sys
import traceback
import types
import unittest
from datetime import timedelta
from pathlib import Path

NAME = "torch.testing._internal.distributed.distributed_test"
TIMEOUT_S = 60


class Alike(str):
    """A backend's name that passes for `other` where tests compare it."""

    def __new__(cls, name, other):
        made = str.__new__(cls, name)
        made.other = other
        return made

    def __eq__(self, name):
        return name == self.other or str.__eq__(self, name)

    def __ne__(self, name):
        return not self == name

    def __hash__(self):
        return hash(self.other)


def stand_in_for_expecttest():
    """PyTorch's tests derive from its TestCase; those run here use only what is unittest's."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        made = types.ModuleType("expecttest")
        made.TestCase = unittest.TestCase
        sys.modules["expecttest"] = made


@functools.cache
def module(backend, other):
    """The test module, as if BACKEND were `backend`, and `other` to those who compare."""
    stand_in_for_expecttest()
    from torch.testing._internal.common_distributed import DistTestCases

    DistTestCases.backend_feature["plugin"].add(backend)
    os.environ["BACKEND"] = backend
    package, _, file = NAME.rpartition(".")
    origin = Path(importlib.util.find_spec(package).origin).with_name(f"{file}.py")
    text = origin.read_text()
    line = 'BACKEND = os.environ["BACKEND"]'
    if text.count(line) != 1:
        raise ImportError(f"{origin} does not read BACKEND as expected")
    made = types.ModuleType(f"{NAME}_as_{other}")
    made.__file__, made.alike = str(origin), functools.partial(Alike, other=other)
    sys.modules[made.__name__] = made  # tests pickle their own functions
    code = text.replace(line, 'BACKEND = alike(os.environ["BACKEND"])')
    exec(compile(code, str(origin), "exec"), made.__dict__)
    return made


def case_class(backend, other):
    tests = module(backend, other)
    return type("Conformance", (tests.TestDistBackend, tests.DistributedTest._DistTestBase), {})


def names(backend, other):
    return unittest.TestLoader().getTestCaseNames(case_class(backend, other))


def skip_reason(backend, other, name):
    """Why the test does not concern this backend, as it says itself; None to run it."""
    method = getattr(case_class(backend, other), name)
    if getattr(method, "__unittest_skip__", False):
        return method.__unittest_skip_why__
    return None


def reason_of_exit(code):
    from torch.testing._internal.common_distributed import TEST_SKIPS

    return next((skip.message for skip in TEST_SKIPS.values() if skip.exit_code == code), None)


def run_one(backend, other, name, rank, ranks, folder):
    """One test on one rank: ("passed", ""), ("skipped", why) or ("failed", traceback)."""
    import torch.distributed as dist

    if backend == "smfar":
        import smfar  # noqa: F401  registers it
    os.environ.update(WORLD_SIZE=str(ranks), TEMP_DIR=folder)
    tests = module(backend, other)
    from torch.testing._internal.common_utils import set_rng_seed

    tests.Barrier.barrier_id = 0
    case = case_class(backend, other)(name)
    case.rank, case.file_name = rank, os.path.join(folder, "store")
    limit = tests.CUSTOM_PG_TIMEOUT.get(name, TIMEOUT_S)
    try:
        dist.init_process_group(
            str(backend),
            init_method=case.init_method,
            world_size=ranks,
            rank=rank,
            timeout=timedelta(seconds=limit),
        )
        case._barrier(timeout=TIMEOUT_S)
        set_rng_seed()
        getattr(case, name)()
        case._barrier(timeout=TIMEOUT_S)
        if dist.is_initialized():
            dist.destroy_process_group()
    except unittest.SkipTest as skip:
        return leave("skipped", str(skip))
    except SystemExit as left:
        reason = reason_of_exit(left.code)
        return leave("skipped", reason) if reason else ("failed", f"exit code {left.code}")
    except BaseException:
        return "failed", traceback.format_exc()
    return "passed", ""


def leave(outcome, reason):
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    return outcome, reason
