"""What is wrong with what an adviser is given.

DrivetrainError
 `- AdviserError (ValueError)       a fact that is given by hand cannot be true
"""

from drivetrain_core import DrivetrainError


class AdviserError(DrivetrainError, ValueError):
    """A version, a number or a file that was given cannot be used."""
