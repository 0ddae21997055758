"""Scripts that run again in their trials: whatever they hold, as they were started."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

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


@pytest.mark.slow
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
def test_script_that_cannot_run_twice_says_why_it_was(tmp_path):
    done = failing(
        tmp_path, f"import os\nos.makedirs('runs', exist_ok=False)\n{SCRIPT}"
    )
    assert "train.py again, since model cannot be pickled (TypeError" in done.stderr
    assert "and it fails then: FileExistsError" in done.stderr


@pytest.mark.faults
def test_script_that_changed_the_folder_runs_again(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    moved = SCRIPT.replace(
        "class Model", "import os\nos.chdir('elsewhere')\nclass Model"
    )
    moved = moved.replace('open("trials', 'open("../trials')
    trials, _ = run(tmp_path, moved, "train.py")
    assert [code for code, _ in trials] == [""]


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
