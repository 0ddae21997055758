"""The command `drivetrain`, and the mount point of other packages' commands."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from drivetrain_core import _elsewhere
from drivetrain_core._command_line.parser import ForwardParser
from drivetrain_core._errors import PluginError
from drivetrain_core._plugins import COMMANDS, installed, load_plugin, versions
from drivetrain_core.commands import add_commands, add_version, run_program

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds core's commands, and those of the packages that are installed."""
    commands = add_commands(parser, files(__package__) / "commands.toml")
    _mount(commands)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code.

    Wrong use is the exit code 2. An expected failure is one line on standard error and the
    exit code 1.
    """
    return run_program(
        "drivetrain",
        populate_parser,
        argv,
        description="Makes PyTorch training fast and hard to kill.",
        versions=lambda: "\n".join(versions()),
    )


def _mount(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plugins = installed(COMMANDS)
    # A name that is taken, or wanted twice, is written with its distribution.
    taken = Counter([*commands.choices, *(plugin.name for plugin in plugins)])
    for plugin in plugins:
        name = plugin.name if taken[plugin.name] == 1 else plugin.qualified_name
        try:
            populate: Any = load_plugin(COMMANDS, plugin.qualified_name)
        except PluginError as error:
            parser = commands.add_parser(name, help="does not load", allow_abbrev=False)
            parser.set_defaults(run=_failing(str(error)))
            continue
        summary = f"commands of {plugin.distribution}"
        parser = commands.add_parser(name, help=summary, allow_abbrev=False)
        try:
            populate(parser)
            if parser.description:
                text = parser.description.replace("%", "%%")
                commands._choices_actions[-1].help = text
            if "--version" not in parser.format_usage():
                add_version(parser, plugin.distribution)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            # A package of others may fail in any way, and must not take the rest along.
            broken = f"the command {name!r} of {plugin} cannot be made: {error!r}"
            parser.set_defaults(run=_failing(broken))
    for word, package in _elsewhere.COMMANDS.items():
        if word not in commands.choices:
            message = f"{word} needs another package: pip install {package}"
            refuse = _failing(message)
            commands.choices[word] = ForwardParser(
                prog=f"drivetrain {word}", forward=refuse
            )


def _failing(message: str) -> Callable[[object], int]:
    def run(_: object) -> int:
        raise PluginError(message)

    return run


if __name__ == "__main__":
    sys.exit(main())
