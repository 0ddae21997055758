"""How a command ends: its status, and what it says of a failure."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace

import pytest

from drivetrain_core import DrivetrainError
from drivetrain_core.commands import run_command


def raises(error):
    def run(_):
        raise error

    return run


def test_status_is_that_of_the_command():
    assert run_command("program", lambda arguments: arguments.n, Namespace(n=3)) == 3


@pytest.mark.parametrize("error", [DrivetrainError("no"), OSError("no")], ids=repr)
def test_expected_failure_is_one_line(error, capsys):
    assert run_command("program", raises(error), Namespace()) == 1
    assert capsys.readouterr() == ("", "program: no\n")


def test_interrupt_has_the_status_of_its_signal(capsys):
    assert run_command("program", raises(KeyboardInterrupt()), Namespace()) == 130
    assert capsys.readouterr() == ("", "program: interrupted\n")


def test_mistake_is_not_hidden():
    with pytest.raises(RuntimeError, match="a mistake"):
        run_command("program", raises(RuntimeError("a mistake")), Namespace())


@pytest.mark.parametrize("num_lines", [1, 100_000])
def test_reader_that_goes_away_is_no_traceback(num_lines):
    code = f"""
import sys
from argparse import Namespace
from drivetrain_core.commands import run_command

def run(_):
    sys.stdin.read()
    for _ in range({num_lines}):
        print("a line")
    return 0

sys.exit(run_command("program", run, Namespace()))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (1, b"")
