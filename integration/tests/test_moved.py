"""What moved from one package to another is found under its old name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain_comm.cli import main

RENAMED = Path(__file__).parents[1] / "rules" / "renamed.json"


def modules():
    return {
        old: new
        for old, new in json.loads(RENAMED.read_text()).items()
        if not any(
            part.startswith("_") or not part.islower() for part in old.split(".")
        )
    }


@pytest.mark.parametrize("old", sorted(modules()))
def test_old_name_leads_to_the_new_one(old):
    new = modules()[old]
    code = f"import {old} as old, {new} as new; assert old is new"
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert f"{old} is now {new}" in done.stderr


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (["topo", "--file", "/nowhere"], "fabric topo"),
        (["fabric", "--spec", "/nowhere"], "fabric simulate"),
        (["doctor", "--as", "env", "--root", "/nowhere"], "fabric advise"),
    ],
)
def test_old_command_leads_to_the_new_one(words, new, capsys):
    assert main(words) == 1
    said, error = capsys.readouterr().err.splitlines()
    assert f"is now drivetrain {new}" in said
    assert "/nowhere" in error
