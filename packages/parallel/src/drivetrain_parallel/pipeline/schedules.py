"""The schedules of torch by name: which stages a rank holds, and what each asks for.

A new one also needs its cost in `cost.schedules` and its name among the choices of
`optimizations.schedule`; a search tries those of `cost.rank_meshes.SEARCHED`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from drivetrain_core import Code, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable


def _fills_the_pipeline(num: int, num_ranks: int, num_stages: int) -> str:
    del num_ranks
    return "" if num >= num_stages else f"at least {num_stages} (one for each stage)"


def _fills_rounds(num: int, num_ranks: int, num_stages: int) -> str:
    del num_stages
    rounds = max(1, num // num_ranks)
    return "" if num % rounds == 0 else f"a multiple of its {num_ranks} ranks"


def _any_number(num: int, num_ranks: int, num_stages: int) -> str:
    del num, num_ranks, num_stages
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleRules:
    """What a schedule is and asks for.

    Args:
        torch_name: Its class in `torch.distributed.pipelining`.
        default_stages: Stages of a rank unless told otherwise.
        fixed: Whether it cannot have another number of them.
        form: `loop` where rank r holds stages r, r + ranks, ...; `v` where the last
            rank holds two neighbours and the first one both ends.
        splits_backward: Whether it runs the gradients of weights on their own.
        lacking: Returns what number of micro-batches is needed, for a number of them,
            the ranks and the stages; empty when the number will do.
    """

    torch_name: str
    default_stages: int
    fixed: bool
    form: str = "loop"
    splits_backward: bool = False
    lacking: Callable[[int, int, int], str]


_LACKING = {"": _any_number, "pipeline": _fills_the_pipeline, "rounds": _fills_rounds}
_ROWS = tomllib.loads(files(__package__).joinpath("schedules.toml").read_text("utf-8"))
SCHEDULES = {
    name: ScheduleRules(lacking=_LACKING[row.pop("lacking", "")], **row)
    for name, row in _ROWS.items()
}
"""The seven schedules, by the names that plans have for them."""


def schedule_rules(schedule: str) -> ScheduleRules:
    """Returns the rules of a schedule.

    Raises:
        PlanError: There is none of that name.
    """
    if schedule not in SCHEDULES:
        raise PlanError(
            Code.UNKNOWN,
            "schedule",
            because=f"there is no schedule {schedule!r}",
            fix=f"use one of {', '.join(SCHEDULES)}",
        )
    return SCHEDULES[schedule]


def stages_per_rank(schedule: str, given: int | None = None) -> int:
    """Returns how many stages each rank holds under a schedule.

    Args:
        schedule: Its name.
        given: The number that is asked for; the schedule's own when None.

    Raises:
        PlanError: The schedule is unknown, or cannot have that many.

    Example:
        >>> stages_per_rank("1f1b"), stages_per_rank("interleaved_1f1b", 4)
        (1, 4)
    """
    rules = schedule_rules(schedule)
    if given is None or given == rules.default_stages:
        return rules.default_stages
    if rules.fixed or given < 1:
        raise PlanError(
            Code.CONFIG,
            "schedule",
            because=f"{schedule} has {'exactly' if rules.fixed else 'at least'} "
            f"{rules.default_stages if rules.fixed else 1} stages a rank, got {given}",
            fix="leave stages_per_rank out"
            + ("" if rules.splits_backward else ", or use interleaved_1f1b"),
        )
    return given


def stages_of_rank(
    schedule: str, *, rank: int, num_ranks: int, stages_per_rank: int
) -> tuple[int, ...]:
    """Returns the stages that a rank of the pipeline holds, the first one first.

    Args:
        schedule: Its name.
        rank: The rank's place along the pipeline.
        num_ranks: Ranks along it.
        stages_per_rank: Stages of each.

    Example:
        >>> stages_of_rank("interleaved_1f1b", rank=1, num_ranks=2, stages_per_rank=2)
        (1, 3)
        >>> stages_of_rank("zbv_zero_bubble", rank=0, num_ranks=2, stages_per_rank=2)
        (0, 3)
    """
    return tuple(
        stage
        for stage in range(num_ranks * stages_per_rank)
        if stage_owner(schedule, stage, num_ranks) == rank
    )


def stage_owner(schedule: str, stage: int, num_ranks: int) -> int:
    """Returns the rank along the pipeline that holds a stage.

    Example:
        >>> [stage_owner("dual_pipe_v", stage, 2) for stage in range(4)]
        [0, 1, 1, 0]
    """
    lap, place = divmod(stage, num_ranks)
    if schedule_rules(schedule).form == "v" and lap % 2:
        return num_ranks - 1 - place
    return place


def check_micro_batches(
    schedule: str, num_micro_batches: int, *, num_ranks: int, num_stages: int
) -> None:
    """Raises a `PlanError` unless a schedule can run that many micro-batches.

    Args:
        schedule: Its name.
        num_micro_batches: The micro-batches of a step.
        num_ranks: Ranks along the pipeline.
        num_stages: Stages of the whole pipeline.

    Example:
        >>> check_micro_batches("1f1b", 2, num_ranks=4, num_stages=4)
        Traceback (most recent call last):
        ...
        drivetrain_core._errors.PlanError: schedule: 1f1b needs at least 4 (one for each \
stage) micro-batches, got 2 (CONFIG). Fix: use 4 micro-batches, or gpipe
    """
    lacking = schedule_rules(schedule).lacking
    needed = lacking(num_micro_batches, num_ranks, num_stages)
    if num_micro_batches >= 1 and not needed:
        return
    enough = next(
        n
        for n in range(max(1, num_micro_batches), num_micro_batches + num_stages + 2)
        if n > 0 and not lacking(n, num_ranks, num_stages)
    )
    raise PlanError(
        Code.CONFIG,
        "schedule",
        because=f"{schedule} needs {needed or 'at least 1'} micro-batches, got "
        f"{num_micro_batches}",
        fix=f"use {enough} micro-batches"
        + ("" if schedule_rules(schedule).splits_backward else ", or gpipe"),
    )
