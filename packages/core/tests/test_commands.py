"""How a command ends: its status, and what it says of a failure."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentTypeError, Namespace
from importlib.metadata import version

import pytest

from drivetrain_core import (
    CheckpointError,
    Code,
    DrivetrainError,
    MissingLibraryError,
    PlanError,
)
from drivetrain_core.commands import (
    CommandParser,
    UsageError,
    add_options,
    add_version,
    as_wrong_use,
    integer,
    number,
    run_command,
    run_program,
)


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


def test_error_of_a_file_names_it_once_and_first(tmp_path, capsys):
    path = tmp_path / "missing"
    assert run_command("program", lambda _: len(path.read_text()), Namespace()) == 1
    assert capsys.readouterr().err == f"program: {path}: No such file or directory\n"


def test_wrong_use_is_one_line_of_the_innermost_command(capsys):
    parser = CommandParser(prog="program")
    commands = parser.add_subparsers()
    commands.add_parser("go").set_defaults(run=raises(UsageError("--n is missing")))
    arguments = parser.parse_args(["go"])
    assert run_command("program", arguments.run, arguments) == 2
    assert capsys.readouterr() == ("", "program go: error: --n is missing\n")


def test_wrong_use_without_a_parser_has_the_name_of_the_program(capsys):
    assert run_command("program", raises(UsageError("no")), Namespace()) == 2
    assert capsys.readouterr() == ("", "program: error: no\n")


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
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (1, b"")


# the parser


def populate(parser):
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    one = commands.add_parser("one", help="the first")
    one.add_argument("--number", type=integer(1))
    one.set_defaults(run=lambda arguments: arguments.number)
    group = commands.add_parser("group", help="the second").add_subparsers()
    group.add_parser("inner").set_defaults(run=lambda _: 7)


def program(*argv):
    return run_program("drivetrain-core", populate, argv, description="A program.")


def test_program_runs_what_is_named():
    assert program("one", "--number", "5") == 5
    assert program("group", "inner") == 7


@pytest.mark.parametrize(
    ("argv", "usage"),
    [
        (["one", "--nosuch"], "drivetrain-core one"),
        (["one", "--num", "3"], "drivetrain-core one"),
        (["one", "--number", "0"], "drivetrain-core one"),
        (["group", "inner", "more"], "drivetrain-core group inner"),
        (["group", "--nosuch"], "drivetrain-core group"),
        (["--nosuch"], "drivetrain-core"),
        (["nosuch"], "drivetrain-core"),
    ],
)
def test_wrong_arguments_show_the_usage_of_their_command(argv, usage, capsys):
    with pytest.raises(SystemExit) as caught:
        program(*argv)
    assert caught.value.code == 2
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"usage: {usage} [")
    assert last.startswith(f"{usage}: error: ")


@pytest.mark.parametrize(
    ("argv", "shown"), [([], "the first"), (["group"], "usage: drivetrain-core group")]
)
def test_call_without_a_command_shows_the_help_and_has_status_2(argv, shown, capsys):
    with pytest.raises(SystemExit) as caught:
        program(*argv)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert shown in err


def test_version_is_that_of_the_distribution(capsys):
    with pytest.raises(SystemExit) as caught:
        program("--version")
    assert caught.value.code == 0
    expected = f"drivetrain-core {version('drivetrain-core')}\n"
    assert capsys.readouterr() == (expected, "")


def test_version_is_not_looked_up_before_it_is_asked_for():
    parser = CommandParser(prog="program")
    add_version(parser, "no-such-distribution")
    assert parser.parse_args([]).parser is parser


# the values of options


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (integer(), "-3", -3),
        (integer(1, 4), "4", 4),
        (number(), "-2.5", -2.5),
        (number(0), "0", 0.0),
        (number(above=0), "1e-9", 1e-9),
        (number(0, can_be_inf=True), "inf", float("inf")),
    ],
)
def test_value_within_its_range_is_taken(kind, text, value):
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "because"),
    [
        (integer(), "2.5", "must be a whole number, got '2.5'"),
        (integer(1), "0", "must be at least 1, got 0"),
        (integer(None, 9), "10", "must be at most 9, got 10"),
        (integer(0, 65_535), "65536", "must be from 0 to 65,535, got 65536"),
        (number(), "much", "must be a number, got 'much'"),
        (number(), "nan", "must be a number, got 'nan'"),
        (number(), "-inf", "must be finite, got -inf"),
        (number(0, can_be_inf=True), "-inf", "must be at least 0, got -inf"),
        (number(0, 1), "1.5", "must be from 0 to 1, got 1.5"),
        (number(above=0), "0", "must be more than 0, got 0"),
    ],
)
def test_value_out_of_its_range_is_refused(kind, text, because):
    with pytest.raises(ArgumentTypeError) as caught:
        kind(text)
    assert str(caught.value) == because


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DrivetrainError("num_steps must be 1, got 0"), "--steps must be 1, got 0"),
        (DrivetrainError("a b must not be a num_steps"), "a b must not be a --steps"),
        (DrivetrainError("node must not be a node"), "--node must not be a node"),
        (PlanError(Code.CONFIG, "x", because="bad", fix="good"), "bad. Fix: good"),
        (PlanError(Code.CONFIG, "x", because="bad"), "bad"),
        (UsageError("num_steps is as it is"), "num_steps is as it is"),
    ],
)
def test_what_a_block_refuses_names_the_options(error, message):
    parser = CommandParser(prog="program")
    parser.add_argument("-n", "--node")
    arguments = parser.parse_args([])
    with (
        pytest.raises(UsageError) as caught,
        as_wrong_use(arguments, num_steps="--steps"),
    ):
        raise error
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("message", "said"),
    [("no such name", "--mesh: no such name"), ("--mesh is none", "--mesh is none")],
)
def test_option_is_named_where_the_message_does_not(message, said):
    with pytest.raises(UsageError) as caught, as_wrong_use(Namespace(), "--mesh"):
        raise DrivetrainError(message)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "error", [OSError("full"), CheckpointError("gone"), MissingLibraryError("pip")]
)
def test_other_errors_of_a_block_are_not_wrong_use(error):
    with pytest.raises(type(error)) as caught, as_wrong_use(Namespace()):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_errors_and_no_files_take_their_place(
    tmp_path, closed
):
    code = """
