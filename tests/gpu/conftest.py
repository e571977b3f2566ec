"""The multi-process harness of tests/python, for ranks on GPUs. Leaves the environment as it is:
whoever switched multicast off keeps it off."""

import os
import pathlib
import sys

import pytest
import torch

TESTS = pathlib.Path(__file__).parent.parent
sys.path[:0] = [str(TESTS / "python"), str(TESTS)]  # the latter for python.test_… beside ours

from harness import Ranks  # noqa: E402

os.environ["SMFAR_PLAN_TABLE"] = "0"  # not the table of whoever runs the tests


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def ranks(request):
    made = Ranks(request.param, timeout=60)
    yield made
    made.stop()
