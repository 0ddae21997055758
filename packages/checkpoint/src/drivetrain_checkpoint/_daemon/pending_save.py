"""Pending save: one save of one rank in the daemon's memory, with its tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drivetrain_checkpoint._arena import Arena, Generation
    from drivetrain_checkpoint._native import Progress

PERSIST = "persist"
REPLICATE = "replicate"


@dataclass(eq=False, slots=True)
class PendingSave:
    """One save of one rank in this node's memory.

    Args:
        rank: The rank.
        arena: The memory.
        generation: Where in it the save lies.
        waiting: The tasks that nobody has begun.
        running: The tasks that are being done, with how far they are.
    """

    rank: int
    arena: Arena
    generation: Generation
    waiting: set[str]
    running: dict[str, Progress] = field(default_factory=dict)

    @property
    def save_id(self) -> str:
        """The id of the save."""
        found: str = self.generation.record["save_id"]
        return found

    @property
    def is_busy(self) -> bool:
        """Whether the memory is still needed."""
        return bool(self.waiting or self.running)
