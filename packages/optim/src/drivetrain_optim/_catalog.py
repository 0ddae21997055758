"""What there is to know about each optimizer without importing it."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_optim.checks._options import AGD_OPTIONS, LAMB_OPTIONS, WSAM_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_optim.checks._options import Rule


class Description(NamedTuple):
    """One optimizer, described.

    Args:
        line: What it does, in one line.
        paths: The ways it can run.
        equations: One step, as in the class's docstring.
        symbols: What the equations' symbols are.
        paper: Where the equations come from.
        options: Its options.
    """

    line: str
    paths: Sequence[str]
    equations: Sequence[str]
    symbols: str
    paper: str
    options: Mapping[str, Rule]


_OPTIONS = {"agd": AGD_OPTIONS, "lamb": LAMB_OPTIONS, "wsam": WSAM_OPTIONS}
_PLAIN = tomllib.loads(files(__package__).joinpath("catalog.toml").read_text("utf-8"))

OPTIMIZERS: Mapping[str, Description] = {
    name: Description(**_PLAIN[name], options=options)
    for name, options in _OPTIONS.items()
}
"""The optimizers of this package by name."""
