"""Fixtures of the multi-process tests."""

import os

import pytest
from harness import Ranks

# What these variables change is tested on purpose, not by what a user happens to have set.
for name in (
    "SMFAR_MULTICAST",
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NVSHMEM_DISABLE_NVLS",
    "SMFAR_SOFT_MULTICAST",
    "SMFAR_SM_BUDGET",
    "DDP_DISABLE_COMM_MEM",
):
    os.environ.pop(name, None)
os.environ["SMFAR_PLAN_TABLE"] = "0"  # not the table of whoever runs the tests


@pytest.fixture(scope="module")
def ranks(request):
    """Four ranks in a default group "smfar"; `indirect` parametrisation gives another number."""
    made = Ranks(getattr(request, "param", 4))
    yield made
    made.stop()


@pytest.fixture
def fresh_ranks():
    """A function that makes ranks for one test: fresh_ranks(count, **as for Ranks)."""
    made = []

    def make(count, **options):
        made.append(Ranks(count, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()
