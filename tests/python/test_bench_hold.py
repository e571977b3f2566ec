"""The kernel that holds a GPU, on the software switch: it stays until it is let go, or too long."""

import ctypes
import pathlib
import time

import pytest

import smfar
from smfar import bench_hold

BLOCKS, THREADS = 4, 64
LIMIT_S = 120


@pytest.fixture
def switch(monkeypatch):
    library = ctypes.CDLL(str(pathlib.Path(smfar.__file__).with_name("libsmfar_soft.so")))
    monkeypatch.setattr(bench_hold, "driver", lambda: library)
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    bench_hold.call("cuInit", 0)
    bench_hold.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    bench_hold.call("cuCtxPushCurrent", context)
    bench_hold.call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
    yield stream
    bench_hold.call("cuStreamDestroy", stream)
    bench_hold.call("cuCtxPopCurrent", ctypes.byref(context))
    bench_hold.call("cuDevicePrimaryCtxRelease", 0)


def start(stream, limit_ns):
    """The words of a launch: [let go, came, came, …, relay]."""
    words = (ctypes.c_uint32 * (2 + BLOCKS))()
    relay = ctypes.addressof(words) + 4 * (1 + BLOCKS)
    kernel = bench_hold.load()
    bench_hold.launch(kernel, ctypes.addressof(words), relay, BLOCKS, THREADS, stream, limit_ns)
    return words


def wait_until(condition):
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(1e-3)


def has_ended(stream):
    return bench_hold.driver().cuStreamQuery(stream) == 0


def test_it_stays_until_it_is_let_go(switch):
    words = start(switch, LIMIT_S * 10**9)
    wait_until(lambda: all(words[1:-1]))
    time.sleep(0.1)
    assert not has_ended(switch)
    words[0] = 1
    wait_until(lambda: has_ended(switch))


def test_it_leaves_when_nobody_lets_it_go(switch):
    words = start(switch, 50_000_000)
    wait_until(lambda: has_ended(switch))
    assert all(words[1:-1]) and words[0] == 0


def test_a_failed_call_is_named(switch):
    with pytest.raises(RuntimeError, match="cuModuleGetFunction failed: CUDA_ERROR_"):
        bench_hold.load(b"no_such_kernel")
