"""Trace files: what is written is read, and nothing else is."""

import lzma
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings.patterns import WRITTEN

from drivetrain_memory import Trace, TraceError
from drivetrain_memory.trace import EVENT, PATTERNS, Builder, Operation, pattern


def small():
    builder = Builder("small")
    builder.step()
    first = builder.allocate(1000)
    second = builder.allocate(2**33, stream=3)
    builder.record_stream(second, 1)
    builder.free(first)
    builder.free(second)
    return builder.trace()


def test_file_holds_the_trace(tmp_path):
    trace = small()
    trace.save(tmp_path / "small.dtm")
    again = Trace.load(tmp_path / "small.dtm")
    assert again.name == "small"
    assert np.array_equal(again.events, trace.events)
    assert again.num_steps == 1
    assert again.peak_live_bytes == 1024 + 2**33


def test_peak_of_an_id_that_is_used_again():
    events = np.zeros(4, EVENT)
    events["operation"] = [0, 1, 0, 1]
    events["size"] = [512, 0, 100_000, 0]
    assert Trace(name="again", events=events).peak_live_bytes == 100_352


def test_trace_without_events(tmp_path):
    empty = Trace(name="", events=np.zeros(0, EVENT))
    assert empty.peak_live_bytes == 0
    empty.save(tmp_path / "empty.dtm")
    assert len(Trace.load(tmp_path / "empty.dtm").events) == 0


@pytest.mark.parametrize(
    ("change", "because"),
    [
        (lambda data: data[:10], "too short"),
        (lambda data: b"NOTTRACE" + data[8:], "does not begin as a trace"),
        (lambda data: data[:8] + b"\x09\x00" + data[10:], "version 9"),
        (lambda data: data[:-5], "damaged"),
        (lambda data: data[:60] + b"\x00\x00\x00" + data[63:], "damaged"),
        (lambda data: data[:16] + struct.pack("<Q", 2**40) + data[24:], "claims"),
        (lambda data: data[:16] + struct.pack("<Q", 3) + data[24:], "damaged"),
        (lambda data: data[:24] + b"\x00\x00\x00\x00" + data[28:], "damaged"),
    ],
    ids=range(8),
)
def test_broken_file_is_refused(tmp_path, change, because):
    path = tmp_path / "small.dtm"
    small().save(path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(TraceError, match=because):
        Trace.load(path)


def test_file_that_unpacks_to_more_than_it_says_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.dtm"
    raw = bytes(16)
    head = struct.pack("<8sHHIQI", b"DTMTRACE", 1, 0, 0, 1, zlib.crc32(raw))
    path.write_bytes(head + lzma.compress(bytes(2**24)))
    with pytest.raises(TraceError, match="damaged"):
        Trace.load(path)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_raise(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "x.dtm"
    path.write_bytes(b"DTMTRACE\x01\x00" + data)
    with pytest.raises(TraceError):
        Trace.load(path)


def test_operations_are_those_of_the_library():
    assert [int(o) for o in Operation] == [0, 1, 2, 3]
    assert EVENT.itemsize == 16


@pytest.mark.parametrize("name", PATTERNS)
def test_shipped_pattern_is_what_is_written(name):
    shipped, written = pattern(name), WRITTEN[name]()
    assert shipped.name == written.name == name
    assert np.array_equal(shipped.events, written.events)
