"""Pipeline schedules: how long ranks idle, and how many micro-batches they hold.

Times are in units of what a rank computes for one micro-batch: its forward, its
backward for inputs, and its backward for weights. Names are those of plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from drivetrain_core import Code, PlanError


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """What sets a schedule apart.

    Args:
        chunks: Stages that a rank must hold; 0 for any number.
        is_v: Whether the stages go down the ranks and up again, so that the first rank
            holds both ends of the model.
        needs: The micro-batches that it needs: `any`, one for each of the `stages`, or
            whole `rounds` over the ranks.
    """

    chunks: int = 0
    is_v: bool = False
    needs: str = "any"


SCHEDULES = {
    "gpipe": Schedule(chunks=1),
    "1f1b": Schedule(chunks=1, needs="stages"),
    "interleaved_1f1b": Schedule(needs="rounds"),
    "looped_bfs": Schedule(),
    "interleaved_zero_bubble": Schedule(needs="rounds"),
    "zbv_zero_bubble": Schedule(chunks=2, is_v=True),
    "dual_pipe_v": Schedule(chunks=2, is_v=True, needs="stages"),
}
"""All schedules by name."""


def check_schedule(name: str, ranks: int, chunks: int, micro_batches: int) -> None:
    """Raises unless a schedule can run.

    Args:
        name: One of `SCHEDULES`.
        ranks: Ranks along the pipeline.
        chunks: Stages that each of them holds.
        micro_batches: Micro-batches of a step.

    Raises:
        PlanError: It cannot; the message says what would do.
    """
    wanted = SCHEDULES[name].chunks
    if wanted and chunks != wanted:
        raise PlanError(
            Code.CONFIG,
            "schedule",
            because=f"{name} has exactly {wanted} stages a rank, got {chunks}",
            fix=f"use stages_per_rank={wanted}",
        )
    needs, stages = SCHEDULES[name].needs, ranks * chunks
    if needs == "stages" and micro_batches < stages:
        raise PlanError(
            Code.CONFIG,
            "schedule",
            because=f"{name} over {stages} stages needs as many micro-batches, and the "
            f"batch has {micro_batches}",
            fix="use smaller micro-batches, fewer stages, or gpipe",
        )
    rounds = max(1, micro_batches // ranks)
    if needs == "rounds" and micro_batches % rounds:
        raise PlanError(
            Code.CONFIG,
            "schedule",
            because=f"{name} runs rounds over {ranks} ranks, which do not divide "
            f"{micro_batches} micro-batches",
            fix=f"use a multiple of {ranks} micro-batches, or 1f1b",
        )


def owner(name: str, stage: int, ranks: int) -> int:
    """Returns the rank along the pipeline that holds a stage.

    Example:
        >>> [owner("zbv_zero_bubble", stage, 2) for stage in range(4)]
        [0, 1, 1, 0]
    """
    lap, place = divmod(stage, ranks)
    return ranks - 1 - place if SCHEDULES[name].is_v and lap % 2 else place


def bubble(
    name: str,
    ranks: int,
    chunks: int,
    *,
    micro_batches: int | None = None,
    forward: float = 1.0,
    backward: float = 1.0,
    weights: float = 1.0,
) -> float:
    """Returns the time of a step for which a rank idles.

    Many micro-batches leave as long a gap as twice as many. Where there are fewer than
    ranks, those that hold several stages wait between one and the next besides.

    With split backwards these are the times of torch's own orders, exact where a forward
    takes no longer than the backward for inputs (for `dual_pipe_v`: where all three take
    as long), and close elsewhere.

    Args:
        name: One of `SCHEDULES`.
        ranks: Ranks along the pipeline.
        chunks: Stages that each of them holds.
        micro_batches: Micro-batches of a step; None for many.
        forward: A rank's forward of one micro-batch.
        backward: Its backward for inputs.
        weights: Its backward for weights.

    Raises:
        ValueError: The schedule is not known here.

    Example:
        >>> bubble("1f1b", 4, 1), bubble("interleaved_1f1b", 4, 3)
        (9.0, 3.0)
        >>> bubble("interleaved_1f1b", 4, 2, micro_batches=2)
        7.5
        >>> bubble("zbv_zero_bubble", 4, 2)
        1.5
    """
    gaps, both, others = ranks - 1, forward + backward, (chunks - 1) / chunks
    number = 2 * ranks if micro_batches is None else micro_batches
    missing = max(0, ranks - number)
    if name in {"gpipe", "1f1b", "looped_bfs", "interleaved_1f1b"}:
        return (gaps / chunks + missing * others) * (both + weights)
    if name == "interleaved_zero_bubble":
        many = gaps * max(both - weights, forward, backward) / chunks
        waiting = many + missing * (forward * others + weights / chunks)
        # So few that there are no weights' gradients to fill the gaps with.
        alone = gaps * both - weights * others
        return max(waiting, alone - (number - 1) * (both * others + weights))
    if name == "zbv_zero_bubble":
        many = gaps * max(forward / 2, backward / 2, backward - weights)
        filled = (min(number, ranks) - 1) * forward
        filled += max(0, number - ranks) * weights
        return max(many, gaps * both - filled)
    if name == "dual_pipe_v":
        return gaps * max(forward, forward / 2 + backward - weights / 2)
    message = f"the idle time of the schedule {name} is not known"
    raise ValueError(message)


def held_micro_batches(
    name: str, ranks: int, chunks: int, micro_batches: int, rank: int = 0
) -> float:
    """Returns how many micro-batches' activations a rank holds at the most.

    Args:
        name: One of `SCHEDULES`.
        ranks: Ranks along the pipeline.
        chunks: Stages that each of them holds.
        micro_batches: Micro-batches of a step.
        rank: Where along the pipeline.

    Raises:
        ValueError: The schedule is not known here.

    Example:
        >>> [held_micro_batches("1f1b", 4, 1, 16, rank) for rank in range(4)]
        [4.0, 3.0, 2.0, 1.0]
        >>> held_micro_batches("gpipe", 4, 1, 16)
        16.0
    """
    if name in {"gpipe", "looped_bfs"}:
        return float(micro_batches)
    if name == "1f1b":
        return float(min(micro_batches, ranks - rank))
    if name == "interleaved_1f1b":
        ahead = 2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1
        return min(float(micro_batches), ahead / chunks)
    if name == "dual_pipe_v":
        return min(float(micro_batches), ranks + 0.5)
    if name in {"interleaved_zero_bubble", "zbv_zero_bubble"}:
        return float(min(micro_batches, ranks))
    message = f"what the schedule {name} holds is not known"
    raise ValueError(message)
