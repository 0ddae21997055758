"""What is wrong with a topology, or with what was measured.

DrivetrainError
 `- TopologyError (ValueError)      it contradicts itself or cannot be read
"""

from drivetrain_core import DrivetrainError


class TopologyError(DrivetrainError, ValueError):
    """A topology, or a matrix of measured links, contradicts itself or cannot be read."""
