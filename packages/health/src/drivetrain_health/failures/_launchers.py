"""What launchers say of the worker that failed first: its exit code, or its signal."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import RULES, shortened
from drivetrain_health.failures._exit_codes import clue_of_exit_code, signal_of
from drivetrain_health.failures._output_signs import telling_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_health.failures._clue import Clue

# torchrun names the others before it.
_FIRST = "Root Cause (first observed failure):"
_CODE, _SIGNAL = (re.compile(one, re.IGNORECASE) for one in RULES["launchers"].values())


def clue_of_launcher(lines: Sequence[str]) -> Clue | None:
    """Returns what a launcher says of the first failure: one that is no echo, if it can.

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
    clues: list[Clue] = []
    begins = [at for at, line in enumerate(lines) if line.strip().endswith(_FIRST)]
    last = lines[begins[-1] :] if begins else ()
    for line in (*telling_lines(last), *telling_lines(lines)):
        codes = [int(one[1] or one[2]) for one in _CODE.finditer(line)]
        for name, number in _SIGNAL.findall(line):
            codes.append(-int(number or getattr(signal, name.upper(), 0)))
        clues += [
            clue._replace(reason=f"{clue.reason}: {shortened(line)}")
            for clue in (clue_of_exit_code(code) for code in codes if signal_of(code))
        ]
    return next((one for one in clues if not one.is_echo), next(iter(clues), None))
