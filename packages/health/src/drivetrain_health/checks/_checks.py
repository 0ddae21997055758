"""The checks that there are, and where each of them is."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import NamedTuple


class Check(NamedTuple):
    """One check of a node.

    Attributes:
        home: The module of this package whose `measure` makes it.
        says: What it measures, for people.
        is_paired: Whether it takes other nodes.
        uses_gpu: Whether it is skipped without a GPU; one that uses it has no limit of its
            memory, since drivers reserve far more than they take.
        patience: How many times the limit of a check it may take, since it goes over many
            paths; each of them has a limit of its own.
    """

    home: str
    says: str
    is_paired: bool = False
    uses_gpu: bool = False
    patience: int = 1


_ROWS = tomllib.loads(files(__package__).joinpath("checks.toml").read_text("utf-8"))
CHECKS = {name: Check(home=f"_{name}", **row) for name, row in _ROWS.items()}
"""All checks by their names, in the order in which they are made."""
