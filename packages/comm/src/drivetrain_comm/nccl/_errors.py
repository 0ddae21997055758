"""What is wrong with a table of NCCL's choices, or with what one is made from.

DrivetrainError
 `- NcclTableError (ValueError)      a table, or results of a benchmark, cannot be used
"""

from drivetrain_core import DrivetrainError


class NcclTableError(DrivetrainError, ValueError):
    """A table or the results of a benchmark are not valid; the message says where."""
