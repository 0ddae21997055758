"""Traces of capacity: drawn from a shape, or read from a file."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivetrain_cloud.cost.trace import (
    SHAPES,
    CapacityTrace,
    TraceError,
    TraceShape,
    draw_trace,
    read_trace,
)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(SHAPES)), st.integers(1, 20), st.integers(0, 99))
def test_a_drawn_trace_has_from_none_to_all_of_its_nodes(name, nodes, seed):
    trace = draw_trace(SHAPES[name], nodes, days=3.0, seed=seed)
    numbers = [available for _, available in trace.changes]
    assert numbers[0] == nodes
    assert all(0 <= number <= nodes for number in numbers)
    assert all(a != b for a, b in itertools.pairwise(numbers))


def test_nodes_are_there_for_the_share_of_time_that_the_shape_says():
    shape = TraceShape(up_h=8.0, down_h=2.0)
    trace = draw_trace(shape, 50, days=60.0, seed=1)
    assert trace.mean_available() / 50 == pytest.approx(0.8, abs=0.02)
    assert trace.reclaims == pytest.approx(50 * 60 * 24 / 10, rel=0.1)


def test_no_node_stays_longer_than_it_may():
    shape = TraceShape(up_h=1000.0, down_h=0.5, longest_h=24.0)
    trace = draw_trace(shape, 1, days=30.0, seed=2)
    ups = [time for time, number in trace.changes if number == 1]
    downs = [time for time, number in trace.changes if number == 0]
    assert len(downs) >= 28
    assert all(b - a <= 24 * 3600 + 1e-3 for a, b in zip(ups, downs, strict=False))


def test_a_burst_takes_many_at_once():
    shape = TraceShape(up_h=1e6, down_h=1.0, bursts_per_day=1.0, burst_share=1.0)
    trace = draw_trace(shape, 10, days=20.0, seed=4)
    drops = [
        one[1] - other[1]
        for one, other in zip(trace.changes, trace.changes[1:], strict=False)
    ]
    assert max(drops) >= 9


def test_other_seeds_give_other_traces():
    assert draw_trace(SHAPES["busy"], 4, days=5.0, seed=0) != draw_trace(
        SHAPES["busy"], 4, days=5.0, seed=1
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"up_h": 0.0},
        {"down_h": -1.0},
        {"weibull": float("nan")},
        {"bursts_per_day": float("inf")},
        {"burst_share": 1.5},
        {"down_h": float("inf")},
        {"weibull": 1e-3},
        {"bursts_per_day": 1e300},
    ],
)
def test_a_shape_out_of_its_range_is_refused(fields):
    with pytest.raises(TraceError):
        TraceShape(**{"up_h": 1.0, "down_h": 1.0, **fields})


@pytest.mark.parametrize(("nodes", "days"), [(0, 1.0), (1, 0.0), (1, float("inf"))])
def test_a_trace_of_nothing_is_refused(nodes, days):
    with pytest.raises(TraceError):
        draw_trace(SHAPES["calm"], nodes, days=days)


def written(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_a_file_of_ones_own(tmp_path):
    path = written(tmp_path, "# mine\nseconds, available\n0, 4\n60,2\n\n90,3\n")
    trace = read_trace(path, end_s=120.0)
    assert trace.changes == ((0.0, 4), (60.0, 2), (90.0, 3))
    assert (trace.reclaims, trace.end_s, trace.source) == (2, 120.0, str(path))
    assert read_trace(path).end_s == 90 + 3600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected the columns"),
        ("a,b\n", "expected the columns"),
        ("seconds,available\n", "must begin at 0"),
        ("seconds,available\n5,1\n", "must begin at 0"),
        ("seconds,available\n0,1\n0,2\n", "must grow"),
        ("seconds,available\n0,1\n9,-2\n", "cannot be -2 nodes"),
        ("seconds,available\n0,1\n9\n", ":3: expected seconds"),
        ("seconds,available\n0,x\n", ":2: expected seconds"),
        ("seconds,available\n0,1\ninf,2\n", "must grow"),
        ("seconds,available\n0,1\nnan,2\n", "must grow"),
        ('seconds,available\n0,"1\n', ":2: unexpected end"),
        (f"seconds,available\n0,{'1' * 200_000}\n", ":2: field larger"),
        (f"seconds,available\n0,{10**24}\n", "from 0 to 1000000"),
        ("seconds,available\n0,1\n1e16,2\n", "for 100 years"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path, text, words):
    with pytest.raises(TraceError, match=words):
        read_trace(written(tmp_path, text))


def test_a_mark_of_spreadsheets_is_no_part_of_a_column(tmp_path):
    path = tmp_path / "marked.csv"
    path.write_bytes(b"\xef\xbb\xbfseconds,available\r\n0,3\r\n")
    assert read_trace(path).changes == ((0.0, 3),)


def test_a_trace_must_end_after_it_begins():
    with pytest.raises(TraceError, match="must grow"):
        CapacityTrace(changes=((0.0, 1),), end_s=0.0, source="x")
