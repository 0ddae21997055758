"""Traces played to this allocator and to the models of others."""

import numpy as np
import pytest

from drivetrain_memory import MemoryUseError, Trace, replay, smallest_capacity
from drivetrain_memory.trace import EVENT, PATTERNS, Builder, pattern

MIB = 2**20


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_every_pattern_finishes_near_its_live_peak(name):
    trace = pattern(name)
    bound = 1.2 if name == "checkerboard-3" else 1.01
    assert smallest_capacity(trace, "ours") <= bound * trace.peak_live_bytes


@pytest.mark.parametrize("name", ["checkerboard-6", "checkerboard-24", "island"])
def test_memory_is_joined_without_a_flush(name):
    trace = pattern(name)
    done = replay(trace, "ours", capacity_bytes=trace.peak_live_bytes * 101 // 100)
    assert done.finished
    assert done.flushes == 0


def test_checkerboard_pins_the_handles_of_expandable_segments():
    trace = pattern("checkerboard-6")
    live = trace.peak_live_bytes
    assert smallest_capacity(trace, "expandable") > 1.4 * live
    assert smallest_capacity(trace, "expandable-2") < 1.01 * live


def test_memory_of_one_stream_is_no_use_to_another_in_pytorch():
    trace = pattern("island")
    usual = {
        model: replay(trace, model, capacity_bytes=10**12, headroom=0.0)
        for model in ("ours", "native", "expandable")
    }
    share = {k: trace.peak_live_bytes / r.peak_reserved_bytes for k, r in usual.items()}
    assert share["ours"] > 0.99
    assert share["native"] < 0.51
    assert share["expandable"] < 0.51


def test_native_model_rounds_as_pytorch_does():
    builder = Builder("rounding")
    for size in (1, 600, 2 * MIB, 19 * MIB):
        builder.allocate(size)
    done = replay(builder.trace(), "native", capacity_bytes=2**40)
    # Small ones share 2 MiB, one of 2 MiB is cut from 20, one of 19 gets 20.
    assert done.peak_reserved_bytes == (2 + 20 + 20) * MIB
    assert done.driver_calls == 3


def test_native_model_gives_back_what_is_cached_before_it_fails():
    builder = Builder("flush")
    first = builder.allocate(30 * MIB)
    builder.free(first)
    builder.allocate(40 * MIB)
    trace = builder.trace()
    done = replay(trace, "native", capacity_bytes=50 * MIB)
    assert done.finished
    assert done.flushes == 1
    assert done.remapped_bytes == 30 * MIB
    assert not replay(trace, "native", capacity_bytes=39 * MIB).finished


def test_same_steps_need_no_driver_after_the_third():
    builder = Builder("static")
    for _ in range(8):
        builder.step()
        blocks = [
            builder.allocate(size * MIB // 3) for size in (50, 900, 7, 333, 1, 2500)
        ]
        for block in blocks[::-1]:
            builder.free(block)
    trace = builder.trace()
    capacity = trace.peak_live_bytes * 101 // 100
    done = replay(trace, "ours", capacity_bytes=capacity, headroom=0.0)
    assert done.finished
    assert set(done.calls_by_step[4:]) == {0}


@pytest.mark.parametrize(
    ("rows", "because"),
    [
        ([(1, 5)], "event 0 of the trace frees the unknown block 5"),
        ([(0, 5), (0, 5)], "event 1 of the trace allocates the live block 5"),
        ([(2, 5)], "records a stream for the unknown block 5"),
        ([(9, 5)], "unknown operation"),
    ],
    ids=["free", "twice", "stream", "operation"],
)
@pytest.mark.parametrize("model", ["ours", "native", "expandable"])
def test_trace_that_contradicts_itself_is_refused(rows, because, model):
    events = np.zeros(len(rows), EVENT)
    events["operation"], events["id"] = zip(*rows, strict=True)
    events["size"] = 1024
    with pytest.raises(MemoryUseError, match=because):
        replay(Trace(name="bad", events=events), model, capacity_bytes=2**30)


def test_unknown_model_is_refused():
    with pytest.raises(MemoryUseError, match="there is no model 'best'"):
        replay(pattern("island"), "best", capacity_bytes=2**30)


def test_capacity_without_a_chunk_is_refused():
    with pytest.raises(MemoryUseError, match="holds no chunk"):
        replay(pattern("island"), "ours", capacity_bytes=1000)
