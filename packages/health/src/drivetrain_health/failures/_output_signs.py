"""Which lines of an output may say why a process has ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LINES = {
    name: re.compile("|".join(ones), re.IGNORECASE)
    for name, ones in RULES["lines"].items()
}
_PASSING, _WARNING, _CODE, _PROGRESS, _NO_STEP = _LINES.values()


def telling_lines(lines: Iterable[str], *, warnings: bool = False) -> list[str]:
    """Returns the lines that may say why a process has ended.

    Args:
        lines: All that it wrote.
        warnings: Whether warnings may, too: where nothing else does.

    Example:
        >>> telling_lines(["WARNING: Connection reset", "Bus error, retrying", "Abort"])
        ['Abort']
    """
    return [
        line
        for line in lines
        if not (_PASSING.search(line) or _CODE.match(line))
        and (warnings or not _WARNING.search(line))
    ]


def line_of_progress(lines: Sequence[str]) -> int:
    """Returns up to which line training has gone on: what stands before was survived.

    Two steps of different numbers come after it: when one rank has failed, others may end
    the step that they are in.

    Args:
        lines: All that was written.

    Example:
        >>> line_of_progress(["EOFError", "step 7 loss 2.1", "step 8 loss 2.0", "end"])
        1
    """
    last: dict[str, float] = {}
    for at in range(len(lines) - 1, -1, -1):
        is_step = not _NO_STEP.search(lines[at])
        for kind, number, count in _PROGRESS.findall(lines[at]) if is_step else ():
            later, last[kind] = last.get(kind, 0.0), float(number or count)
            if last[kind] < later:
                return at
    return 0
