"""The example scripts for trainers of other libraries search, and train to their end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "examples" / "trainers"


@pytest.mark.faults
@pytest.mark.parametrize(
    ("script", "needs"),
    [
        pytest.param("huggingface_trainer.py", "transformers"),
        ("lightning_trainer.py", "lightning"),
    ],
)
def test_script_of_a_trainer_searches_and_trains(script, needs, tmp_path):
    pytest.importorskip(needs)
    sizes = ["--steps", "4", "--dim", "32", "--seconds", "300", "--trials", "2"]
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *sizes],
        cwd=tmp_path,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DRIVETRAIN_CACHE_DIR": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert "plan: " in done.stdout
    assert "loss: " in done.stdout
    assert "t01" in done.stderr
