"""Ids of DCP's checkpoints: which step of a folder they name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivetrain_checkpoint._storage.open import resolve

if TYPE_CHECKING:
    import os

_NUMBER = re.compile(r"\d+")


def step_of(
    checkpoint_id: str | os.PathLike[str], folder: str | os.PathLike[str] = ""
) -> int:
    """Returns the step that an id names.

    Args:
        checkpoint_id: A path in the folder, or its last part alone; the one number in
            that is the step.
        folder: Where the checkpoints are; empty if any folder will do.

    Raises:
        ValueError: It names no step, or may name one of another folder.

    Example:
        >>> step_of("step-100"), step_of("/run/step-100", "/run")
        (100, 100)
        >>> step_of("epoch=1-loss=0.25")
        Traceback (most recent call last):
        ...
        ValueError: checkpoint_id must end with the step and no other number, such as \
'step-100', got 'epoch=1-loss=0.25'
    """
    text = str(checkpoint_id).rstrip("/")
    parent, _, name = text.rpartition("/")
    numbers = _NUMBER.findall(name)
    if len(numbers) != 1 or not name.endswith(numbers[0]):
        message = (
            "checkpoint_id must end with the step and no other number, such as "
            f"'step-100', got {text!r}"
        )
        raise ValueError(message)
    if parent and folder and resolve(parent) != resolve(folder):
        message = (
            f"checkpoint_id {text!r} is in another folder than {resolve(folder)}, where "
            "this writer saves: make the writer of the folder that holds all checkpoints"
        )
        raise ValueError(message)
    return int(numbers[0])
