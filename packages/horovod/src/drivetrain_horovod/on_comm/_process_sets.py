"""There is one process set, that of all ranks."""

from __future__ import annotations

from typing import Any, NoReturn

from drivetrain_core import DistributedError

global_process_set = "global"
"""The set of all ranks: the only one."""


def check_process_set(process_set: Any) -> None:
    """Raises a DistributedError unless all ranks are meant."""
    if process_set is not None and process_set is not global_process_set:
        _refuse(process_set)


def ProcessSet(*ranks: Any) -> NoReturn:  # noqa: N802 (Horovod's name)
    """Raises a DistributedError: there are no sets of some ranks."""
    _refuse(ranks)


def add_process_set(process_set: Any) -> NoReturn:
    """Raises a DistributedError: there are no sets of some ranks."""
    _refuse(process_set)


def remove_process_set(process_set: Any) -> NoReturn:
    """Raises a DistributedError: there are no sets of some ranks."""
    _refuse(process_set)


def _refuse(given: Any) -> NoReturn:
    message = (
        f"process sets of some ranks are not available here, got {given!r}: use "
        "torch.distributed.new_group, whose groups are tuned as well"
    )
    raise DistributedError(message)
