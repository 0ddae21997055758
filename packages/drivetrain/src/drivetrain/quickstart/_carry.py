"""What of a plan, and of a program, two workers can take; pure decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drivetrain_core import Accelerated, Choice

_WAY_OUT = "`drivetrain search {script}` searches for a plan without the other parts"


class Carried(NamedTuple):
    """A plan for workers that share what one process had.

    Attributes:
        choices: What each of them applies.
        num_passes: Forward and backward passes of a worker in a step.
        left_out: What they do not apply, and what stands in its place.
    """

    choices: tuple[Choice, ...]
    num_passes: int
    left_out: tuple[tuple[str, str], ...]


def carry_over(
    choices: Sequence[Choice],
    *,
    num_workers: int,
    num_threads: int,
    has_batch_norm: bool = False,
) -> Carried:
    """Returns what of a plan for one process several workers of a machine apply.

    Args:
        choices: The plan.
        num_workers: How many share its cores and its global batch.
        num_threads: What each of them has.
        has_batch_norm: Whether the model normalizes over its batch.

    Example:
        >>> from drivetrain_core import Choice
        >>> plan = [Choice("cpu_threads", {"num": 2}), Choice("micro_batch", {"num": 4})]
        >>> carried = carry_over(plan, num_workers=2, num_threads=1)
        >>> carried.choices, carried.num_passes, len(carried.left_out)
        ((), 2, 2)
    """
    kept: list[Choice] = []
    num_passes = 1
    left_out: list[tuple[str, str]] = []
    for choice in choices:
        if choice.name == "cpu_threads" and choice.config["num"] != num_threads:
            instead = f"{num_workers} workers share the cores, {num_threads} for each"
        elif choice.name == "data_loading":
            instead = "the workers read the global order themselves"
        elif choice.name == "micro_batch":
            num = choice.config["num"]
            assert isinstance(num, int)
            num_passes = max(1, num // num_workers)
            instead = f"each worker makes {num_passes} of its passes"
        else:
            kept.append(choice)
            continue
        left_out.append((str(choice), instead))
    if has_batch_norm:
        instead = "each worker normalizes over its own part of the batch"
        left_out.append(("BatchNorm over the global batch", instead))
    return Carried(tuple(kept), num_passes, tuple(left_out))


def refusal(script: str, accelerated: Accelerated) -> str | None:
    """Returns why a program cannot be trained by several workers; None if it can.

    Args:
        script: Whose program it is.
        accelerated: The program as written.
    """
    for is_so, because in _REASONS:
        if is_so(accelerated):
            return f"{because}; or {_WAY_OUT.format(script=script)}"
    return None


def _is_read_once(accelerated: Accelerated) -> bool:
    loader = accelerated.loader
    # A loader with lasting workers gives one iterator again and again, from its start.
    return not isinstance(loader, DataLoader) and iter(loader) is iter(loader)


def _takes_two_passes(accelerated: Accelerated) -> bool:
    return hasattr(accelerated.optimizer, "perturb")


def _has_own_loop(accelerated: Accelerated) -> bool:
    return not accelerated.context.loop.owns_step


def _has_unknown_schedule(accelerated: Accelerated) -> bool:
    scheduler = accelerated.scheduler
    return scheduler is not None and not hasattr(scheduler, "last_epoch")


def _has_one_sample(accelerated: Accelerated) -> bool:
    return accelerated.context.batch.size < 2


_REASONS: tuple[tuple[Callable[[Accelerated], bool], str], ...] = (
    (_has_own_loop, "the script has a loop of its own (own_loop=True): use train_step"),
    (
        _takes_two_passes,
        "elastic training makes one pass over a batch, and the optimizer takes two",
    ),
    (
        _has_unknown_schedule,
        "the scheduler must say how far it is by last_epoch, as those of torch do",
    ),
    (
        _is_read_once,
        "each worker reads the data from its start: pass a DataLoader or a list",
    ),
    (_has_one_sample, "two workers share a batch: make it larger than one sample"),
)
