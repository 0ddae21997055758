"""Check of a program before it runs: whether it can be an elastic one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_core.commands import reach_of

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_ELASTIC = (
    "without an ElasticLoop: train in the steps of one, in place of train_step; a script "
    "with a process group of its own runs under `torchrun --rdzv-backend=drivetrain`"
)
"""What is said of a program that makes no steps of ours, and what is to be done."""


def require_elastic(
    script: str, *, is_module: bool = False, preload: Sequence[str] = ()
) -> None:
    """Refuses a program that cannot make the steps of an elastic training.

    One of which that cannot be told is not refused: its first worker shows it.

    Args:
        script: Its path, or the name of a module.
        is_module: Which of them.
        preload: Modules that are imported besides.

    Raises:
        ProgramError: The program is missing, or makes no `ElasticLoop`.
    """
    if not is_module and not Path(script).exists():
        message = f"there is no script {script!r}"
        raise ProgramError(message)
    reach = reach_of(
        script,
        names=["ElasticLoop"],
        modules=["drivetrain_horovod.on_elastic", "drivetrain_elastic.horovod"],
        in_children=True,
        is_module=is_module,
    )
    if reach.is_never and not preload:
        message = f"{script} was not run: it trains {NOT_ELASTIC}"
        raise ProgramError(message)
