"""Scripts that run again in their trials: whatever they hold, as they were started."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from drivetrain_core import Plan
from drivetrain_core._errors import ProgramError, SearchError
from drivetrain_core._scripts import replay
from drivetrain_core._scripts.overrides import Overrides, overriding
from drivetrain_core._scripts.replay import (
    Replay,
    Script,
    begin_call,
    current_script,
    remember_plan,
    run_script,
)


def replay_of(path, *earlier):
    """Returns a replay whose call that is meant raises, and what it took."""
    path.write_text("pass")
    taken = []

    def take(program):
        taken.append(program)
        raise RuntimeError

    return Replay(Script(path=str(path), earlier=earlier), take), taken


def test_calls_are_counted(tmp_path):
    replay, taken = replay_of(tmp_path / "train.py", Plan(), Plan())
    assert [replay.next_call(n, "auto") for n in "ab"] == [Plan(), Plan()]
    with pytest.raises(RuntimeError):
        replay.next_call("c", "auto")
    assert taken == ["c"]


def test_call_that_failed_fails_again_and_is_counted(tmp_path):
    replay, taken = replay_of(tmp_path / "train.py", None, None)
    assert replay.next_call("a", "missing.yaml") == "missing.yaml"
    with pytest.raises(SearchError, match="call 2 of accelerate failed in the first"):
        replay.next_call("b", {"precision": "auto"})
    with pytest.raises(RuntimeError):
        replay.next_call("c", "auto")
    assert taken == ["c"]


def test_a_test_run_is_no_script_to_run_again():
    assert current_script(0) is None


def test_script_of_a_command_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "_decided", [])
    first, second, third = (begin_call() for _ in range(3))
    remember_plan(second, Plan())
    begun = Script(path="train.py", arguments=("--size", "3"), folder=str(tmp_path))
    found = current_script(third, begun)
    assert found == dataclasses.replace(begun, earlier=(None, Plan()))
    assert current_script(first, begun).earlier == ()


def test_script_gets_its_surroundings_and_ours_come_back(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import sys, os; print(sys.argv, os.getcwd())")
    before = (list(sys.argv), list(sys.path), Path.cwd())
    run_script(Script(path=str(path), arguments=("x",), folder=str(tmp_path)))
    assert (list(sys.argv), list(sys.path), Path.cwd()) == before


def test_missing_script_is_told(tmp_path):
    with pytest.raises(ProgramError, match="there is no script"):
        run_script(Script(path=str(tmp_path / "none.py")))


def test_script_that_exits_well_ends_well(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit(0)")
    run_script(Script(path=str(path)))
    path.write_text("raise SystemExit(3)")
    with pytest.raises(SystemExit), overriding(Overrides()):
        run_script(Script(path=str(path)))
