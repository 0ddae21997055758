"""What an exception says: an error of the program, or of what it relies on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import Clue, clean_lines, find_sign, shortened
from drivetrain_health.failures._failure_class import FailureClass
from drivetrain_health.failures._output_signs import OUTPUT_SIGNS
from drivetrain_health.failures._tracebacks import find_place, headlines

if TYPE_CHECKING:
    from drivetrain_health.failures._evidence import ErrorRecord

# Only a program raises these, whatever their message says.
_PROGRAM_TYPES = frozenset({
    "ArithmeticError", "AssertionError", "AttributeError", "EOFError",
    "FileExistsError", "FileNotFoundError", "FloatingPointError", "ImportError",
    "IndentationError", "IndexError", "IsADirectoryError", "KeyError", "LookupError",
    "ModuleNotFoundError", "NameError", "NotADirectoryError", "NotImplementedError",
    "OverflowError", "PermissionError", "RecursionError", "StopIteration",
    "SyntaxError", "TypeError", "UnboundLocalError", "UnicodeDecodeError",
    "UnicodeEncodeError", "ValueError", "ZeroDivisionError",
})  # fmt: skip
# What these say is decided by their type alone, if nothing in their message is known.
_TYPES = {
    "KeyboardInterrupt": Clue(FailureClass.KILLED, "interrupted", ""),
    # torchrun raises it when it is told to end.
    "SignalException": Clue(FailureClass.KILLED, "sigterm", "", is_echo=True),
    "MemoryError": Clue(FailureClass.OUT_OF_MEMORY, "out-of-memory-host", ""),
    # What no sign explains may be the program's or the device's: it is tried again.
    "AcceleratorError": Clue(FailureClass.CRASH, "accelerator-error", ""),
    "OutOfMemoryError": Clue(FailureClass.OUT_OF_MEMORY, "out-of-memory-cuda", ""),
    **dict.fromkeys(
        (
            "BrokenPipeError",
            "ConnectionAbortedError",
            "ConnectionError",
            "ConnectionRefusedError",
            "ConnectionResetError",
        ),
        Clue(FailureClass.INTERCONNECT, "connection-lost", "", False, True),
    ),
    "TimeoutError": Clue(FailureClass.INTERCONNECT, "timeout", "", False, True),
    "DistBackendError": Clue(FailureClass.INTERCONNECT, "nccl-error", "", False, True),
    "DistNetworkError": Clue(FailureClass.RENDEZVOUS, "store-timeout", "", False, True),
    "DistStoreError": Clue(FailureClass.RENDEZVOUS, "store-timeout", "", False, True),
    "DistributedError": Clue(
        FailureClass.INTERCONNECT, "broken-world", "", False, True
    ),
}
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_MOST_CAUSE = 60


def clue_of_error(error: ErrorRecord) -> Clue:
    """Returns what the exception says that has ended a worker.

    What it says and what those say that have caused it count alike. What nothing else
    explains is an error of the program.

    Args:
        error: The exception.

    Example:
        >>> from drivetrain_health.failures import ErrorRecord
        >>> clue_of_error(ErrorRecord("ValueError", "shapes do not match")).cause
        'value-error'
        >>> clue_of_error(ErrorRecord("OSError", "[Errno 28] No space left on device")).cause
        'disk-full'
    """
    name = error.type.rpartition(".")[2]
    place = find_place(error.traceback)
    said = shortened(f"{error.type}: {error.message}".rstrip(": "))
    known = None
    if name not in _PROGRAM_TYPES:
        # A program may raise an error because of another one: that is the cause.
        lines = [line for text in headlines(error) for line in clean_lines(text)]
        known = find_sign(lines, OUTPUT_SIGNS) or _TYPES.get(name)
    if known is None:
        cause = _WORDS.sub("-", name).strip("-").lower()[:_MOST_CAUSE] or "error"
        return Clue(FailureClass.PROGRAM, cause, said, False, place=place)
    return known._replace(reason=known.reason.rstrip(": ") or said, place=place)
