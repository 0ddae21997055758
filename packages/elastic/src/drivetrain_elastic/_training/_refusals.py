"""Refusals of training programs, which `refusals.toml` words."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import NoReturn

from drivetrain_core import ProgramError

_TEXTS = tomllib.loads(files(__package__).joinpath("refusals.toml").read_text("utf-8"))


def refuse(name: str, /, **values: object) -> NoReturn:
    """Refuses a program.

    Args:
        name: Of the text that says why.
        **values: What stands in its braces.

    Raises:
        ProgramError: Always.

    Example:
        >>> refuse("twice", number=3)
        Traceback (most recent call last):
          ...
        drivetrain_core._errors.ProgramError: the parts of step 3 were all computed before
    """
    raise ProgramError(_TEXTS[name].format(**values))
