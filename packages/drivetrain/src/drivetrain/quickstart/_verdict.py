"""Whether the main job has kept what it promises; pure decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from drivetrain.quickstart._kill_report import Count, LossGap
    from drivetrain.quickstart._speed_up import SpeedUp

# Losses are of the order of one, and single precision has some 1e-7 of that. A step too
# many or too few is a hundred times as far.
_ROUNDING = 1e-5
# Of the losses themselves: runs that are so far apart without a kill are not the same.
_FAR = 0.1
_SAYS_LITTLE = (
    ", which says little: the two runs had parted before it, as those of a program do that "
    "diverges, or that draws or normalizes otherwise in halves of a batch"
)


class Promise(NamedTuple):
    """What was promised, and what came of it.

    Attributes:
        what: The promise.
        is_kept: Whether it was kept.
        because: What was measured.
    """

    what: str
    is_kept: bool
    because: str


def fast(speed: SpeedUp | None) -> Promise:
    """Returns whether the plan is not slower than the program as written.

    Args:
        speed: Of the plan; None where the search ended with the program as written.

    Example:
        >>> from drivetrain.quickstart._speed_up import SpeedUp
        >>> fast(SpeedUp(0.97, 0.04)).is_kept, fast(SpeedUp(0.90, 0.04)).is_kept
        (True, False)
    """
    what = "the plan is not slower than the program as written"
    if speed is None:
        return Promise(what, True, "it is the program as written")
    is_kept = speed.ratio >= 1.0 - speed.half_width
    return Promise(what, is_kept, f"{speed.ratio:.2f}x +- {speed.half_width:.2f}")


def hard_to_kill(
    exit_code: int, count: Count, gap: LossGap, *, num_steps: int, has_killed: bool
) -> list[Promise]:
    """Returns whether a worker died and nothing was lost.

    Args:
        exit_code: Of the training.
        count: Of its steps and samples.
        gap: To the losses of the undisturbed run.
        num_steps: How many there were to be.
        has_killed: Whether a worker was killed.
    """
    return [
        Promise(
            "a worker was killed, and the training came to its end",
            has_killed and exit_code == 0 and count.pause_s is not None,
            f"exit status {exit_code}"
            + ("" if has_killed else ", no worker was killed"),
        ),
        Promise(
            "no step that counted is lost",
            count.steps_lost == 0 and count.num_steps == num_steps,
            f"{count.num_steps} of {num_steps} count, {count.steps_lost} lost",
        ),
        Promise(
            "every sample of the global order is trained on once",
            count.samples_lost == 0 and count.samples_repeated == 0,
            f"{count.samples_lost} lost, {count.samples_repeated} repeated",
        ),
        Promise(
            "losses after the kill are as near to the undisturbed run's as before",
            gap.after <= 2.0 * gap.before + _ROUNDING,
            f"{gap.after:.1e} apart in the median, at most {gap.before:.1e} before"
            + (_SAYS_LITTLE if gap.before > _FAR * gap.scale else ""),
        ),
    ]


def mfu(
    flops: int | None, step_s: float | None, peak_flops_per_s: float | None
) -> float | None:
    """Returns which share of the machine's peak a step uses; None if none is known.

    Both were measured in the same turns. A share above one says that the peak was not
    one, and is none.

    Example:
        >>> mfu(10, 2.0, 20.0), mfu(10, 0.1, 20.0)
        (0.25, None)
    """
    if not flops or not step_s or not peak_flops_per_s:
        return None
    share = flops / step_s / peak_flops_per_s
    return share if share <= 1.0 else None
