"""Old names of what moved to another package."""

import subprocess
import sys
from importlib import import_module

import pytest

from drivetrain_core.commands import CommandParser, run_command
from drivetrain_core.moved import forward_modules
from drivetrain_core.moved_commands import forward_command

MOVED = """
import sys
from drivetrain_core.moved import forward_modules
forward_modules({"drivetrain_core.old": "drivetrain_core.services"})
"""


def python(code):
    command = [sys.executable, "-c", MOVED + code]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize(
    "code",
    [
        "import drivetrain_core.old as old",
        "from drivetrain_core import old",
        "from drivetrain_core.old import batch_plan\nimport drivetrain_core.old as old",
    ],
)
def test_old_name_is_the_module_at_its_new_place(code):
    code += """
import drivetrain_core.services as new
assert old is new
assert new.__name__ == new.__spec__.name == "drivetrain_core.services"
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    # It is shown where a script of the user's own uses the old name.
    assert "drivetrain_core.old is now drivetrain_core.services" in done.stderr


def test_submodule_has_no_second_copy():
    done = python(
        "from drivetrain_core.old.batch_plan import BatchPlan as old\n"
        "from drivetrain_core.services.batch_plan import BatchPlan as new\n"
        "assert old is new"
    )
    assert done.returncode == 0, done.stderr


def test_package_that_is_not_there_is_named_with_the_line_that_installs_it():
    forward_modules({"drivetrain_core.gone": "drivetrain_nowhere.here"})
    with pytest.raises(ImportError, match="pip install drivetrain-nowhere"):
        import drivetrain_core.gone  # noqa: F401


@pytest.mark.filterwarnings("ignore:drivetrain_core.older is now json")
def test_missing_submodule_is_an_ordinary_error():
    forward_modules({"drivetrain_core.older": "json"})
    with pytest.raises(ModuleNotFoundError, match=r"older\.nothing"):
        import drivetrain_core.older.nothing  # noqa: F401


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


def test_module_and_package_are_run_under_their_old_names():
    code = """
import runpy
forward_modules({"drivetrain_core.spoken": "this", "drivetrain_core.packed": "json"})
runpy.run_module("drivetrain_core.spoken", run_name="__main__")
sys.argv = ["tool", "--help"]
runpy.run_module("drivetrain_core.packed.tool", run_name="__main__")
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert "Beautiful is better than ugly." in done.stdout
    assert "usage:" in done.stdout


def test_top_module_of_a_package_that_is_not_there_is_named_too():
    forward_modules({"drivetrain_core.whole": "drivetrain_nowhere"})
    with pytest.raises(ImportError, match="pip install drivetrain-nowhere"):
        import_module("drivetrain_core.whole")
    with pytest.raises(ImportError, match="pip install drivetrain-nowhere"):
        from drivetrain_core import whole  # noqa: F401
