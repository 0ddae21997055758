"""The report's file after each row, what is taken over from it, and its table."""

from __future__ import annotations

import json

import pytest
from report import Report, table

HEAD = {"commit": "abc", "hardware": {"gpus": [{"name": "H200"}], "cpus": 16}}


def row(name, status="pass", **more):
    return {"name": name, "status": status, "figure": "1", **more}


def test_file_is_whole_after_every_row(tmp_path):
    path = tmp_path / "made" / "gpu.json"
    report = Report(path, HEAD, ["a", "b"])
    report.put(row("facts"))
    report.put(row("b"))
    found = json.loads(path.read_text())
    assert [one["name"] for one in found["rows"]] == ["facts", "b"]
    assert (found["ok"], found["missing"]) == (False, ["a"])
    report.put(row("a", "skip"))
    found = json.loads(path.read_text())
    assert [one["name"] for one in found["rows"]] == ["facts", "a", "b"]
    assert (found["ok"], found["missing"]) == (True, [])
    assert [file.name for file in path.parent.iterdir()] == ["gpu.json"]


@pytest.mark.parametrize("status", ["miss", "stopped", "left out"])
def test_row_that_failed_is_not_ok(tmp_path, status):
    report = Report(tmp_path / "gpu.json", HEAD, ["a"])
    report.put(row("a", status))
    assert not report.ok


def test_resume_takes_over_what_was_measured(tmp_path):
    path = tmp_path / "gpu.json"
    first = Report(path, HEAD, ["a", "b", "c"])
    assert first.resume() == set()
    first.put(row("a", "miss"))
    first.put(row("b", "stopped"))
    again = Report(path, HEAD, ["a", "b", "c"])
    assert again.resume() == {"a"}
    assert [one["name"] for one in again.rows] == ["a"]


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (HEAD | {"commit": "def"}, "of other commit"),
        (HEAD | {"hardware": {"gpus": [{"name": "H100"}]}}, "of other gpus"),
    ],
)
def test_resume_of_another_run_is_refused(tmp_path, head, why):
    path = tmp_path / "gpu.json"
    Report(path, HEAD, ["a"]).put(row("a"))
    with pytest.raises(ValueError, match=why):
        Report(path, head, ["a"]).resume()


def test_resume_of_what_is_no_report_is_refused(tmp_path):
    path = tmp_path / "gpu.json"
    path.write_text('{"rows": 3}')
    with pytest.raises(ValueError, match="no report that can be resumed"):
        Report(path, HEAD, ["a"]).resume()


def test_table_shows_bars_and_failures_below_their_row():
    failure = {"test": "a::test_x[1]", "message": "assert 1 == 2\nmore"}
    bar = {"name": "memory", "figure": "3", "status": "miss"}
    rows = [
        row("tests-one", "miss", tests={"failures": [failure]}, seconds=3.2),
        row("bars-one", "miss", bars=[bar]),
    ]
    lines = [line.split() for line in table(rows).splitlines()]
    assert lines[1] == ["tests-one", "1", "3", "s", "miss"]
    assert lines[2] == ["test_x[1]", "assert", "1", "==", "2", "miss"]
    assert lines[4] == ["memory", "3", "-", "miss"]
