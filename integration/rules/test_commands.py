"""All commands treat their users alike: what every option of every one must do."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator

import pytest

from drivetrain_core.cli import populate_parser
from drivetrain_core.commands import CommandParser


def actions(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[argparse.ArgumentParser, argparse.Action]]:
    """Yields what all commands below a parser take, each with its own parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in dict.fromkeys(action.choices.values()):
                yield from actions(inner)
        else:
            yield parser, action


@pytest.fixture(scope="module")
def parser() -> CommandParser:
    """Returns the parser of `drivetrain`, with the commands of all packages."""
    found = CommandParser(prog="drivetrain")
    populate_parser(found)
    return found


def test_numbers_of_all_commands_have_a_range(parser):
    # `int` and `float` take what makes no sense, such as NaN and a negative count.
    bare = [
        f"{command.prog} {action.option_strings or action.dest}"
        for command, action in actions(parser)
        if action.type in {int, float} and not action.choices
    ]
    assert bare == []


def test_no_option_of_any_command_takes_nan(parser):
    takes = []
    for command, action in actions(parser):
        if action.type is None or getattr(action.type, "__module__", "") != (
            "drivetrain_core._command_line.option_values"
        ):
            continue
        try:
            action.type("nan")
        except argparse.ArgumentTypeError:
            continue
        takes.append(f"{command.prog} {action.option_strings}")
    assert takes == []


def test_every_option_that_is_offered_by_default_is_taken(parser):
    for command, action in actions(parser):
        if isinstance(action.default, str) and callable(action.type):
            assert command._get_value(action, action.default) is not None


def test_every_command_says_what_it_is_for(parser):
    silent = [
        f"{command.prog} {name}"
        for command, group in groups(parser)
        for name in group.choices
        if not any(one.dest == name and one.help for one in group._choices_actions)
    ]
    assert silent == []


def groups(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[argparse.ArgumentParser, argparse._SubParsersAction]]:
    """Yields the groups of sub-commands, each with its parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield parser, action
            for inner in dict.fromkeys(action.choices.values()):
                yield from groups(inner)


def test_every_command_is_run_as_the_others_are(package, capsys):
    scripts = package.project.get("scripts", {})
    for script, target in scripts.items():
        module, _, function = target.partition(":")
        main = getattr(importlib.import_module(module), function)
        for argv, status in (["--version"], 0), ([], 2), (["--nosuch"], 2):
            with pytest.raises(SystemExit) as left:
                main(argv)
            assert (script, argv, left.value.code) == (script, argv, status)
        out, err = capsys.readouterr()
        assert re.search(rf"^{package.project['name']} \d+\.\d+", out, re.MULTILINE)
        assert f"usage: {script} " in err
