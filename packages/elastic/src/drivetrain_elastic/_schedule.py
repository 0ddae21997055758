"""Which samples a step trains on, as a function of its number alone.

N samples are read in global batches of G, epoch after epoch, each in an order of its own.
The last batch of an epoch has what is left, unless it is dropped. So the number of a step
says all of where a training is in its data: whatever ranks there were before, and will be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import ProgramError
from drivetrain_elastic._order import epoch_order, part_of_block

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Block", "Part", "Schedule"]


class Block(NamedTuple):
    """The samples of a step, on all ranks together.

    Attributes:
        epoch: Which pass over the data it belongs to.
        start: The place of its first sample in the order of the epoch.
        size: How many samples it has.
    """

    epoch: int
    start: int
    size: int


class Part(NamedTuple):
    """What one rank computes at once.

    Attributes:
        indices: Of the samples in the dataset.
        weight: What their mean loss is multiplied by: the sum over all parts of all ranks
            is the mean over the global batch.
    """

    indices: list[int]
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The data of a training, step by step.

    Args:
        num_samples: N.
        global_batch: G.
        seed: Of the orders.
        shuffle: Whether there are any.
        drop_last: Whether what does not fill a batch at the end of an epoch is left out.

    Raises:
        ProgramError: A number is out of range, or nothing would be left.

    Example:
        >>> schedule = Schedule(num_samples=10, global_batch=4, shuffle=False)
        >>> [schedule.block(step) for step in (1, 3, 4)]
        [Block(epoch=0, start=0, size=4), Block(epoch=0, start=8, size=2), \
Block(epoch=1, start=0, size=4)]
        >>> schedule.parts(3, world_size=2, rank=1)
        [Part(indices=[9], weight=0.5)]
    """

    num_samples: int
    global_batch: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        """Checks the numbers."""
        if self.num_samples < 1 or self.global_batch < 1:
            message = (
                "num_samples and global_batch must be at least 1, got "
                f"{self.num_samples} and {self.global_batch}"
            )
            raise ProgramError(message)
        if self.drop_last and self.num_samples < self.global_batch:
            message = (
                f"a dataset of {self.num_samples} samples has no whole batch of "
                f"{self.global_batch}, and drop_last leaves out what is not whole"
            )
            raise ProgramError(message)

    @property
    def steps_per_epoch(self) -> int:
        """How many steps an epoch has."""
        whole, rest = divmod(self.num_samples, self.global_batch)
        return whole + (rest > 0 and not self.drop_last)

    def block(self, step: int) -> Block:
        """Returns the samples of a step.

        Args:
            step: From 1.
        """
        epoch, at = divmod(step - 1, self.steps_per_epoch)
        start = at * self.global_batch
        return Block(epoch, start, min(self.global_batch, self.num_samples - start))

    def parts(
        self, step: int, *, world_size: int, rank: int, num_micro_batches: int = 1
    ) -> list[Part]:
        """Returns what one rank computes in a step.

        Args:
            step: From 1.
            world_size: The number of ranks.
            rank: This one.
            num_micro_batches: How many forward and backward passes it makes at most; fewer
                where it has fewer samples, and none where it has none.
        """
        epoch, start, size = self.block(step)
        mine = part_of_block(start, size, world_size=world_size, rank=rank)
        order = _order(self.num_samples, epoch, self.seed, self.shuffle)
        parts = []
        for at in range(num_micro_batches):
            places = part_of_block(
                mine.start, len(mine), world_size=num_micro_batches, rank=at
            )
            if places:
                indices = order[places.start : places.stop].tolist()
                parts.append(Part(indices, len(places) / size))
        return parts


@lru_cache(maxsize=2)
def _order(num_samples: int, epoch: int, seed: int, shuffle: bool) -> Tensor:
    return epoch_order(num_samples, epoch=epoch, seed=seed, shuffle=shuffle)
