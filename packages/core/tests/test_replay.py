"""Scripts that run again in their trials: whatever they hold, as they were started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain_core import Plan, _replay
from drivetrain_core._errors import ProgramError, SearchError
from drivetrain_core._overrides import Overrides, overriding
from drivetrain_core._replay import (
    Replay,
    Script,
    begin_call,
    current_script,
    remember_plan,
    run_script,
)

# The lock cannot be pickled, so that the parts of this program cannot be sent.
SCRIPT = """
import json, sys, threading
import torch
from torch import nn
from drivetrain_core import accelerate

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    def forward(self, x):
        with self.lock:
            return self.inner(x)

print("arguments", sys.argv[1:])
data = [(torch.randn(8, 8), torch.randn(8, 1)) for _ in range(6)]
accelerated = accelerate(
    Model(),
    lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    data,
    lambda output, batch: nn.functional.mse_loss(output, batch[1]),
    allow=["optimizer_impl"],
    budget={"seconds": 120, "trials": 1},
    cache=False,
)
records = [(t.code, t.because) for t in accelerated.report.trials]
json.dump(records, open("trials.json", "w"))
"""


def start(folder, script, *command):
    """Runs a script in a process of its own, by its path if nothing else is said."""
    path = folder / "train.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, *(command or (str(path),))],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def run(folder, script, *command):
    """Returns the trials that a script saw, and its process."""
    done = start(folder, script, *command)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "trials.json").read_text()), done


def failing(folder, script):
    """Returns the process of a script that fails."""
    done = start(folder, script)
    assert done.returncode == 1
    return done


@pytest.mark.faults
def test_module_that_cannot_be_pickled_runs_again(tmp_path):
    trials, done = run(tmp_path, SCRIPT, "-m", "train", "--size", "3")
    assert [code for code, _ in trials] == [""]
    assert done.stdout.count("['--size', '3']") == 1  # The trials' words are theirs.


def test_search_of_the_command_line_runs_the_script_again(tmp_path):
    search = ("-m", "drivetrain_core.cli", "search", "--json")
    done = start(tmp_path, SCRIPT, *search, "train.py", "--size", "3")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [trial["code"] for trial in found["report"]["trials"]] == [""]


@pytest.mark.faults
def test_earlier_calls_get_the_plans_that_they_were_given(tmp_path):
    twice = SCRIPT.replace(
        "records =",
        """
try:
    accelerate(Model(), torch.optim.SGD, data, strategy="missing.yaml")
except Exception as error:
    print(type(error).__name__)
first = accelerated
del accelerated
other = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(6)]
accelerated = accelerate(
    Model(),
    lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
    other,
    lambda output, batch: nn.functional.l1_loss(output, batch[1]),
    allow=["micro_batch"],
    budget={"seconds": 120, "trials": 1},
    cache=False,
)
records =""",
    )
    trials, _ = run(tmp_path, twice)
    assert [code for code, _ in trials] == [""]


@pytest.mark.faults
def test_script_without_that_call_when_it_runs_again_is_told(tmp_path):
    script = "import os\nif 'DRIVETRAIN_TRIAL' in os.environ: raise SystemExit\n"
    done = failing(tmp_path, script + SCRIPT)
    assert "ended in a trial without its call 1 of accelerate" in done.stderr


@pytest.mark.faults
def test_script_that_makes_another_model_is_told(tmp_path):
    script = SCRIPT.replace(
        "nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)",
        "nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1), *extra()",
    ).replace(
        "class Model",
        "import os\n"
        "def extra():\n"
        "    return [nn.Linear(1, 1)] if 'DRIVETRAIN_TRIAL' in os.environ else []\n"
        "class Model",
    )
    done = failing(tmp_path, script)
    assert "makes another model when it runs again" in done.stderr


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
    monkeypatch.setattr(_replay, "_decided", [])
    monkeypatch.chdir(tmp_path)
    first, second, third = (begin_call() for _ in range(3))
    remember_plan(second, Plan())
    found = current_script(third, ("train.py", ["--size", "3"]))
    assert found.path == str(tmp_path / "train.py")
    assert (found.arguments, found.folder) == (("--size", "3"), str(tmp_path))
    assert found.earlier == (None, Plan())
    assert current_script(first, ("train.py", [])).earlier == ()


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
