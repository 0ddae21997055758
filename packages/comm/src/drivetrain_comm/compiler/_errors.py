"""What goes wrong with topologies and schedules."""

from drivetrain_core import DrivetrainError


class LinkGraphError(DrivetrainError, ValueError):
    """A graph of links is not valid, or does not connect all ranks."""


class ScheduleError(DrivetrainError, ValueError):
    """A schedule does not do what it should, or a file does not hold one."""
