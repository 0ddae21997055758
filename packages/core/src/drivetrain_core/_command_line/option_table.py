"""Options of commands, which files of TOML list in the order of their help."""

from __future__ import annotations

import os
import tomllib
from typing import TYPE_CHECKING, Any

from drivetrain_core._command_line.option_values import integer, number

if TYPE_CHECKING:
    import argparse
    from importlib.resources.abc import Traversable


def add_options(
    parser: argparse.ArgumentParser, file: Traversable, **kinds: Any
) -> None:
    """Adds the options of a file to a parser.

    A row has what argparse's `add_argument` takes, and besides: `names`; `integer` or
    `number`, the arguments of that function; `kind`, one of those given here; `variable`,
    of the environment, with the default; `group`, the title of those it stands with;
    `exclusive`, of which only one may be given. Above the rows there may be a `description`.

    Args:
        parser: Of a command.
        file: As `importlib.resources.files` gives it.
        **kinds: Types of options that only this command has.

    Example:
        >>> import argparse, pathlib, tempfile
        >>> parser = argparse.ArgumentParser()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "options.toml")
        ...     row = 'names = ["--nodes"], integer = { least = 1 }'
        ...     _ = file.write_text(f"option = [ {{ {row} }} ]")
        ...     add_options(parser, file)
        >>> parser.parse_args(["--nodes", "2"])
        Namespace(nodes=2)
    """
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    parser.description = table.get("description", parser.description)
    places: dict[Any, Any] = {("", ""): parser}
    for row in table["option"]:
        place = row.pop("group", ""), row.pop("exclusive", "")
        group = place[0], ""
        if group not in places:
            places[group] = parser.add_argument_group(group[0])
        if place not in places:
            places[place] = places[group].add_mutually_exclusive_group()
        for name, make in (("integer", integer), ("number", number)):
            if name in row:
                row["type"] = make(**row.pop(name))
        if "kind" in row:
            row["type"] = kinds[row.pop("kind")]
        if "variable" in row:
            row["default"] = os.environ.get(row.pop("variable"), row["default"])
        places[place].add_argument(*row.pop("names"), **row)
