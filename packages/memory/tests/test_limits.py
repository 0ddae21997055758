"""Numbers and files without sense: each is refused with one sentence."""

import lzma
import pickle
import struct

import numpy as np
import pytest

from drivetrain_memory import (
    DeviceError,
    MemoryUseError,
    Trace,
    TraceError,
    compare,
    from_snapshot,
    keep_history,
    largest_batch,
    plot_snapshot,
    plot_trace,
    replay,
    scalable,
    segment_events,
    smallest_capacity,
    snapshot_at_peak,
    stats,
    validate,
)
from drivetrain_memory._native import NativeAllocator, null_driver
from drivetrain_memory._replay import MODELS
from drivetrain_memory.cli import main
from drivetrain_memory.trace import EVENT, Builder, pattern
from drivetrain_memory.trace._snapshot import recorded_segments

MIB = 2**20
CHUNK = 2 * MIB


def one_block(size=3 * MIB, *, scales=0, operation=0, batch=4):
    events = np.zeros(2, EVENT)
    events["size"] = size, 512
    events["id"] = 0, 1
    events["scales"][0] = scales
    events["operation"][0] = operation
    return Trace(name="one", events=events, batch=batch)


@pytest.mark.parametrize(
    "trace",
    [
        one_block(0, scales=1),
        one_block(scales=1, operation=3),
        one_block(),
        one_block(scales=1, batch=0),
    ],
    ids=["nothing", "step", "none", "unknown"],
)
def test_trace_in_which_nothing_grows_has_no_largest_batch(trace):
    assert not trace.scales_with_batch
    with pytest.raises(MemoryUseError, match="depends on its batch"):
        largest_batch(trace, "ours", capacity_bytes=2**30)
    (row,) = compare(trace, ["ours"])
    assert row.batch is None


def test_largest_batch_ends_where_traces_do():
    tiny = one_block(1, scales=1, batch=2**32 - 1)
    assert largest_batch(tiny, "ours", capacity_bytes=2**30) == 2**31


@pytest.mark.parametrize("size", [1, 512, 3 * MIB, 30 * MIB])
def test_small_programs_are_compared(size):
    for row in compare(one_block(size), list(MODELS)):
        assert row.smallest >= 1
        assert 0 < row.utilisation <= 1


@pytest.mark.parametrize("size", [0, None], ids=["nothing", "empty"])
def test_trace_that_asks_for_no_memory_is_refused(size):
    trace = Builder("none").trace()
    if size is not None:
        builder = Builder("none")
        builder.allocate(size)
        trace = builder.trace()
    for function in (compare, lambda one: smallest_capacity(one, "ours")):
        with pytest.raises(MemoryUseError, match="none asks for no memory"):
            function(trace)


@pytest.mark.parametrize("capacity", [0, -1, 2**50 + 1, 2**64 + 2**30, True, 1e9])
@pytest.mark.parametrize(
    "function",
    [
        lambda size: replay(pattern("island"), "ours", capacity_bytes=size),
        lambda size: segment_events(pattern("island"), "native", capacity_bytes=size),
        lambda size: largest_batch(one_block(scales=1), "ours", capacity_bytes=size),
        lambda size: snapshot_at_peak(pattern("island"), capacity_bytes=size),
        lambda size: compare(one_block(), "ours", device_bytes=size),
    ],
    ids=["replay", "segments", "batch", "snapshot", "compare"],
)
def test_capacity_of_no_device_is_refused(function, capacity):
    with pytest.raises(MemoryUseError, match="between 1 byte and 1 PiB"):
        function(capacity)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e30", "much"])
@pytest.mark.parametrize("command", ["replay", "compare"])
def test_capacity_of_the_command_is_checked(command, text, capsys):
    with pytest.raises(SystemExit):
        main([command, "island", f"--capacity={text}"])
    assert "a device has more than 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "because"),
    [
        ({"events": np.zeros(2, "u8")}, "dtype EVENT, not uint64"),
        ({"events": [1, 2]}, "dtype EVENT, not list"),
        ({"events": np.zeros((2, 2), EVENT)}, "one dimension, not 2"),
        ({"batch": -1}, "the batch of a trace"),
        ({"batch": 2**32}, "the batch of a trace"),
        ({"batch": 1.5}, "the batch of a trace"),
        ({"name": "é" * 32768}, "at most 65535 bytes"),
        ({"name": "\ud800"}, "UTF-8"),
        ({"name": 5}, "is text"),
    ],
)
def test_trace_of_something_else_is_refused(fields, because):
    with pytest.raises(MemoryUseError, match=because):
        Trace(**({"name": "x", "events": np.zeros(0, EVENT)} | fields))


