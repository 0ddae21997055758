"""A sampler that reads what the ranks of earlier worlds have not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler

from drivetrain_core import ProgramError
from drivetrain_elastic.extending import epoch_order, part_of_rank
from drivetrain_horovod.on_elastic._runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sized


class ElasticSampler(Sampler[int]):
    """Deals the samples of an epoch to the ranks that there are.

    All ranks read equally many, for which a few samples are read twice at the end of an
    epoch, fewer than there are ranks. What was recorded is not read again in the epoch,
    whatever the number of ranks was then.

    Args:
        dataset: Whatever has a length.
        shuffle: Whether each epoch has an order of its own, that of torch's
            `DistributedSampler`.
        seed: Of these orders, the same on all ranks.

    Attributes:
        epoch: That is read.
        processed_num: How many of its samples all ranks together have recorded.
        num_replicas: The number of ranks.
        rank: This one.

    Raises:
        drivetrain_horovod.on_elastic.NotInitializedError: `init` was not called.
        ProgramError: The dataset is empty.

    Example:
        >>> from drivetrain_horovod import on_elastic as hvd
        >>> hvd.init()
        >>> sampler = hvd.elastic.ElasticSampler(range(8), shuffle=False)
        >>> sampler.record_batch(0, 5)
        >>> sampler.reset()
        >>> list(sampler)
        [5, 6, 7]
        >>> hvd.shutdown()
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        if not len(dataset):
            message = "the dataset must have samples, got an empty one"
            raise ProgramError(message)
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, with nothing recorded; call it at the end of the one before.

        Args:
            epoch: From 0; each has an order of its own.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Says that each rank has trained on a batch.

        Args:
            batch_idx: Of the pass; nothing depends on it.
            batch_size: The samples that each rank had of it.
        """
        del batch_idx
        processed = self.processed_num + batch_size * self.num_replicas
        self.processed_num = min(processed, len(self.dataset))

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Returns the samples of a batch of the pass that was begun last, on this rank.

        Args:
            batch_idx: Of the pass, from 0.
            batch_size: Of each rank.
        """
        start = batch_idx * batch_size
        return self.indices[start : start + batch_size]

    def reset(self) -> None:
        """Deals what is left of the epoch to the ranks that there are now."""
        place = runtime().place
        self.num_replicas, self.rank = place.size, place.rank
        order = epoch_order(
            len(self.dataset), epoch=self.epoch, seed=self.seed, shuffle=self.shuffle
        )
        self.indices: list[int] = part_of_rank(
            order,
            self.processed_num,
            world_size=self.num_replicas,
            rank=self.rank,
            tail="pad",
        ).tolist()

    def state_dict(self) -> dict[str, Any]:
        """Returns how far the epoch is."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where another world, or another run, was.

        Args:
            state_dict: What `state_dict` returned, with any number of ranks.

        Raises:
            ProgramError: It is of something else.
        """
        epoch, processed = state_dict.get("epoch"), state_dict.get("processed_num")
        most = len(self.dataset)
        if (
            type(epoch) is not int
            or type(processed) is not int
            or not 0 <= processed <= most
        ):
            message = (
                f"a sampler of {most} samples cannot go on in epoch {epoch!r} after "
                f"{processed!r} of them"
            )
            raise ProgramError(message)
        self.epoch, self.processed_num = epoch, processed
        self.reset()

    def __iter__(self) -> Iterator[int]:
        """Begins a pass over what is left for this rank."""
        self.reset()
        return iter(self.indices)

    def __len__(self) -> int:
        """Returns how many samples this rank reads of what was left."""
        return len(self.indices)
