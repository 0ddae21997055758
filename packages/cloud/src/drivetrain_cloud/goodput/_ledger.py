"""Where the time of a training went."""

from enum import StrEnum


class Loss(StrEnum):
    """What time was lost to.

    Example:
        >>> Loss("re-made-steps")
        <Loss.REMADE: 're-made-steps'>
    """

    DETECTION = "detection"
    """Nobody had noticed the failure yet."""
    DIAGNOSIS = "diagnosis"
    """What had failed, and what was to follow, was being found out."""
    PEOPLE = "people"
    """The job waited for somebody."""
    NODES = "too-few-nodes"
    """The job waited for nodes."""
    RESTART = "restart"
    """Groups were formed, processes started, checkpoints loaded."""
    REMADE = "re-made-steps"
    """Steps that were made, lost, and made again."""
    CHECKPOINT = "checkpoint-stalls"
    """All waited for a checkpoint."""
    DEGRADED = "degraded-speed"
    """Steps took longer, with fewer nodes or a slow one."""
