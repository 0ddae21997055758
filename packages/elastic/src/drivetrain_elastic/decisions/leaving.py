"""How a node ends that was told to leave: whether all that it had trained is safe."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Why a checkpoint that was asked for is not saved, where that is nobody's failure.
NO_CHECKPOINTER = "the script has no checkpointer"


def judge_leaving(
    failures: Sequence[str], *, num_left: int, has_failed: bool, owes_save: bool
) -> str:
    """Returns why what was trained may be lost, of a node after which nobody goes on.

    All is safe that was saved, also what the script has saved by itself after its loop, if
    it ended well.

    Args:
        failures: Why checkpoints that were asked for have failed; empty texts for those
            that are durable.
        num_left: Workers that did not leave in time.
        has_failed: Whether one of them ended with an error as it left.
        owes_save: Whether the checkpoint of what was trained was to be saved here.

    Returns:
        The reason; empty if all is safe.

    Example:
        >>> judge_leaving([""], num_left=0, has_failed=False, owes_save=True)
        ''
        >>> judge_leaving([], num_left=0, has_failed=False, owes_save=True)
        'no checkpoint of its last step is durable'
    """
    if num_left:
        return f"{num_left} workers did not leave in time"
    if has_failed:
        return "a worker has failed as it left"
    for failure in failures:
        if failure not in {"", NO_CHECKPOINTER}:
            return f"its checkpoint has failed: {failure}"
    is_safe = failures or not owes_save
    return "" if is_safe else "no checkpoint of its last step is durable"
