"""What the main job is asked to do: of what size, and with whose program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from drivetrain.quickstart import _byte_lm
from drivetrain.quickstart._size import Limits
from drivetrain_core import Budget

if TYPE_CHECKING:
    from drivetrain_core.examples.byte_lm import ByteLMConfig


class HeldOut(NamedTuple):
    """How the byte model is tried on text that it has not seen.

    Attributes:
        batch_size: Windows of a batch.
        length: Bytes of a window.
        max_bytes: Text to read at most; all when None.
    """

    batch_size: int
    length: int
    max_bytes: int | None


class Target(NamedTuple):
    """Whose program it is.

    Attributes:
        script: Its path.
        arguments: Its command line.
        held_out: How it is tried; None for a script of the user's.
    """

    script: str
    arguments: tuple[str, ...] = ()
    held_out: HeldOut | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The size of the main job.

    Args:
        batch_size: Windows of a global batch of the byte model.
        length: Bytes of a window.
        steps: Training steps of each run; None for as many as the limits allow.
        budget: Limits of the search.
        max_bytes: Text to read at most; all when None.
        config: The byte model; the default one when None.
        limits: How long the parts may take.
    """

    batch_size: int = 8
    length: int = 128
    steps: int | None = None
    budget: Budget = field(default_factory=lambda: Budget(seconds=Limits().search_s))
    max_bytes: int | None = None
    config: ByteLMConfig | None = None
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def here(cls) -> Job:
        """Returns the size for this machine: small on a CPU, larger with a device."""
        if torch.accelerator.is_available():
            return cls(batch_size=64, length=512)
        return cls()

    def target(self) -> Target:
        """Returns the program of this package, in this size."""
        size = (self.batch_size, self.length, self.max_bytes)
        arguments = _byte_lm.arguments_for(*size, self.config)
        return Target(_byte_lm.script_path(), tuple(arguments), HeldOut(*size))