import os, subprocess, sys
from argparse import Namespace
from drivetrain_core import DrivetrainError
from drivetrain_core.commands import run_command

def run(arguments):
    print("a line")
    with open("opened", "w") as file:
        assert file.fileno() > 2
    subprocess.run([sys.executable, "-c", "print(1)"], check=True)
    if arguments.fails:
        raise DrivetrainError("as expected")
    return 0

assert run_command("program", run, Namespace(fails=True)) == 1
sys.exit(run_command("program", run, Namespace(fails=False)))
"""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code],
        check=False,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


ROWS = """
description = "What it does."

[[option]]
names = ["--size"]
group = "the job"
exclusive = "size"
integer = { least = 1, most = 9 }
default = 2

[[option]]
names = ["--cluster"]
group = "the job"
exclusive = "size"

[[option]]
names = ["--share"]
number = { above = 0 }
variable = "SHARE"
default = "0.5"

[[option]]
names = ["--mode"]
group = "the job"
kind = "mode"
"""


def parser_of_rows(tmp_path, **kinds):
    parser = CommandParser(prog="program")
    file = tmp_path / "options.toml"
    file.write_text(ROWS)
    add_options(parser, file, **kinds)
    return parser


def test_options_of_a_file_are_those_of_the_parser(tmp_path, monkeypatch):
    found = parser_of_rows(tmp_path, mode=str.upper).parse_args(["--mode", "fast"])
    assert (found.size, found.cluster, found.share, found.mode) == (
        2,
        None,
        0.5,
        "FAST",
    )
    monkeypatch.setenv("SHARE", "0.25")
    parser = parser_of_rows(tmp_path, mode=str)
    assert parser.parse_args(["--cluster", "x"]).share == 0.25
    assert "What it does." in parser.format_help()
    assert parser.format_help().count("the job:") == 1


@pytest.mark.parametrize(
    ("argv", "because"),
    [
        (["--size", "10"], "must be from 1 to 9"),
        (["--share", "0"], "must be more than 0"),
        (["--size", "3", "--cluster", "x"], "not allowed with"),
    ],
)
def test_options_of_a_file_refuse_what_they_do_not_take(
    tmp_path, capsys, argv, because
):
    with pytest.raises(SystemExit):
        parser_of_rows(tmp_path, mode=str).parse_args(argv)
    assert because in capsys.readouterr().err


def test_row_of_a_kind_that_nobody_gives_is_an_error(tmp_path):
    with pytest.raises(KeyError, match="mode"):
        parser_of_rows(tmp_path)
