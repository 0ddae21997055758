"""The report of a search: as a table, as a picture, as plain data."""

from __future__ import annotations

import dataclasses
import io
import json
import sys

import pytest
from rich.console import Console

from drivetrain_core import Budget, Choice, Code, DrivetrainError, Measurement
from drivetrain_core.extending import describe
from drivetrain_search import Report, TrialRecord
from drivetrain_search.final import Comparison
from drivetrain_search.progress import ConsoleProgress
from drivetrain_search.report.record import speed_text

COMPILED = (Choice("compile", {"scope": "block"}),)
BROKEN = (Choice("precision", {"dtype": "bf16_autocast"}),)
WRONG = (Choice("micro_batch", {"num": 2}),)
BECAUSE = "out of memory: [enforce fail at alloc_cpu.cpp:127] can't [/allocate]"


def measurement(step_s, tokens=None):
    return Measurement(
        step_times_s=(step_s,) * 3,
        samples_per_step=8,
        tokens_per_step=tokens,
        peak_memory_bytes=1500 << 20,
    )


@pytest.fixture
def report():
    trials = (
        TrialRecord(
            name="t01", choices=(), seconds=2.0, measurement=measurement(0.5, 1024)
        ),
        TrialRecord(
            name="t02", choices=BROKEN, seconds=1.0, code="MEMORY", because=BECAUSE
        ),
        TrialRecord(
            name="t03",
            choices=COMPILED,
            seconds=9.04,
            measurement=measurement(0.25, 1024),
            guard={"loss_rel": 1e-7},
        ),
        TrialRecord(
            name="t04",
            choices=WRONG,
            seconds=3.0,
            measurement=measurement(0.125, 1024),
            code=Code.NUMERICS,
            because="the loss differs",
        ),
    )
    return Report(trials=trials, chosen=COMPILED, seconds=15.3, stopped="all asked")


def test_report_in_words_is_one_line(report):
    assert str(report) == (
        f"chosen: {describe(COMPILED)}, 2.00x the program as written (in its trial); "
        "4 trials in 15 s; report.table() and html(path) show all"
    )
    final = Comparison(
        baseline=measurement(0.5),
        plan=measurement(0.4),
        speedup=1.25,
        low=1.2,
        high=1.3,
    )
    assert "1.25x the program as written (1.20x to 1.30x);" in str(
        dataclasses.replace(report, comparison=final)
    )
    for kept in ((), BROKEN):
        text = str(dataclasses.replace(report, chosen=kept, comparison=final))
        assert text.startswith("the program as written is kept: all asked; 4 trials")


def printed(table, width=200):
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


def test_table_shows_every_trial_fastest_first(report):
    lines = printed(report.table()).splitlines()
    assert "4 trials in 15 s" in lines[0]
    rows = [line for line in lines if "t0" in line]
    assert [row.split()[1] for row in rows] == ["t04", "t03", "t01", "t02"]
    assert "compile(scope=block)" in rows[1]
    assert "4,096 tok/s" in rows[1]
    assert "2.00x" in rows[1]
    assert "1,500" in rows[1]
    assert "chosen" in rows[1]
    assert "baseline" in rows[2]
    assert "NUMERICS: the loss differs" in rows[0]


def test_trial_of_an_earlier_search_is_marked(report, capsys):
    trials = [dataclasses.replace(trial, cached=True) for trial in report.trials]
    text = printed(dataclasses.replace(report, trials=tuple(trials)).table())
    assert text.count("of an earlier search") == 4
    assert "chosen, of an earlier search" in text
    progress = ConsoleProgress(Budget())
    for trial in (trials[0], report.trials[2]):
        progress.finished(trial)
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("(of an earlier search)")
    assert second.endswith("(9.0 s)")


def test_one_trial_is_not_told_of_as_several(report):
    alone = dataclasses.replace(report, trials=report.trials[:1], chosen=())
    assert "1 trial in 15 s" in printed(alone.table())


def test_table_shows_reasons_as_they_were_written(report):
    # Square brackets must not be taken for the markup of the table.
    assert f"MEMORY: {BECAUSE}" in printed(report.table(), width=300)


def test_table_that_is_narrow_leaves_nothing_out(report):
    text = "".join(printed(report.table(), width=72).split())
    assert "…" not in text


def test_table_says_samples_without_tokens():
    assert speed_text(measurement(0.5)) == "16.0 samples/s"
    assert speed_text(measurement(0.5, tokens=4)) == "8 tok/s"


def test_usable_is_a_trial_that_ran_and_trains_the_same(report):
    assert [trial.usable for trial in report.trials] == [True, False, True, False]
    assert report.baseline is report.trials[0]


def test_to_dict_is_json(report):
    data = json.loads(json.dumps(report.to_dict()))
    assert (data["seconds"], data["stopped"]) == (15.3, "all asked")
    assert data["chosen"] == [{"compile": {"scope": "block"}}]
    first, second, third, fourth = data["trials"]
    assert first["plan"] == []
    assert Measurement.from_dict(first["measurement"]) == measurement(0.5, 1024)
    assert (second["code"], second["measurement"]) == ("MEMORY", None)
    assert (third["guard"], third["seconds"]) == ({"loss_rel": 1e-7}, 9.04)
    assert fourth["code"] == "NUMERICS"


@pytest.mark.extra
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_picture_is_written(report, tmp_path, kind):
    pytest.importorskip("matplotlib")
    path = report.picture(tmp_path / f"trials.{kind}")
    assert path == tmp_path / f"trials.{kind}"
    assert path.stat().st_size > 5_000
    start = path.read_bytes()[:8]
    assert start == b"\x89PNG\r\n\x1a\n" if kind == "png" else start[:5] == b"<?xml"


@pytest.mark.extra
def test_picture_leaves_no_state_in_matplotlib(report, tmp_path):
    pytest.importorskip("matplotlib")
    loaded = "matplotlib.pyplot" in sys.modules
    report.picture(str(tmp_path / "trials.png"))
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_picture_without_matplotlib_says_what_to_install(report, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError) as caught:
        report.picture(tmp_path / "trials.png")
    assert "pip install 'drivetrain-search[plot]'" in str(caught.value)
    assert isinstance(caught.value, DrivetrainError)
    assert list(tmp_path.iterdir()) == []


def test_report_whose_baseline_was_not_measured_has_no_ratios():
    failed = TrialRecord(name="t01", choices=(), seconds=1.0, code="HANG")
    ran = TrialRecord(
        name="t02", choices=COMPILED, seconds=1.0, measurement=measurement(0.5)
    )
    report = Report(trials=(failed, ran), chosen=COMPILED, seconds=2.0, stopped="")
    assert "1.00x" in printed(report.table())
