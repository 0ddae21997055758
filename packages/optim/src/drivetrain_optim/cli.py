"""The command `drivetrain-optim`, also `drivetrain optim`."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from typing import TYPE_CHECKING

from drivetrain_core.commands import run_program
from drivetrain_core.tables import aligned
from drivetrain_optim._catalog import OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_optim._catalog import Description


def populate_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the commands of this package to a parser.

    Each sets `run`, a function from the parsed arguments to the exit status.

    Args:
        parser: The parser, empty or a sub-parser of another command.
    """
    commands = parser.add_subparsers(metavar="COMMAND")
    listing = commands.add_parser(
        "list", help="list the optimizers and where they run", allow_abbrev=False
    )
    listing.set_defaults(run=_list)
    explain = commands.add_parser(
        "explain", help="show an optimizer's equations and options", allow_abbrev=False
    )
    explain.add_argument(
        "name", metavar="NAME", type=_name, help="an optimizer, such as agd"
    )
    explain.set_defaults(run=_explain)
    for command in (listing, explain):
        command.add_argument(
            "--json", action="store_true", help="print JSON, for other programs"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    Args:
        argv: The arguments; None for those of the process.

    Example:
        >>> main(["list"])
        NAME  RUNS ON                                    WHAT IT DOES
        agd   loop, foreach, native, triton, capturable  Switches each ...
        lamb  loop, foreach, native, triton, capturable  Scales Adam's ...
        wsam  the base optimizer's                       Minimizes the loss ...
        0
    """
    return run_program(
        "drivetrain-optim", populate_parser, argv, description="Optimizers."
    )


def _name(text: str) -> str:
    """Returns the name of an optimizer."""
    name = text.lower()
    if name not in OPTIMIZERS:
        near = difflib.get_close_matches(name, OPTIMIZERS) or list(OPTIMIZERS)
        message = f"there is no optimizer {text!r}; nearest: {', '.join(near)}"
        raise argparse.ArgumentTypeError(message)
    return name


def _list(args: argparse.Namespace) -> int:
    if args.json:
        entries = {
            name: {"line": one.line, "paths": one.paths}
            for name, one in OPTIMIZERS.items()
        }
        print(json.dumps(entries, indent=2))
        return 0
    rows = [("NAME", "RUNS ON", "WHAT IT DOES")]
    rows += [(name, ", ".join(e.paths), e.line) for name, e in OPTIMIZERS.items()]
    print("\n".join(aligned(rows)))
    return 0


def _explain(args: argparse.Namespace) -> int:
    name = args.name
    one = OPTIMIZERS[name]
    print(json.dumps(_as_json(name, one), indent=2) if args.json else _page(name, one))
    return 0


def _as_json(name: str, one: Description) -> dict[str, object]:
    shown = ("default", "allowed", "meaning")
    options = {
        option: {field: getattr(rule, field) for field in shown}
        for option, rule in one.options.items()
    }
    return {"name": name, **one._asdict(), "options": options}


def _page(name: str, one: Description) -> str:
    rows = [("OPTION", "DEFAULT", "ALLOWED", "MEANING")]
    rows += [
        (option, str(rule.default), rule.allowed, rule.meaning)
        for option, rule in one.options.items()
    ]
    parts = [
        f"{name}: {one.line}",
        "\n".join(f"    {equation}" for equation in one.equations),
        one.symbols,
        one.paper,
        f"Runs on: {', '.join(one.paths)}",
        "\n".join(aligned(rows)),
    ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
