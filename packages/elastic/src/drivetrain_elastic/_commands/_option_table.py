"""Options of commands, which files of TOML list in the order of their help.

A row has what argparse's `add_argument` takes, and besides: `names`; `kind`, for its type;
`variable`, of the environment, with the default.
Above the rows there may be a `description` of the command.
"""

from __future__ import annotations

import os
import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from drivetrain_core.commands import integer, number
from drivetrain_elastic._commands._address_options import address, addresses

if TYPE_CHECKING:
    import argparse

_KINDS: dict[str, Any] = {
    "positive": integer(1),
    "count": integer(0),
    "number": number(),
    "address": address,
    "addresses": addresses,
    "seconds": number(0.0, can_be_inf=True),
    "seconds from 0.2": number(0.2, can_be_inf=True),
    "seconds from 0.01": number(0.01, can_be_inf=True),
}


def add_options(parser: argparse.ArgumentParser, file: str, **kinds: Any) -> None:
    """Adds the options of a file to a parser.

    Args:
        parser: Of a command.
        file: Its name.
        **kinds: Types that only this command has.
    """
    table = tomllib.loads(files(__package__).joinpath(file).read_text("utf-8"))
    parser.description = table.get("description", parser.description)
    for row in table["option"]:
        if "kind" in row:
            row["type"] = {**_KINDS, **kinds}[row.pop("kind")]
        if "variable" in row:
            row["default"] = os.environ.get(row.pop("variable"), row["default"])
        parser.add_argument(*row.pop("names"), **row)
