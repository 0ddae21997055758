"""The command `drivetrain search`: what it writes and prints, and its exit codes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from drivetrain_core import Plan
from drivetrain_core.cli import main
from drivetrain_search.doctor import check_pictures

pytestmark = pytest.mark.usefixtures("wide_terminal")


def failed(argv, capsys):
    """Runs a command that must fail, and returns its one line."""
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert err.startswith("drivetrain: ")
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    return err


@pytest.mark.slow
def test_search_writes_plan_report_and_picture(script, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv, path = sys.argv, sys.path[0]
    drawn = importlib.util.find_spec("matplotlib") is not None
    picture = ["--picture", "trials.png"] if drawn else []
    assert main(["search", "--budget", "90s", *picture, script, "--lr", "3"]) == 0
    out, err = capsys.readouterr()
    assert "from the script ['--lr', '3']" in out
    assert "trained under" not in out
    assert "baseline" in out
    assert "plan: baseline" in out
    assert "written to drivetrain_plan.yaml" in out
    assert "t01" in err
    written = Plan.load("drivetrain_plan.yaml")
    assert (written.choices, written.made["trials"]) == ((), 1)
    assert not drawn or Path("trials.png").stat().st_size > 5_000
    assert (sys.argv, sys.path[0]) == (argv, path)


@pytest.mark.faults
def test_search_prints_json_alone_as_a_module(script, tmp_path):
    command = [sys.executable, "-m", "drivetrain_core.cli", "search", "--json"]
    command += ["--budget", "90s", "--plan", "deep/plan.yaml", script]
    done = subprocess.run(
        command, check=True, cwd=tmp_path, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert "from the script []" in done.stderr
    assert found["plan"] == Plan.load(tmp_path / "deep" / "plan.yaml").to_dict()
    (trial,) = found["report"]["trials"]
    assert trial["measurement"]["samples_per_step"] == 4
    assert found["report"]["chosen"] == []


@pytest.mark.parametrize("option", ["--plan", "--html"])
def test_search_does_not_write_over_the_script(option, script, capsys):
    text = Path(script).read_text()
    err = failed(["search", option, script, script], capsys)
    assert "it is there, and" in err
    assert Path(script).read_text() == text


@pytest.mark.slow
def test_search_measures_what_a_plan_that_changes_folder_would(
    script, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    moved = f"import os; os.chdir('elsewhere')\n{Path(script).read_text()}"
    Path("moved.py").write_text(moved)
    assert main(["search", "--budget", "90s", "--plan", "mine.yaml", "moved.py"]) == 0
    assert Plan.load("mine.yaml").measured
    assert not Path("elsewhere", "mine.yaml").exists()
    assert "because: " in capsys.readouterr().out


@pytest.mark.slow
def test_search_that_measured_nothing_keeps_an_earlier_plan(
    script, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    argv = ["search", "--budget", "0.01", "--plan", "a.yaml", script]
    assert main(argv) == 0  # There was none: the program as written is the plan.
    assert Plan.load("a.yaml").measured == {}
    earlier = Plan(measured={"vs_baseline": 1.5})
    earlier.save("a.yaml")
    capsys.readouterr()
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert Plan.load("a.yaml") == earlier
    assert "written to" not in out
    assert "too short" in err.splitlines()[-1]
    assert err.endswith("a.yaml keeps what an earlier search measured\n")


MENTION = "import sys\nfrom drivetrain_core import accelerate\nuse = accelerate\n"


@pytest.mark.parametrize("body", ["", "sys.exit(0)", "raise SystemExit"])
def test_script_that_calls_no_accelerate_is_told(body, tmp_path, capsys):
    script = tmp_path / "idle.py"
    script.write_text(MENTION + body)
    err = failed(["search", str(script)], capsys)
    assert "idle.py ended without calling drivetrain_core.accelerate" in err


def test_script_that_cannot_call_accelerate_is_not_run(tmp_path, capsys):
    script = tmp_path / "plain.py"
    script.write_text("import torch, helper\nopen('ran', 'w').close()\n")
    (tmp_path / "helper.py").write_text("import numpy\n")
    err = failed(["search", str(script)], capsys)
    assert "plain.py was not run: neither it nor what it imports calls" in err
    assert not (tmp_path / "ran").exists()


def test_script_that_is_missing_is_named(capsys):
    assert "no script 'none.py'" in failed(["search", "none.py"], capsys)


def test_search_that_is_interrupted_says_so(tmp_path, capsys):
    script = tmp_path / "interrupted.py"
    script.write_text(f"{MENTION}raise KeyboardInterrupt")
    assert main(["search", str(script)]) == 130
    assert capsys.readouterr().err == "drivetrain: interrupted\n"


@pytest.mark.parametrize("budget", ["soon", "0", "-5m", "nan", "10 days"])
def test_search_with_a_budget_that_is_none_is_wrong_use(budget, script, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["search", f"--budget={budget}", script])
    assert caught.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("drivetrain search: error: argument --budget: ")


@pytest.mark.parametrize("budget", ["600", "0.5", "90s", "1.5h"])
def test_search_takes_every_budget_that_it_offers(budget, capsys):
    err = failed(["search", "--budget", budget, "missing.py"], capsys)
    assert "there is no script 'missing.py'" in err


def test_search_asks_for_matplotlib_before_it_begins(script, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    err = failed(["search", "--picture", "a.png", script], capsys)
    assert "pip install 'drivetrain-search[plot]'" in err


def test_search_with_a_picture_of_another_kind_is_a_usage_error(script, capsys):
    with pytest.raises(SystemExit):
        main(["search", "--picture", "a.docx", script])
    assert "must end in .png, got 'a.docx'" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["serch"], ["search"]])
def test_usage_errors_end_with_two(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: drivetrain" in capsys.readouterr().err


def test_doctor_checks_that_trials_are_isolated(capsys):
    assert main(["doctor", "--json"]) == 0
    checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)}
    assert checks["isolated trials"]["state"] == "ok"


def test_doctor_says_how_to_get_pictures(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("drivetrain_search.doctor.version", missing)
    assert check_pictures() == (
        "warn",
        "no matplotlib: pip install 'drivetrain-search[plot]'",
    )
