"""Schedule of samples: which a step trains on, by how far the training is in its data.

N samples are read epoch after epoch, each in an order of its own, in global batches: of G
samples whatever ranks there are, or of so many for each copy of the model. The last batch
of an epoch has what is left, unless it is dropped. So one position says all of where a
training is in its data, whatever ranks there were before, and will be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import ProgramError
from drivetrain_elastic._data._epoch_order import epoch_order, part_of_block

if TYPE_CHECKING:
    from torch import Tensor


class Position(NamedTuple):
    """How far a training is in its data.

    Attributes:
        epoch: Which pass over the data.
        start: How many places of the epoch's order have been read.
    """

    epoch: int = 0
    start: int = 0


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
        global_batch: G, the same whatever ranks there are: steps, learning rate and losses
            are those of a training that nothing happened to.
        batch_per_copy: In its place, how many samples each copy of the model reads in a
            step: more copies make larger batches, for which `BatchScaling` is.
        seed: Of the orders.
        shuffle: Whether there are any.
        drop_last: Whether what does not fill a batch at the end of an epoch is left out.

    Raises:
        ProgramError: A number is out of range, both batches are given or none, or nothing
            would be left.

    Example:
        >>> schedule = Schedule(num_samples=10, global_batch=4, shuffle=False)
        >>> position = Position()
        >>> for _ in range(4):
        ...     block = schedule.block(position, num_copies=2)
        ...     position = schedule.after(block)
        ...     print(block)
        Block(epoch=0, start=0, size=4)
        Block(epoch=0, start=4, size=4)
        Block(epoch=0, start=8, size=2)
        Block(epoch=1, start=0, size=4)
        >>> schedule.parts(Block(0, 8, 2), num_shares=2, share=1)
        [Part(indices=[9], weight=0.5)]
    """

    num_samples: int
    global_batch: int | None = None
    batch_per_copy: int | None = None
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        """Checks the numbers."""
        if (self.global_batch is None) == (self.batch_per_copy is None):
            message = (
                "a schedule needs either global_batch or batch_per_copy, got "
                f"{self.global_batch} and {self.batch_per_copy}"
            )
            raise ProgramError(message)
        batch = self.global_batch or self.batch_per_copy or 0
        if self.num_samples < 1 or batch < 1:
            message = (
                "num_samples and the batch must be at least 1, got "
                f"{self.num_samples} and {batch}"
            )
            raise ProgramError(message)
        if self.global_batch is not None:
            self._check_whole(batch)

    def _check_whole(self, batch: int) -> None:
        if self.drop_last and self.num_samples < batch:
            message = (
                f"a dataset of {self.num_samples} samples has no whole batch of {batch}, "
                "and drop_last leaves out what is not whole"
            )
            raise ProgramError(message)

    def block(self, position: Position, *, num_copies: int) -> Block:
        """Returns the samples of the next step.

        Args:
            position: How far the training is.
            num_copies: How many copies of the model there are.

        Raises:
            ProgramError: There are so many copies that no batch is whole.
        """
        batch = self.global_batch
        if batch is None:
            assert self.batch_per_copy is not None
            batch = self.batch_per_copy * num_copies
            self._check_whole(batch)
        epoch, start = position
        if self.drop_last and self.num_samples - start < batch:
            epoch, start = epoch + 1, 0
        return Block(epoch, start, min(batch, self.num_samples - start))

    def after(self, block: Block) -> Position:
        """Returns how far a training is that has made the step of a block."""
        end = block.start + block.size
        whole = self.global_batch if self.drop_last else None
        if end >= self.num_samples or (whole and self.num_samples - end < whole):
            return Position(block.epoch + 1, 0)
        return Position(block.epoch, end)

    def parts(
        self,
        block: Block,
        *,
        num_shares: int,
        share: int,
        num_micro_batches: int = 1,
        even: bool = False,
    ) -> list[Part]:
        """Returns what is computed in a step by those that have one share of it.

        Args:
            block: The samples of the step.
            num_shares: Among how many ranks, or copies of the model, they are shared.
            share: Which of them.
            num_micro_batches: How many forward and backward passes are made at most; fewer
                where there are fewer samples, and none where there are none.
            even: Whether all make equally many passes, since they do so together: those
                without samples repeat one, with a weight of 0.
        """
        epoch, start, size = block
        mine = part_of_block(start, size, world_size=num_shares, rank=share)
        order = _order(self.num_samples, epoch, self.seed, self.shuffle)
        parts = []
        for at in range(num_micro_batches):
            places = part_of_block(
                mine.start, len(mine), world_size=num_micro_batches, rank=at
            )
            if places:
                indices = order[places.start : places.stop].tolist()
                parts.append(Part(indices, len(places) / size))
        if even:
            # The first share is the largest.
            num = min(num_micro_batches, -(-size // num_shares))
            parts += [Part([int(order[start])], 0.0)] * (num - len(parts))
        return parts


@lru_cache(maxsize=2)
def _order(num_samples: int, epoch: int, seed: int, shuffle: bool) -> Tensor:
    return epoch_order(num_samples, epoch=epoch, seed=seed, shuffle=shuffle)
