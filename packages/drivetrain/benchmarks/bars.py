"""Measures on this machine what the meta package claims."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from drivetrain_testing import Bar, Row, run_bars

_SEARCH_S = 60
_JOB = (
    "import sys; from drivetrain.quickstart import main; sys.exit(main(sys.argv[1:]))"
)


def light_import(quick):
    """How many modules of torch a fresh interpreter loads to tell all versions."""
    code = (
        "import sys, drivetrain; found = drivetrain.versions(); "
        "heavy = [n for n in sys.modules if n.split('.')[0] == 'torch']; "
        "print(len(heavy), 'drivetrain' in found and 'torch' in found)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    num_modules, complete = done.stdout.split()
    holds = num_modules == "0" and complete == "True"
    return Row(figure=f"{num_modules} modules of torch", holds=holds)


def main_job(quick):
    """The main job on a GPU: every promise is kept, with two workers on one device."""
    if not torch.cuda.is_available():
        return Row(figure="-", holds=None, proven_on="-", needs_gpu=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _JOB, "--out", folder, "--seconds", _SEARCH_S]
        done = subprocess.run(
            map(str, command),
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        file = Path(folder) / "result.json"
        result = json.loads(file.read_text()) if file.exists() else {}
        logs = {
            str(log.relative_to(folder)): log.read_text(errors="replace")[-2000:]
            for log in Path(folder).rglob("*.log")
        }
    figure = f"exit {done.returncode}"
    if result:
        speed, job = result["pair"]["speed_up"], result["job"]
        factor = (
            "the program as written" if speed is None else f"{speed['ratio']:.2f} x"
        )
        pause, lost = job["pause_s"], (job["steps_lost"], job["samples_lost"])
        figure += (
            f", {factor}, pause {pause} s, {lost[0]} steps and {lost[1]} samples lost"
        )
    details = {"result": result, "output": done.stdout[-6000:]}
    if done.returncode:
        details["logs"] = logs
    return Row(
        figure=figure,
        holds=done.returncode == 0,
        proven_on=torch.cuda.get_device_name(),
        details=details,
    )


BARS = [
    Bar(name="versions-without-torch", bound="0", measure=light_import),
    Bar(name="main-job-gpu", bound="every promise is kept", measure=main_job),
]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
