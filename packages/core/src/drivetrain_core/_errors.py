"""The exceptions of Drivetrain.

Every error inherits `DrivetrainError` and the nearest built-in, so that a caller may
catch all of them at once or treat one like the error that Python itself would raise:

    DrivetrainError
     |- PlanError (ValueError)              an optimization or a plan cannot be used
     |   `- PlanFormatError                 a plan file cannot be read
     |- PluginError (ImportError)           an entry point does not load or misbehaves
     |- MissingLibraryError (ImportError)   an optional library is not installed
     |- ClusterSpecError (ValueError)       a cluster description is not valid
     |- ProgramError (ValueError)           the user's model, data or loss is not usable
     |   `- DataExhaustedError              the data ended before the work was done
     |- NamesError (LookupError)            a canonical name is missing or doubled
     |- CheckpointError (OSError)           a checkpoint is missing, damaged or no fit
     |- DeviceError (RuntimeError)          there is no such device
     |- DistributedError (RuntimeError)     ranks disagree, or no process group stands
     |- SearchError (RuntimeError)          the search could not measure the baseline
     `- UsageError (ValueError)             a command was called in a wrong way
"""

from __future__ import annotations

import copyreg
import re
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Code(StrEnum):
    """Why an optimization or a plan was turned down, as one word.

    Example:
        >>> Code.NOT_DIVISIBLE
        <Code.NOT_DIVISIBLE: 'NOT_DIVISIBLE'>
    """

    ALGORITHM = "ALGORITHM"
    BUDGET = "BUDGET"
    CONFIG = "CONFIG"
    CONFLICT = "CONFLICT"
    CRASH = "CRASH"
    ERROR = "ERROR"
    FINGERPRINT = "FINGERPRINT"
    FORMAT = "FORMAT"
    GRAPH_BREAK = "GRAPH_BREAK"
    HANG = "HANG"
    MEMORY = "MEMORY"
    NEEDS_DEVICE = "NEEDS_DEVICE"
    NEEDS_LIBRARY = "NEEDS_LIBRARY"
    NEEDS_WORLD = "NEEDS_WORLD"
    NOT_APPLICABLE = "NOT_APPLICABLE"
    NOT_DIVISIBLE = "NOT_DIVISIBLE"
    NUMERICS = "NUMERICS"
    ORDER = "ORDER"
    PLUGIN = "PLUGIN"
    REQUIRES = "REQUIRES"
    SLOWER = "SLOWER"
    STEP_NOT_OWNED = "STEP_NOT_OWNED"
    TIED_PARAMS = "TIED_PARAMS"
    UNEVEN_MICROBATCH = "UNEVEN_MICROBATCH"
    UNKNOWN = "UNKNOWN"
    VERSION = "VERSION"


def visible(text: str) -> str:
    r"""Returns a text that commands nothing to a terminal: control codes are written out.

    Example:
        >>> visible("\x1b[2Jgone")
        '\\x1b[2Jgone'
    """
    return _CONTROL.sub(lambda code: ascii(code.group())[1:-1], text)


class DrivetrainError(Exception):
    """The base of every error that Drivetrain raises on purpose."""


class PlanError(DrivetrainError, ValueError):
    """An optimization cannot be used here, or a plan cannot be applied.

    Args:
        code: The class of the reason.
        optimization: The optimization, slot or file that it concerns.
        because: What is wrong, with the values that were met.
        fix: What would make it work; empty when nothing would.
        evidence: Further facts, such as the tail of a log.

    Example:
        >>> raise PlanError(
        ...     Code.NOT_DIVISIBLE, "micro_batch", because="a batch of 6 has no 4 parts",
        ...     fix="use 2 or 3 micro-batches")
        Traceback (most recent call last):
        ...
        drivetrain_core._errors.PlanError: micro_batch: a batch of 6 has no 4 parts \
(NOT_DIVISIBLE). Fix: use 2 or 3 micro-batches
    """

    def __init__(
        self,
        code: Code | str,
        optimization: str,
        *,
        because: str,
        fix: str = "",
        evidence: Mapping[str, str] | None = None,
    ) -> None:
        """Builds the message out of its parts."""
        self.code = Code(code)
        self.optimization = optimization
        self.because = because
        self.fix = fix
        self.evidence = dict(evidence or {})
        message = f"{optimization}: {because} ({self.code.value})"
        if fix:
            message = f"{message}. Fix: {fix}"
        super().__init__(visible(message))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles as other objects do: an error's `__init__` would get the message."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class PlanFormatError(PlanError):
    """A plan file or a strategy is not written as the format asks."""


class PluginError(DrivetrainError, ImportError):
    """An entry point does not load, or what it loads breaks its protocol."""


class MissingLibraryError(DrivetrainError, ImportError):
    """An optional library is not installed; the message has the line that does it."""


class ClusterSpecError(DrivetrainError, ValueError):
    """A cluster description is not valid."""


class ProgramError(DrivetrainError, ValueError):
    """The model, data, optimizer or loss that was handed over is not usable."""


class DataExhaustedError(ProgramError):
    """The data ended before the work that needs it was done."""


class NamesError(DrivetrainError, LookupError):
    """A canonical name is missing, or two tensors share one."""


class CheckpointError(DrivetrainError, OSError):
    """A checkpoint is missing, partial or damaged, or does not fit.

    Attributes:
        mismatches: All that does not fit, where that is why.
    """

    mismatches: tuple[str, ...] = ()


class DeviceError(DrivetrainError, RuntimeError):
    """There is no such device."""


class DistributedError(DrivetrainError, RuntimeError):
    """Ranks disagree, or a process group is needed and none stands."""


class SearchError(DrivetrainError, RuntimeError):
    """The search could not measure even the user's own program."""


def first_line(error: Exception) -> str:
    r"""Returns the class of an error and what it says first: torch's go on for a page.

    Example:
        >>> first_line(RuntimeError("no kernel\nCPU: registered at ..."))
        'RuntimeError: no kernel'
    """
    said, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {said}"


def reason_of(error: Exception) -> str:
    """Returns why a file cannot be used, without its name, which a message has already.

    Args:
        error: What was raised; of an `OSError` it is what the system says.

    Example:
        >>> reason_of(FileNotFoundError(2, "No such file or directory", "plan.yaml"))
        'No such file or directory'
    """
    return getattr(error, "strerror", None) or str(error)


class UsageError(DrivetrainError, ValueError):
    """A command was called in a wrong way: its exit status is 2."""
