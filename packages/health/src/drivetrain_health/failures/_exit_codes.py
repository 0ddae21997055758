"""What an exit code says, for whoever has nothing better."""

from __future__ import annotations

import signal

from drivetrain_health.failures._clue import Clue
from drivetrain_health.failures._failure_class import FailureClass

_CRASH, _KILLED = FailureClass.CRASH, FailureClass.KILLED
_SIGNALS = {
    signal.SIGSEGV: (_CRASH, "segfault"),
    signal.SIGABRT: (_CRASH, "abort"),
    signal.SIGBUS: (_CRASH, "bus-error"),
    signal.SIGILL: (_CRASH, "illegal-instruction"),
    signal.SIGFPE: (_CRASH, "arithmetic-fault"),
    signal.SIGTRAP: (_CRASH, "trap"),
    signal.SIGSYS: (_CRASH, "forbidden-call"),
    signal.SIGKILL: (_KILLED, "sigkill"),
    signal.SIGTERM: (_KILLED, "sigterm"),
    signal.SIGINT: (_KILLED, "interrupted"),
    signal.SIGHUP: (_KILLED, "sighup"),
    signal.SIGXCPU: (_KILLED, "cpu-limit"),
    signal.SIGXFSZ: (FailureClass.STORAGE, "file-size-limit"),
}
# A shell says that it did not find, or could not run, what it was told to.
_SHELL = {126: "not-executable", 127: "command-not-found"}
_SHELL_SIGNAL = 128


def signal_of(exit_code: int | None) -> int:
    """Returns the signal that has ended a process, 0 for none.

    Args:
        exit_code: As `subprocess` gives it, or as a shell does: 137 for signal 9.

    Example:
        >>> signal_of(-9), signal_of(137), signal_of(1), signal_of(None)
        (9, 9, 0, 0)
    """
    if exit_code is None:
        return 0
    if exit_code < 0:
        return -exit_code
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
    if exit_code == 0:
        reason = "it ended with exit code 0"
        return Clue(FailureClass.UNKNOWN, "no-failure", reason, False, True)
    number = signal_of(exit_code)
    if number in _SIGNALS:
        failure_class, cause = _SIGNALS[signal.Signals(number)]
        # A launcher ends the others like this when one has failed.
        is_echo = number in (signal.SIGTERM, signal.SIGHUP)
        reason = f"it was ended by {signal.Signals(number).name}"
        return Clue(failure_class, cause, reason, is_echo=is_echo)
    if number:
        reason = f"it was ended by signal {number}"
        return Clue(_KILLED, f"signal-{number}", reason)
    if exit_code in _SHELL:
        reason = f"it ended with exit code {exit_code}"
        return Clue(FailureClass.PROGRAM, _SHELL[exit_code], reason, False)
    reason = f"it ended with exit code {exit_code} and said nothing that is known"
    return Clue(FailureClass.UNKNOWN, f"exit-{exit_code}", reason)
