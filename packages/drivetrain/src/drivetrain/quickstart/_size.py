"""How many steps are made, from what a step was seen to take; pure decisions."""

from __future__ import annotations

from typing import NamedTuple

MOST_STEPS = 400

# With one in the middle that has some before it and some after.
_FEWEST = 4
_TURN_S = 1.5
_MOST_OF_TURN = 20
# Rounding alone leads two runs of the byte model apart: their losses by 5e-7 in so many
# steps, and by 1e-3 in 80. What a kill may have cost would not be seen beside that.
_MOST_OF_JOB = 24
# Two workers share the cores that one process had, and each applies the whole update.
_STEP_OF_JOB = 1.5
# Its processes start side by side, and read what one of them has compiled.
_START_OF_JOB = 2.5
# A machine that slows down must not break a limit.
_RESERVE = 0.85


class Limits(NamedTuple):
    """How long the parts of the main job may take, in seconds.

    Attributes:
        search_s: Of the search.
        pair_s: Of the training beside the program as written.
        job_s: Of the training in which a worker is killed.
    """

    search_s: float = 180.0
    pair_s: float = 120.0
    job_s: float = 150.0


def steps_of_pair(step_s: float, *, limit_s: float, made: int, spent_s: float) -> int:
    """Returns how many more steps each run makes, in turns with the others.

    Args:
        step_s: What a step takes in all runs together.
        limit_s: How long all of it may take.
        made: How many steps are made.
        spent_s: How long all took so far.

    Example:
        >>> steps_of_pair(1.0, limit_s=120.0, made=3, spent_s=20.0)
        82
        >>> steps_of_pair(60.0, limit_s=120.0, made=2, spent_s=90.0)
        2
    """
    fitting = int((limit_s * _RESERVE - spent_s) / max(step_s, 1e-6))
    return max(_FEWEST - made, 0, min(MOST_STEPS - made, fitting))


def steps_of_job(
    num_steps: int, step_s: float, *, limit_s: float, start_s: float
) -> int:
    """Returns how many of the steps of the undisturbed run are made with two workers.

    Args:
        num_steps: Of the undisturbed run.
        step_s: What one of them takes.
        limit_s: How long all of it may take.
        start_s: How long one process took to start and to compile.

    Example:
        >>> steps_of_job(100, 0.5, limit_s=150.0, start_s=20.0)
        24
        >>> steps_of_job(100, 5.0, limit_s=150.0, start_s=20.0)
        10
    """
    left_s = limit_s * _RESERVE - start_s * _START_OF_JOB
    fitting = int(left_s / max(step_s * _STEP_OF_JOB, 1e-6))
    return min(num_steps, _MOST_OF_JOB, max(_FEWEST, fitting))


def steps_of_turn(step_s: float) -> int:
    """Returns how many steps a run makes before the other one has its turn.

    Example:
        >>> steps_of_turn(0.3), steps_of_turn(9.0), steps_of_turn(0.001)
        (5, 1, 20)
    """
    return max(1, min(_MOST_OF_TURN, round(_TURN_S / max(step_s, 1e-6))))


def step_of_kill(num_steps: int) -> int:
    """Returns in which step a worker is killed: the one in the middle.

    Example:
        >>> step_of_kill(10)
        6
    """
    return num_steps // 2 + 1


def save_every(num_steps: int) -> int:
    """Returns after how many steps a checkpoint is saved: four times in all.

    Example:
        >>> save_every(100), save_every(3)
        (25, 1)
    """
    return max(1, num_steps // 4)
