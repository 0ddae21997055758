"""Signs of failures in the lines that training programs write, the strongest first.

The table is `output_signs.toml`, beside this file.
"""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import Sign
from drivetrain_health.failures._failure_class import FailureClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# What a program tells of and survives; NCCL says "INFO" and "WARN" of all that it says.
_PASSING = re.compile(
    r"^.{0,60}?\b(?:\w*warning|info|debug)\b(?!=)|\bretrying\b", re.IGNORECASE
)
# Lines of code in a traceback, which may name any error.
_CODE = re.compile(r"^(?:\[[^\]]{1,60}\]:? ?)? {4}")


def _read_signs() -> Iterator[Sign]:
    text = files(__package__).joinpath("output_signs.toml").read_text()
    for row in tomllib.loads(text)["sign"]:
        is_echo = row.get("is_echo", False)
        blames_node = row.get("blames_node", not is_echo)
        failure_class = FailureClass(row["class"])
        for pattern in row["patterns"]:
            yield Sign(pattern, failure_class, row["cause"], blames_node, is_echo)


OUTPUT_SIGNS = tuple(_read_signs())
"""What each line means."""


def telling_lines(lines: Iterable[str]) -> list[str]:
    """Returns the lines that may say why a process has ended.

    Args:
        lines: All that it wrote.

    Example:
        >>> telling_lines(["WARNING: Connection reset, retrying", "Bus error"])
        ['Bus error']
    """
    return [line for line in lines if not (_PASSING.search(line) or _CODE.match(line))]
