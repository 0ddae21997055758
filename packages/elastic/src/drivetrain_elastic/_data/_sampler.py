"""Distributed sampler whose position survives any change of the world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.utils.data import Sampler

from drivetrain_core import CheckpointError
from drivetrain_elastic._data._epoch_order import epoch_order, part_of_rank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sized

    from torch import Tensor

_VERSION = 1
# What must be the same where a position is saved and where it is loaded.
_SAME = ("num_samples", "shuffle", "seed")


class ElasticDistributedSampler(Sampler[int]):
    """Deals the samples of a dataset to ranks, and knows how far all of them are.

    Takes the place of `torch.utils.data.DistributedSampler`: the arguments are the same,
    and so is the order of an epoch that nothing interrupts. Its state may be saved at any
    step and loaded with any number of ranks, any number of times in an epoch: what was
    consumed is not read again, and nothing is left out.

    A position counts the samples of the epoch that all ranks together have consumed. It
    moves when `advance` says so: loaders read ahead, and a step may be thrown away, so
    that what was handed out says nothing of what was trained on. Torchdata's
    `StatefulDataLoader` keeps the position of each rank itself, and needs no call.

    Args:
        dataset: Whatever has a length.
        num_replicas: The number of ranks; that of the default process group, or 1.
        rank: This one, from 0; that of the default process group, or 0.
        shuffle: Whether each epoch has an order of its own.
        seed: Of these orders, the same on all ranks.
        drop_last: Whether the last samples are left out that do not go round.
        even: Whether otherwise some samples are read twice at the end of an epoch, fewer
            than there are ranks, so that every rank reads equally many, as torch's
            sampler does. Without it no sample is ever read twice, and the first ranks
            read one more: their gradients need `DistributedDataParallel.join`.

    Raises:
        ValueError: The dataset is empty, or a number is out of range.

    Example:
        >>> sampler = ElasticDistributedSampler(range(8), 4, 0, shuffle=False)
        >>> next(iter(sampler))
        0
        >>> sampler.advance(4)  # four ranks have trained on 0, 1, 2 and 3
        >>> state = sampler.state_dict()
        >>> resumed = ElasticDistributedSampler(range(8), 2, 1, shuffle=False)
        >>> resumed.load_state_dict(state)
        >>> list(resumed)
        [5, 7]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        even: bool = True,
    ) -> None:
        self.dataset = dataset
        self.epoch = 0
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.even = even
        self._num_samples = len(dataset)
        if self._num_samples == 0:
            message = "the dataset must have samples, got an empty one"
            raise ValueError(message)
        grouped = dist.is_available() and dist.is_initialized()
        if num_replicas is None:
            num_replicas = dist.get_world_size() if grouped else 1
        if rank is None:
            rank = dist.get_rank() if grouped else 0
        self.resize(num_replicas, rank)
        # Where the pass that is under way began, and what was consumed since.
        self._start = 0
        self._advanced = 0
        # A position that was loaded is where the next pass begins, and only that one.
        self._next_start: int | None = None

    def resize(self, num_replicas: int, rank: int) -> None:
        """Deals samples to other ranks from the next pass on.

        Args:
            num_replicas: The number of ranks.
            rank: This one.

        Raises:
            ValueError: There is no such rank.
        """
        if num_replicas < 1 or not 0 <= rank < num_replicas:
            message = f"there is no rank {rank} among {num_replicas} ranks"
            raise ValueError(message)
        self.num_replicas = num_replicas
        self.rank = rank

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, unless it is the one that is under way.

        Args:
            epoch: From 0; each has an order of its own.
        """
        if epoch != self.epoch:
            self._begin(epoch, None)

    @property
    def position(self) -> int:
        """How many samples of the epoch all ranks together have consumed."""
        if self._next_start is not None:
            return self._next_start
        return self._start + self._advanced

    def advance(self, num_samples: int) -> None:
        """Says that all ranks together have trained on more samples.

        Args:
            num_samples: Of all ranks; not those that were read to fill up an epoch.

        Raises:
            ValueError: It is negative, or more than the epoch has left.
        """
        left = self._num_samples - self.position
        if not 0 <= num_samples <= left:
            message = f"an epoch with {left} samples left cannot advance {num_samples}"
            raise ValueError(message)
        if self._next_start is not None:
            self._next_start += num_samples
        else:
            self._advanced += num_samples

    def __iter__(self) -> _Pass:
        """Begins a pass: from a position that was loaded, or over the whole epoch."""
        self._start = self._next_start or 0
        self._next_start = None
        self._advanced = 0
        return _Pass(self)

    def __len__(self) -> int:
        """Returns how many samples this rank reads in the next pass."""
        left = self._num_samples - (self._next_start or 0)
        each, extra = divmod(left, self.num_replicas)
        if self._tail == "uneven":
            return each + (self.rank < extra)
        return each + (extra > 0 and self._tail == "pad")

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, and what it must find where it is loaded."""
        return {
            "version": _VERSION,
            "epoch": self.epoch,
            "position": self.position,
            "num_samples": self._num_samples,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "drop_last": self.drop_last,
            "even": self.even,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next pass begin at a position that was saved.

        Args:
            state_dict: What `state_dict` returned, for any number of ranks.

        Raises:
            CheckpointError: It is damaged, of another version, or of other data; this
                sampler stays as it is.
        """
        version = state_dict.get("version")
        if version != _VERSION:
            message = (
                f"the sampler's state has version {version!r}, this version of "
                f"Drivetrain reads {_VERSION}"
            )
            raise CheckpointError(message)
        mine = self.state_dict()
        for name in _SAME:
            if state_dict.get(name) != mine[name]:
                message = (
                    f"the sampler's state was saved with {name} "
                    f"{state_dict.get(name)!r}, and is loaded with {mine[name]!r}: its "
                    "position would mean other samples"
                )
                raise CheckpointError(message)
        epoch, position = state_dict.get("epoch"), state_dict.get("position")
        if type(epoch) is not int or epoch < 0:
            message = f"the sampler's state has the epoch {epoch!r}"
            raise CheckpointError(message)
        if type(position) is not int or not 0 <= position <= self._num_samples:
            message = (
                f"the sampler's state has the position {position!r} in a dataset of "
                f"{self._num_samples} samples"
            )
            raise CheckpointError(message)
        self._begin(epoch, position)

    def _begin(self, epoch: int, position: int | None) -> None:
        self.epoch = epoch
        self._start = 0
        self._next_start = position
        self._advanced = 0

    @property
    def _tail(self) -> str:
        if self.drop_last:
            return "drop"
        return "pad" if self.even else "uneven"

    def _part(self) -> Tensor:
        order = epoch_order(
            self._num_samples, epoch=self.epoch, seed=self.seed, shuffle=self.shuffle
        )
        return part_of_rank(
            order,
            self._start,
            world_size=self.num_replicas,
            rank=self.rank,
            tail=self._tail,
        )


class _Pass:
    """The samples of one rank from a position on; its own state is for data loaders."""

    def __init__(self, sampler: ElasticDistributedSampler) -> None:
        self._sampler = sampler
        self._begin()

    def _begin(self) -> None:
        self._num_replicas = self._sampler.num_replicas
        self._indices = self._sampler._part()
        self._at = 0

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> int:
        if self._at == len(self._indices):
            raise StopIteration
        self._at += 1
        return int(self._indices[self._at - 1])

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of all ranks, if each is as far as this one."""
        sampler = self._sampler
        position = sampler._start + self._at * self._num_replicas
        return {**sampler.state_dict(), "position": min(position, sampler._num_samples)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from a position of any number of ranks."""
        sampler = self._sampler
        sampler.load_state_dict(state_dict)
        sampler._start = sampler._next_start or 0
        sampler._next_start = None
        self._begin()