def test_sizes_beyond_any_device_are_refused():
    assert one_block(2**50).peak_live_bytes == 2**50 + 512
    with pytest.raises(MemoryUseError, match=r"event 0 has .* at most"):
        one_block(2**50 + 1)


def test_view_of_events_is_copied():
    trace = one_block()
    view = Trace(name="view", events=trace.events[::-1])
    assert view.events.flags.c_contiguous
    assert replay(view, "ours", capacity_bytes=8 * MIB).peak_live_bytes == 3 * MIB + 512


@pytest.mark.parametrize("batch", [True, 2.0, float("nan"), 0, 2**31 + 1])
def test_batch_that_is_none_is_refused(batch):
    with pytest.raises(MemoryUseError, match="a batch is a whole number"):
        one_block(scales=1).at_batch(batch)


@pytest.mark.parametrize("batch", [2**31, np.int32(2**31 - 1)])
def test_batch_that_makes_a_block_too_large_is_refused(batch):
    with pytest.raises(MemoryUseError, match="1 PiB"):
        one_block(2**40, scales=1).at_batch(batch)


@pytest.mark.parametrize("batch", [2.0, True, "2"])
def test_batches_of_recordings_are_whole_numbers(batch):
    with pytest.raises(MemoryUseError, match="a batch is a whole number"):
        scalable(one_block(), batch, one_block(), 4)


@pytest.mark.parametrize("sizes", [(0, 512), (512, 0)])
def test_block_that_is_there_with_one_batch_alone_is_refused(sizes):
    first, second = map(one_block, sizes)
    with pytest.raises(MemoryUseError, match="neither of one size nor proportional"):
        scalable(first, 20, second, 1)


@pytest.mark.parametrize("count", [2**26, 2**27 + 1])
def test_file_that_claims_more_than_it_holds_is_refused(tmp_path, count):
    path = tmp_path / "claims.dtm"
    head = struct.pack("<8sHHIQI", b"DTMTRACE", 1, 0, 0, count, 0)
    path.write_bytes(head + lzma.compress(bytes(2**20)))
    with pytest.raises(TraceError, match=r"damaged|claims"):
        Trace.load(path)


def test_file_that_does_not_fit_memory_is_refused(tmp_path, monkeypatch):
    def full(*_):
        raise MemoryError

    path = tmp_path / "one.dtm"
    one_block().save(path)
    monkeypatch.setattr("drivetrain_memory.trace._format._unpacked", full)
    with pytest.raises(TraceError, match="do not fit this machine's memory"):
        Trace.load(path)


def test_file_of_many_pieces_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("drivetrain_memory.trace._format._PIECE_BYTES", 100)
    pattern("aging").save(tmp_path / "aging.dtm")
    again = Trace.load(tmp_path / "aging.dtm")
    assert np.array_equal(again.events, pattern("aging").events)


def odd_snapshot(path, size=MIB, **fields):
    entries = [
        {"action": action, "addr": 2**40, "size": size, "stream": 0}
        for action in ("segment_alloc", "alloc")
    ]
    held = {"segments": [], "device_traces": [entries]} | fields
    path.write_bytes(pickle.dumps(held))
    return path


@pytest.mark.parametrize("size", [-1, 1.5, "1", None, True, 2**50 + 1, 2**70])
@pytest.mark.parametrize("function", [from_snapshot, recorded_segments, validate])
def test_snapshot_with_odd_sizes_is_refused(tmp_path, function, size):
    with pytest.raises(TraceError, match="not as a snapshot is: a size"):
        function(odd_snapshot(tmp_path / "odd.pickle", size))


