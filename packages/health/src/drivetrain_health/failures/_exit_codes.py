"""What an exit code says, for whoever has nothing better."""

from __future__ import annotations

import signal
import tomllib
from importlib.resources import files

from drivetrain_health.failures._clue import Clue
from drivetrain_health.failures._failure_class import FailureClass

_ROWS = tomllib.loads(files(__package__).joinpath("exit_codes.toml").read_text())
_SIGNALS = {signal.Signals[name]: row for name, row in _ROWS["signals"].items()}
_SHELL_SIGNAL = 128
# `sys.exit(-9)`: what a launcher ends with that passes on what it has seen of a worker.
_BYTE, _PASSED_ON = 256, (4, 6, 7, 8, 9, 11, 15)


def signal_of(exit_code: int | None) -> int:
    """Returns the signal that has ended a process, 0 for none.

    Args:
        exit_code: As `subprocess` gives it, or as a shell does: 137 for signal 9; or as a
            launcher does that ends with -9, which is 247.

    Example:
        >>> signal_of(-9), signal_of(137), signal_of(247), signal_of(1), signal_of(None)
        (9, 9, 9, 0, 0)
    """
    if exit_code is None:
        return 0
    if exit_code < 0:
        return -exit_code
    if _BYTE - exit_code in _PASSED_ON:
        return _BYTE - exit_code
    number = exit_code - _SHELL_SIGNAL
    return number if number in {int(one) for one in _SIGNALS} else 0


def clue_of_exit_code(exit_code: int | None) -> Clue:
    """Returns what an exit code says.

    Example:
        >>> clue_of_exit_code(-11).cause, clue_of_exit_code(139).cause
        ('segfault', 'segfault')
    """
    if exit_code is None:
        return Clue(FailureClass.UNKNOWN, "no-failure", "it lives", False, True)
    ended = f"it ended with exit code {exit_code}"
    if exit_code == 0:
        return Clue(FailureClass.UNKNOWN, "no-failure", ended, False, True)
    number = signal_of(exit_code)
    if number in _SIGNALS:
        failure_class, cause = _SIGNALS[signal.Signals(number)]
        # A launcher ends the others like this when one has failed.
        is_echo = number in (signal.SIGTERM, signal.SIGHUP)
        reason = f"it was ended by {signal.Signals(number).name}"
        return Clue(FailureClass(failure_class), cause, reason, is_echo=is_echo)
    if number:
        reason = f"it was ended by signal {number}"
        return Clue(FailureClass.KILLED, f"signal-{number}", reason)
    if row := _ROWS["shell"].get(str(exit_code)):
        return Clue(FailureClass(row[0]), row[1], ended, False)
    reason = f"{ended} and said nothing that is known"
    return Clue(FailureClass.UNKNOWN, f"exit-{exit_code}", reason)
