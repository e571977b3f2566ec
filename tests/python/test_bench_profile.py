"""What the bench reads out of a profiler's trace."""

import pytest

from smfar.bench_profile import LEAD, NOTHING, Recording, on_the_gpu, per_call, summarize


def event(cat, start, microseconds, blocks=(1, 1, 1), threads=(32, 1, 1), name="work"):
    arguments = {"grid": list(blocks), "block": list(threads)} if cat == "kernel" else {}
    return {"cat": cat, "name": name, "ts": start, "dur": microseconds, "args": arguments}


def recorded(*events):
    recording = Recording.__new__(Recording)  # without a profiler, which needs a GPU
    recording.events, recording.note = on_the_gpu(events), ""
    return recording


def test_a_trace_is_put_in_order_and_rid_of_the_host_and_of_what_keeps_the_gpu_busy():
    trace = [
        event("kernel", 9.0, 1.0),
        event("Kernel", 3.0, 1.0),
        event("cuda_runtime", 1.0, 1.0),
        event("gpu_memcpy", 5.0, 1.0),
        event("kernel", 0.0, 1000.0, name="at::cuda::(anonymous namespace)::spin_kernel(long)"),
        {"ph": "M", "name": "process_name", "ts": 0},
    ]
    assert [(e["cat"], e["ts"]) for e in on_the_gpu(trace)] == [
        ("kernel", 3.0),
        ("gpu_memcpy", 5.0),
        ("kernel", 9.0),
    ]


def test_the_first_calls_do_not_count():
    calls = LEAD + 3
    waited = [event("kernel", float(i), 500.0) for i in range(LEAD)]
    rest = [event("kernel", 10.0 + i, us) for i, us in enumerate((7.0, 9.0, 8.0))]
    assert per_call(waited + rest, calls, lambda e: e["dur"]) == 8.0
    assert per_call([*rest, event("kernel", 20.0, 6.0)], calls, lambda e: e["dur"]) == 30.0 / calls


def test_held():
    calls = LEAD + 2
    events = []
    for call in range(calls):
        events.append(event("kernel", 100.0 * call, 10.0, (24, 1, 1), (512, 1, 1)))
        events.append(event("kernel", 100.0 * call + 20, 2.0, (20, 10, 1), (64, 2, 1)))
        events.append(event("gpu_memcpy", 100.0 * call + 30, 50.0))
    held = summarize(recorded(*events), calls, sms=132)
    assert held.sm_us == 24 * 10.0 + 132 * 2.0  # no more than there are
    assert (held.blocks, held.threads) == (200, 128)  # of the kernel that holds most
    assert (held.kernels, held.kernel_us) == (2, 12.0)
    assert (held.copies, held.copy_us) == (1, 50.0)
    assert held.row()["sm_us"] == held.sm_us


def test_copies_alone_hold_no_multiprocessor():
    held = summarize(recorded(*[event("gpu_memcpy", float(i), 5.0) for i in range(6)]), 6, 132)
    assert (held.sm_us, held.copy_us, held.note) == (0.0, 5.0, "")


@pytest.mark.parametrize("note", ["", "the profiler failed: no CUPTI"])
def test_no_record_is_said_not_guessed(note):
    recording = recorded()
    recording.note = note
    assert summarize(recording, 5, 132).row() == {"note": note or NOTHING}
