"""Old names of commands that moved to another package."""

import pytest

from drivetrain_core.commands import CommandParser, run_command
from drivetrain_core.moved_commands import forward_command


def test_old_command_warns_and_runs_the_new_one(capsys):
    parser = CommandParser(prog="drivetrain-comm")
    forward_command(parser.add_subparsers(), "look", "list")
    arguments = parser.parse_args(["look", "--json"])
    assert run_command("drivetrain-comm", arguments.run, arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("[")
    assert (
        err == "drivetrain-comm look is now drivetrain list; the old name goes away\n"
    )


def test_old_command_passes_its_help_on(capsys):
    parser = CommandParser(prog="drivetrain-comm")
    forward_command(parser.add_subparsers(), "look", "list")
    arguments = parser.parse_args(["look", "--help"])
    with pytest.raises(SystemExit) as stopped:
        arguments.run(arguments)
    assert stopped.value.code == 0
    assert "usage: drivetrain-comm look" in capsys.readouterr().out


def test_old_command_whose_package_is_not_there_names_the_line_that_installs_it(capsys):
    parser = CommandParser(prog="drivetrain-comm")
    forward_command(parser.add_subparsers(), "look", "nowhere list")
    arguments = parser.parse_args(["look"])
    assert run_command("drivetrain-comm", arguments.run, arguments) == 1
    assert "pip install drivetrain-nowhere" in capsys.readouterr().err
