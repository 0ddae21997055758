"""Signs of failures in the lines that training programs write, the strongest first.

The table is `output_signs.toml`, beside this file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import read_signs

if TYPE_CHECKING:
    from collections.abc import Iterable

# What a program tells of and survives; NCCL says "INFO" and "WARN" of all that it says.
_PASSING = re.compile(
    r"^.{0,60}?\b(?:\w*warning|info|debug)\b(?!=)|\bretrying\b", re.IGNORECASE
)
# Lines of code in a traceback, which may name any error.
_CODE = re.compile(r"^(?:\[[^\]]{1,60}\]:? ?)? {4}")


OUTPUT_SIGNS = read_signs("output_signs.toml", "sign")
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
