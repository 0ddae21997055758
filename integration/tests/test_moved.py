"""What moved from one package to another is found under its old name."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from drivetrain_comm._cli import doctor
from drivetrain_comm.cli import main

RENAMED = Path(__file__).parents[1] / "rules" / "renamed.json"


def is_public_module(name):
    """Returns whether a dotted name is that of a module, and not of what is in one."""
    if any(part.startswith("_") for part in name.split(".")):
        return False
    with suppress(ModuleNotFoundError):
        return find_spec(name) is not None
    return False


def modules():
    return {
        old: new
        for old, new in json.loads(RENAMED.read_text()).items()
        if not any(part.startswith("_") for part in old.split("."))
        and is_public_module(new)
    }


ASK = """
import importlib, json, sys, warnings
for old, new in json.loads(sys.stdin.read()).items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        there = importlib.import_module(old) is importlib.import_module(new)
    said = any(f"{old} is now {new}" == str(each.message) for each in caught)
    if not (there and said):
        print(old, there, said)
"""


@pytest.mark.slow
def test_old_names_lead_to_the_new_ones():
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps(modules()),
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


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


def test_old_command_leaves_to_the_new_one_what_was_not_given(monkeypatch):
    ran = []
    monkeypatch.setattr(doctor, "run_moved", lambda *words: ran.append(words) or 0)
    assert (
        main(["doctor", "--as", "env"])
        == main(["doctor", "--dscp", "1", "--json"])
        == 0
    )
    assert main(["doctor", "--ranks", "4", "--as", "diff"]) == 0
    new = "fabric advise"
    assert ran == [
        ("drivetrain-comm doctor --as", new, ["--as", "env"]),
        ("drivetrain-comm doctor --dscp", new, ["--dscp", "1", "--json"]),
        ("drivetrain-comm doctor --as", new, ["--as", "diff", "--ranks=4"]),
    ]


def test_old_command_with_options_of_both_is_refused(capsys):
    assert main(["doctor", "--master", "here", "--as", "env"]) == 2
    assert "call one after the other" in capsys.readouterr().err


def test_module_that_became_a_folder_keeps_its_functions_and_its_files():
    from drivetrain_parallel.proof import compare, in_place, outputs

    assert compare is outputs.compare
    assert in_place.__name__ == "drivetrain_parallel.proof.in_place"
