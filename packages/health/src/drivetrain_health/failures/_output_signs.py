"""Which lines of an output may say why a process has ended."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# What a program tells of and survives; NCCL says "INFO" and "WARN" of all that it says.
_PASSING = re.compile(
    r"^.{0,60}?\b(?:info|debug)\b(?!=|: task )"
    r"|thrown while requesting|failed to sample|\[w\S* socket\.cpp.{0,40}client socket|entering retry|retry succeeded|reconnected"
    r"|\b(?:retrying|trying the next|(?:skipp|ignor)(?:ed|ing):? (?:a|the|this|\d+|bad|"
    r"broken|corrupt\w*|damaged|batch|file|image|line|record|sample|shard)\b)",
    re.IGNORECASE,
)
# A warning of Kubernetes has its reason behind it, in one word.
_WARNING = re.compile(
    r"^.{0,60}?\b\w*warning\b(?!=|\s+(?-i:[A-Z][a-z]+[A-Z])|\s{2,}(?-i:[A-Z]))"
    r"|^(?:\[[^\]]{1,20}\]:)?\[?(?-i:W)\d{0,4} ",
    re.IGNORECASE,
)
# Lines of code in a traceback, which may name any error; the fields of records do not.
_CODE = re.compile(
    r"^(?:\[[^\]]{1,60}\]:? ?)? {4}(?! *\W?(?:reason|message|error|status)\W{1,3}\s)",
    re.IGNORECASE,
)
_PROGRESS = re.compile(
    r"\b(step|epoch|iter(?:ation)?s?|batch|it)\b[\"']?[ :=]{1,3}(\d+(?:\.\d+)?)"
    r"|\s(\d+)/\d+ \[\d",
    re.IGNORECASE,
)
_FEW = 2


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
    seen = defaultdict(set)
    for at in range(len(lines) - 1, -1, -1):
        for kind, number, count in _PROGRESS.findall(lines[at]):
            seen[kind.lower()].add(number or count)
            if len(seen[kind.lower()]) == _FEW:
                return at
    return 0
