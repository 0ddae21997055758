"""What is wrong with a fabric, or with what is asked of one.

DrivetrainError
 `- FabricError (ValueError)        it does not connect, or cannot be simulated
"""

from drivetrain_core import DrivetrainError


class FabricError(DrivetrainError, ValueError):
    """A fabric does not connect, or a simulation of it is not well described."""
