"""What launchers say of the worker that failed first: its exit code, or its signal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import shortened
from drivetrain_health.failures._exit_codes import clue_of_exit_code, signal_of
from drivetrain_health.failures._output_signs import telling_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_health.failures._clue import Clue

# torchrun names the others before it.
_FIRST = "Root Cause (first observed failure):"
_CODE = re.compile(
    r"\bexit(?:s|ed)?[ _]?(?:with )?(?:non-zero )?(?:exit |return )?(?:code|status)"
    r"[^\w\n-]{0,14}(-?\d{1,3})\b|\b(?:return(?:ed)?|terminated|died|failed|finished)\b"
    r".{0,40}?\b(?:code|status)[^\w\n-]{0,5}(-?\d{1,3})\b",
    re.IGNORECASE,
)
_SIGNAL = re.compile(
    r"\bsignals?\b[^\w\n]{0,3}(?:sig\w+[^\w\n]{1,3})?(\d{1,2})\b", re.IGNORECASE
)


def clue_of_launcher(lines: Sequence[str]) -> Clue | None:
    """Returns what a launcher says of the first failure; None if that is only an echo.

    An exit code that tells of no signal is what any exception ends with, so that it says
    nothing of its own.

    Args:
        lines: As `clean_lines` returns them.

    Example:
        >>> clue_of_launcher(["x] failed (exitcode: -11) local_rank: 1 (pid: 7) of binary: py"])
        Clue(failure_class=<FailureClass.CRASH: 'crash'>, cause='segfault', \
reason='it was ended by SIGSEGV: x] failed (exitcode: -11) local_rank: 1 (pid: 7) of \
binary: py', blames_node=True, is_echo=False, place='')
    """
    begins = [at for at, line in enumerate(lines) if line.strip().endswith(_FIRST)]
    last = lines[begins[-1] :] if begins else ()
    for line in (*telling_lines(last), *telling_lines(lines)):
        code = _CODE.search(line)
        number = _SIGNAL.search(line)
        if code is None and number is None:
            continue
        value = int(code[1] or code[2]) if code else -int(number[1])  # type: ignore[index]
        clue = clue_of_exit_code(value)
        if signal_of(value) and not clue.is_echo:
            return clue._replace(reason=f"{clue.reason}: {shortened(line)}")
    return None