@pytest.mark.parametrize("size", [-1, 0.5, 2**51])
def test_snapshot_with_odd_blocks_is_refused(tmp_path, size):
    block = {"size": size, "state": "active_allocated"}
    segment = {"address": 0, "device": 0, "stream": 0, "blocks": [block]}
    path = odd_snapshot(tmp_path / "odd.pickle", segments=[segment])
    with pytest.raises(TraceError, match="not as a snapshot is: a size"):
        from_snapshot(path)


@pytest.mark.parametrize(
    "fields", [{"allocator_settings": 5}, {"size": 0}], ids=["settings", "nothing"]
)
def test_snapshot_that_cannot_be_validated_is_refused(tmp_path, fields):
    with pytest.raises(TraceError, match="not as a snapshot is"):
        validate(odd_snapshot(tmp_path / "odd.pickle", **fields))


@pytest.mark.extra
@pytest.mark.parametrize(
    "segments",
    [5, [5], [{}], [{"total_size": "x"}], [{"total_size": 1, "blocks": 3}]],
)
def test_picture_of_odd_segments_is_refused(tmp_path, segments):
    with pytest.raises(MemoryUseError, match="not as those of a snapshot"):
        plot_snapshot({"segments": segments}, tmp_path / "odd.png")


@pytest.mark.extra
def test_picture_of_a_contradiction_is_refused(tmp_path):
    builder = Builder("bad")
    builder.free(7)
    with pytest.raises(MemoryUseError, match="frees the unknown block 7"):
        plot_trace(builder.trace(), tmp_path / "bad.png")


@pytest.mark.extra
def test_title_of_a_picture_is_no_formula(tmp_path):
    events = pattern("island").events
    plot_trace(Trace(name=r"a $\frac{$ b", events=events), tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()


@pytest.mark.parametrize("model", ["ours", "gmlake", "gmlake-64"])
def test_segments_of_models_without_them_are_refused(model):
    with pytest.raises(MemoryUseError, match="native, expandable, expandable-2"):
        segment_events(pattern("island"), model, capacity_bytes=2**33)


def test_one_allocator_may_be_given_by_its_name():
    assert [row.allocator for row in compare(pattern("island"), "ours")] == ["ours"]


@pytest.mark.parametrize("headroom", [-5, float("nan"), float("inf"), True, "1"])
def test_headroom_below_nothing_is_refused(headroom):
    trace, options = pattern("island"), {"capacity_bytes": 2**33, "headroom": headroom}
    with pytest.raises(MemoryUseError, match="the headroom is at least 0"):
        replay(trace, "ours", **options)
    with pytest.raises(MemoryUseError, match="the headroom is at least 0"):
        snapshot_at_peak(trace, **options)


@pytest.mark.parametrize("number", [-1, 2**63, 1.5, True])
def test_numbers_that_would_wrap_are_refused(number):
    allocator = NativeAllocator(null_driver(4 * CHUNK, CHUNK))
    block = allocator.allocate(512)
    for function in (
        lambda: allocator.allocate(number),
        lambda: allocator.allocate(512, number),
        lambda: allocator.free(number),
        lambda: allocator.record_stream(block, number),
        lambda: allocator.keep_history(number),
        lambda: keep_history(number),
    ):
        with pytest.raises(MemoryUseError, match="is a whole number"):
            function()


def test_figures_need_a_torch_with_cuda(monkeypatch):
    import torch

    monkeypatch.delattr(torch._C, "_cuda_customAllocator", raising=False)
    with pytest.raises(DeviceError, match="built without CUDA"):
        stats()


@pytest.mark.parametrize(
    ("arguments", "because"),
    [
        (["validate", "creep"], "there is no file 'creep'"),
        (["replay", "FOLDER"], "FOLDER"),
        (["validate", "FOLDER"], "FOLDER"),
        (["plot", "FOLDER", "-o", "x.png"], "FOLDER"),
        (["trace", "FOLDER", "-o", "x.dtm"], "FOLDER"),
    ],
)
def test_what_is_no_file_is_told_in_one_line(tmp_path, capsys, arguments, because):
    folder = str(tmp_path)
    assert main([one.replace("FOLDER", folder) for one in arguments]) == 1
    told = capsys.readouterr().err
    assert because.replace("FOLDER", folder) in told
    assert told.count("\n") == 1
