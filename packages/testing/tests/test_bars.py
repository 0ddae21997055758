"""Bars: rows, exit codes, selection, and the JSON that other programs read."""

from __future__ import annotations

import json

import pytest

from drivetrain_testing import Bar, Row, _bars, run_bars

GPU = Row(figure="-", holds=None, proven_on="-", needs_gpu=True)


def bar(name, row=None, bound="<= 1"):
    """A bar that returns the row, or raises it."""

    def measure(quick):
        if isinstance(row, Exception):
            raise row
        return row or Row(figure="quick" if quick else "whole", holds=True)

    return Bar(name=name, bound=bound, measure=measure)


PASS = bar("good")
MISS = bar("slow", Row(figure="2", holds=False))
SKIP = bar("none", Row(figure="-", holds=None))
ON_GPU = bar("cuda", GPU)


@pytest.mark.parametrize(
    ("bars", "code"),
    [
        ([], 0),
        ([PASS], 0),
        ([PASS, SKIP, ON_GPU], 0),
        ([PASS, MISS], 1),
        ([bar("broken", RuntimeError("no"))], 1),
    ],
    ids=["none", "pass", "not measured", "miss", "raises"],
)
def test_exit_code_is_one_for_a_miss(bars, code):
    assert run_bars(bars, []) == code


@pytest.mark.parametrize(
    ("row", "status"),
    [
        (Row(figure="1", holds=True), "pass"),
        (Row(figure="1", holds=False), "miss"),
        (Row(figure="1", holds=False, needs_gpu=True), "miss"),
        (Row(figure="-", holds=None), "skip"),
        (GPU, "gpu"),
    ],
)
def test_status_says_what_became_of_a_bar(row, status):
    assert row.status == status


def test_bar_that_raises_is_a_miss_that_is_named_and_hides_no_other(capsys):
    broken = bar("broken", RuntimeError("first line\nthe reason"))
    assert run_bars([broken, PASS], []) == 1
    out, err = capsys.readouterr()
    _, first, second = out.splitlines()
    assert first.split()[0] == "broken"
    assert "failed: RuntimeError: the reason" in first
    assert "miss" in first
    assert second.split()[0] == "good"
    assert "broken: miss in" in err
    assert "Traceback" in err
    assert "first line" in err


def test_bar_that_raises_without_words_names_its_error(capsys):
    assert run_bars([bar("broken", KeyError())], []) == 1
    assert "failed: KeyError" in capsys.readouterr().out


def test_interrupt_ends_the_run_which_shows_what_it_has(capsys):
    def interrupted(quick):
        raise KeyboardInterrupt

    broken = Bar(name="a", bound="", measure=interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_bars([PASS, broken, PASS], ["--json"])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["name"] == "good"


def test_table_is_aligned(capsys):
    assert run_bars([PASS, bar("longer-name", GPU)], []) == 0
    header, good, longer = capsys.readouterr().out.splitlines()
    for column, (one, other) in {
        "figure": ("whole", "-"),
        "status": ("pass", "gpu"),
    }.items():
        place = header.index(column)
        assert good[place:].startswith(one)
        assert longer[place:].startswith(other)


def test_only_runs_those_that_are_named_in_their_order(capsys):
    assert run_bars([PASS, MISS, SKIP], ["--only", "none", "--only", "good"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["good", "none"]


@pytest.mark.parametrize("argv", [["--only", "other"], ["--js"], ["extra"]])
def test_arguments_that_are_wrong_end_with_usage(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        run_bars([PASS], argv)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "figure"), [([], "whole"), (["--quick"], "quick")])
def test_quick_is_handed_to_every_bar(argv, figure, capsys):
    assert run_bars([PASS, bar("also")], argv) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[1] for row in rows] == [figure, figure]


def test_json_has_rows_and_what_a_number_is_worth_nothing_without(capsys):
    detailed = Row(figure="2", holds=False, proven_on="h200", details={"a_s": 0.5})
    assert run_bars([PASS, bar("slow", detailed, "<= 1 s"), ON_GPU], ["--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["status"]) for row in found["rows"]] == [
        *(("good", "pass"), ("slow", "miss"), ("cuda", "gpu")),
    ]
    assert found["rows"][1] == {
        "name": "slow",
        "bound": "<= 1 s",
        "status": "miss",
        "figure": "2",
        "holds": False,
        "proven_on": "h200",
        "needs_gpu": False,
        "details": {"a_s": 0.5},
    }
    assert {"date", "machine", "cores", "python", "versions", "commit"} < set(found)
    assert {"drivetrain-core", "torch"} <= set(found["versions"])
    assert found["date"].endswith("+00:00")


def test_json_takes_the_numbers_of_other_libraries(capsys):
    class Scalar:
        def item(self):
            return 0.5

    def measure(quick):
        return Row(figure="x", holds=True, details={"ratio": Scalar()})

    assert run_bars([Bar(name="it", bound="-", measure=measure)], ["--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["details"] == {"ratio": 0.5}


def test_json_is_printed_even_when_every_bar_fails(capsys):
    assert run_bars([bar("broken", OSError("gone"))], ["--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["status"], row["holds"]) == ("miss", False)
    assert row["figure"] == "failed: OSError: gone"


def test_commit_is_unknown_outside_of_a_repository(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert _bars._commit() == "unknown"
    monkeypatch.setenv("PATH", "")
    assert _bars._commit() == "unknown"


def test_quick_run_leaves_out_what_would_begin_late(monkeypatch, capsys):
    monkeypatch.setattr("drivetrain_testing._bars._QUICK_S", 0.0)
    assert run_bars([MISS], ["--quick"]) == 0
    assert "left out: the minute" in capsys.readouterr().out
    assert run_bars([MISS], ["--quick", "--only", MISS.name]) == 1
    assert run_bars([MISS], []) == 1
