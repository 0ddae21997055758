"""Schedules that users hand over as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_comm.compiler._errors import ScheduleError
from drivetrain_comm.compiler._schedule import Schedule
from drivetrain_comm.compiler._verify import verify
from drivetrain_core.commands import reason_of

if TYPE_CHECKING:
    import os


def load_schedule(
    path: str | os.PathLike[str], collective: str = "all_reduce"
) -> Schedule:
    """Returns the schedule of a file, which is verified.

    Args:
        path: What `drivetrain comm compile --out` has written, as JSON.
        collective: What it must be.

    Raises:
        ScheduleError: The file cannot be read, holds no schedule, one of another
            collective, or one that is wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        message = f"{path}: it cannot be read: {reason_of(error)}"
        raise ScheduleError(message) from error
    try:
        schedule = Schedule.from_json(text)
        verify(schedule)
    except ScheduleError as error:
        message = f"{path}: {error}"
        raise ScheduleError(message) from None
    if schedule.collective != collective:
        message = f"{path}: it must be an {collective}, and is {schedule.collective}"
        raise ScheduleError(message)
    return schedule
