"""What is raised when a fault cannot be made.

Of `FaultError` there are two kinds with names of their own:

    FaultError (OSError)                          it cannot be made, or not be ended
     |- TargetGoneError (ProcessLookupError)      the process has ended
     `- MissingPrivilegeError (PermissionError)   a capability or a program is missing
"""

from drivetrain_core import DrivetrainError


class FaultError(DrivetrainError, OSError):
    """A fault cannot be made, or cannot be ended."""


class TargetGoneError(FaultError, ProcessLookupError):
    """The process that the fault was meant for has ended."""


class MissingPrivilegeError(FaultError, PermissionError):
    """The machine does not let this process make such a fault; the message says why."""
