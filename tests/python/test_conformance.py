"""Some of PyTorch's own tests of process groups; `make conformance` runs them all, gloo's too."""

import sys
from pathlib import Path

import pytest

CONFORMANCE = Path(__file__).resolve().parents[1] / "conformance"
sys.path.append(str(CONFORMANCE))

pytest.importorskip("expecttest", reason="PyTorch's tests need the package expecttest")

from run import Runner  # noqa: E402

NAMES = [
    "test_all_gather",
    "test_all_gather_coalesced_simple",
    "test_all_gather_object_default_pg",
    "test_all_reduce_coalesced_full_group_sum",
    "test_all_reduce_product",
    "test_all_to_all",
    "test_all_to_all_single_equal_split",
    "test_all_to_all_single_unequal_split",
    "test_all_to_all_single_unequal_split_complex",
    "test_barrier",
    "test_broadcast",
    "test_DistributedDataParallelCPU",
    "test_gather",
    "test_gather_object",
    "test_irecv",
    "test_isend",
    "test_reduce_max",
    "test_reduce_sum",
    "test_scatter",
    "test_scatter_object_list",
    "test_send_recv",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
]


@pytest.fixture(scope="module")
def runner():
    made = Runner("smfar", 4)
    yield made
    made.ranks.stop()


@pytest.mark.parametrize("name", NAMES)
def test_of_pytorch(runner, name):
    outcome, why = runner.run(name)
    if outcome == "skipped":
        pytest.skip(why)
    assert outcome == "passed", why
