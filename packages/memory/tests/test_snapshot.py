"""Snapshots: written as PyTorch's viewer reads them, and read as PyTorch writes them."""

import pickle

import pytest
from torch.cuda import _memory_viz

from drivetrain_memory import (
    MemoryUseError,
    Trace,
    TraceError,
    from_snapshot,
    load_snapshot,
    snapshot_at_peak,
)
from drivetrain_memory._native import NativeAllocator, null_driver
from drivetrain_memory._snapshot import snapshot_of
from drivetrain_memory.trace import Builder, Operation

CHUNK = 2 * 2**20


def entry(action, addr, size, stream=0):
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": stream,
        "time_us": 1,
        "frames": [],
    }


def segment(address, *blocks, stream=0, device=0):
    return {
        "device": device,
        "address": address,
        "total_size": sum(size for size, _ in blocks),
        "allocated_size": sum(s for s, state in blocks if state != "inactive"),
        "active_size": 0,
        "stream": stream,
        "segment_type": "large",
        "blocks": [{"size": size, "state": state} for size, state in blocks],
    }


@pytest.fixture
def write(tmp_path):
    def to_file(history, segments=()):
        path = tmp_path / "run.pickle"
        held = {"segments": list(segments), "device_traces": [history]}
        path.write_bytes(pickle.dumps(held))
        return path

    return to_file


def events(trace):
    return [
        (Operation(int(e["operation"])).name, int(e["id"]), int(e["size"]))
        for e in trace.events
    ]


def test_history_becomes_a_trace(write):
    path = write(
        [
            entry("alloc", 100, 4096),
            entry("segment_alloc", 100, 2 << 20),
            entry("alloc", 200, 512, stream=77),
            entry("free_requested", 100, 4096),
            entry("free_completed", 100, 4096),
            entry("alloc", 100, 1024),
        ]
    )
    trace = from_snapshot(path)
    assert trace.name == "run"
    assert events(trace) == [
        ("STEP", 0, 0),
        ("ALLOCATE", 0, 4096),
        ("ALLOCATE", 1, 512),
        ("FREE", 0, 0),
        ("ALLOCATE", 2, 1024),
    ]
    assert trace.events["stream"].tolist() == [0, 0, 1, 0, 0]


def test_what_lived_before_the_history_is_allocated_first(write):
    # One is freed in the history, one lives at its end, one came and stayed.
    path = write(
        [
            entry("free_requested", 100, 4096),
            entry("free_completed", 100, 4096),
            entry("alloc", 100, 2048),
        ],
        [
            segment(100, (2048, "active_allocated"), (2048, "inactive")),
            segment(9000, (8192, "active_allocated"), stream=5),
            segment(100000, (8192, "active_allocated"), device=1),
        ],
    )
    trace = from_snapshot(path)
    assert events(trace) == [
        ("ALLOCATE", 0, 4096),
        ("ALLOCATE", 1, 8192),
        ("STEP", 0, 0),
        ("FREE", 0, 0),
        ("ALLOCATE", 2, 2048),
    ]
    assert trace.peak_live_bytes == 4096 + 8192


def test_block_that_waits_for_other_streams_lives_until_they_are_done(write):
    path = write(
        [
            entry("alloc", 100, 4096),
            entry("free_requested", 100, 4096),
            entry("alloc", 9000, 4096),
            entry("free_completed", 100, 4096),
        ]
    )
    assert from_snapshot(path).peak_live_bytes == 8192


def test_own_snapshot_can_be_read_back(tmp_path):
    allocator = NativeAllocator(null_driver(64 * CHUNK, CHUNK))
    early = allocator.allocate(CHUNK)
    allocator.keep_history(100)
    block = allocator.allocate(3 * CHUNK, stream=4)
    allocator.free(early)
    allocator.free(block)
    path = tmp_path / "own.pickle"
    path.write_bytes(pickle.dumps(snapshot_of(allocator)))
    trace = from_snapshot(path)
    assert trace.peak_live_bytes == 4 * CHUNK
    assert len(trace.events) == 5


def test_history_keeps_the_last_entries_alone():
    allocator = NativeAllocator(null_driver(64 * CHUNK, CHUNK))
    allocator.keep_history(3)
    blocks = [allocator.allocate(512) for _ in range(5)]
    assert [e.at for e in allocator.history()] == blocks[-3:]
    allocator.keep_history(0)
    allocator.free(blocks[0])
    assert allocator.history() == []


def test_pytorch_reads_the_snapshot(tmp_path):
    allocator = NativeAllocator(null_driver(8 * CHUNK, CHUNK))
    allocator.keep_history(100)
    blocks = [allocator.allocate(size) for size in (512, CHUNK, 3 * CHUNK + 512)]
    allocator.free(blocks[1])
    held = snapshot_of(allocator)
    total = sum(one["total_size"] for one in held["segments"])
    assert total == allocator.counters().reserved_bytes
    live = sum(one["allocated_size"] for one in held["segments"])
    assert live == allocator.counters().live_bytes
    with pytest.raises(MemoryError):
        allocator.allocate(7 * CHUNK)
    held = snapshot_of(allocator)
    assert "segment" in _memory_viz.segsum(held)
    assert "raise OutOfMemoryError # 14.0MiB" in _memory_viz.trace(held)
    assert "<html" in _memory_viz.trace_plot(held).lower()


class Evil:
    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize(
    ("data", "because"),
    [
        (b"", "no snapshot"),
        (b"not a pickle", "no snapshot"),
        (pickle.dumps({"segments": []}), "no segments and device_traces"),
        (pickle.dumps([1, 2]), "no segments and device_traces"),
        (pickle.dumps(Evil()), "plain values alone"),
        (pickle.dumps({"segments": [], "device_traces": []}), "no history of device 0"),
        (
            pickle.dumps({"segments": [], "device_traces": [[{"addr": 1}]]}),
            "not as a snapshot is",
        ),
        (pickle.dumps({"segments": 3, "device_traces": [[5]]}), "not as a snapshot is"),
    ],
)
def test_what_is_no_snapshot_is_refused(tmp_path, capsys, data, because):
    path = tmp_path / "bad.pickle"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=because):
        from_snapshot(path)
    assert capsys.readouterr().out == ""


def test_truncated_snapshot_is_refused(tmp_path, write):
    whole = write([entry("alloc", 100, 4096)]).read_bytes()
    path = tmp_path / "part.pickle"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError):
            load_snapshot(path)


def test_snapshot_at_the_peak_holds_what_is_live_there():
    builder = Builder("peak")
    builder.step()
    kept = builder.allocate(3 * CHUNK, stream=2)
    short = builder.allocate(5 * CHUNK)
    builder.record_stream(short, 2)
    builder.free(short)
    builder.step()
    builder.allocate(CHUNK)
    builder.free(kept)
    found = snapshot_at_peak(builder.trace(), capacity_bytes=20 * CHUNK)
    live = {
        one["stream"]: one["allocated_size"]
        for one in found["segments"]
        if one["allocated_size"]
    }
    assert live == {2: 3 * CHUNK, 0: 5 * CHUNK}


def test_snapshot_of_a_trace_that_contradicts_itself_is_refused():
    builder = Builder("bad")
    builder.free(7)
    builder.allocate(CHUNK)
    with pytest.raises(MemoryUseError, match="block 7, which is not live"):
        snapshot_at_peak(builder.trace(), capacity_bytes=20 * CHUNK)
    empty = Trace(name="none", events=builder.trace().events[:0])
    assert snapshot_at_peak(empty, capacity_bytes=20 * CHUNK)["segments"] == []
