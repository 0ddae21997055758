"""Which worker reads which part of a dataset: leases, returns and dead letters.

The samples of an epoch stand in an order of their own. A shard is a range of places in
it. Every shard of every epoch is, at any time, in exactly one of these states:

    to do -> leased -> done
      ^        |
      |        |-----> dead (failed too often; kept for a person to look at)
      '--------'

A lease has a fence, a number that no other lease has: what a worker reports about a shard
counts only with the fence under which it holds it. Part of a shard may be committed; what
is returned is the rest.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from drivetrain_core import ProgramError
from drivetrain_elastic.decisions.interval_set import IntervalSet
from drivetrain_elastic.decisions.permutation import permuted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

_SHUFFLES = ("none", "samples", "shards")
# Places of so many can be permuted, and their numbers fit a message.
_MOST_SAMPLES = 1 << 60
# What one reply has at most: more would keep others waiting for it, or find no room in it.
_MOST_LEASES, _MOST_INDICES = 1_000, 1 << 20
# Of so many that let a source grow it is known what they have done: those who did last.
_MOST_CALLERS = 10_000


class Shard(NamedTuple):
    """A range of places in the order of an epoch.

    Attributes:
        number: Which shard of the dataset it is, in the order in which they are dealt.
        epoch: Which pass over the dataset.
        start: The first place.
        end: One after the last.
        num_failures: How often a worker failed on it.
    """

    number: int
    epoch: int
    start: int
    end: int
    num_failures: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSpec:
    """A dataset, and how it is dealt out.

    Args:
        name: What workers call it.
        num_samples: How many samples there are; None for a source that grows.
        shard_size: The samples of a shard.
        num_epochs: How often it is read; None for as long as workers ask.
        shuffle: `none`; `samples`, each epoch in an order of its own; or `shards`, which
            keeps the samples of a shard together.
        seed: Of these orders.
        max_failures: How often a shard may come back because it failed. After that it is
            a dead letter.

    Raises:
        ProgramError: A value is out of range.
    """

    name: str
    num_samples: int | None
    shard_size: int
    num_epochs: int | None = 1
    shuffle: str = "samples"
    seed: int = 0
    max_failures: int = 3

    def __post_init__(self) -> None:
        """Checks the values."""
        for name, value, least in (
            ("num_samples", self.num_samples, 1),
            ("shard_size", self.shard_size, 1),
            ("num_epochs", self.num_epochs, 1),
            ("max_failures", self.max_failures, 0),
        ):
            if value is not None and value < least:
                message = (
                    f"dataset {self.name!r}: {name} must be at least {least}, "
                    f"got {value}"
                )
                raise ProgramError(message)
        if self.num_samples is not None and self.num_samples > _MOST_SAMPLES:
            message = (
                f"dataset {self.name!r}: num_samples must be at most {_MOST_SAMPLES}, "
                f"got {self.num_samples}"
            )
            raise ProgramError(message)
        if not self.name:
            message = "a dataset must have a name"
            raise ProgramError(message)
        if self.shuffle not in _SHUFFLES:
            message = (
                f"dataset {self.name!r}: shuffle must be one of {', '.join(_SHUFFLES)}, "
                f"got {self.shuffle!r}"
            )
            raise ProgramError(message)
        if self.num_samples is None and (
            self.shuffle != "none" or self.num_epochs != 1
        ):
            message = (
                f"dataset {self.name!r} grows: it is read once, in its own order; "
                'num_samples=None needs shuffle="none" and num_epochs=1'
            )
            raise ProgramError(message)

    @property
    def num_shards(self) -> int | None:
        """The shards of an epoch, or None for a source that grows."""
        if self.num_samples is None:
            return None
        return -(-self.num_samples // self.shard_size)


class Lease(NamedTuple):
    """A shard that a worker holds.

    Attributes:
        fence: Which lease it is; later ones have higher numbers.
        shard: What is left of the shard.
        worker: Who holds it.
    """

    fence: int
    shard: Shard
    worker: str


class Leased(NamedTuple):
    """Workers got shards."""

    leases: tuple[Lease, ...]


class Committed(NamedTuple):
    """Samples of a shard count as read, up to a place."""

    fence: int
    upto: int


class Returned(NamedTuple):
    """A lease ended, and what was left of the shard waits for another."""

    fence: int
    failed: bool
    reason: str


class Appended(NamedTuple):
    """A source has grown, by the call of this number of somebody who may repeat it."""

    num_samples: int
    caller: str = ""
    call: int = 0


class Closed(NamedTuple):
    """A source grows no more."""


Event = Leased | Committed | Returned | Appended | Closed


@dataclass(kw_only=True, slots=True)
class DatasetState:
    """Where all shards of a dataset are.

    Args:
        spec: The dataset.

    Attributes:
        next_shard: The number of the first shard that was never leased, over all epochs.
        num_samples: How many samples there are by now.
        is_closed: Whether that is final.
        waiting: Shards that came back, the first to be leased again.
        leased: By fence.
        dead: Shards that failed too often, with the last reason.
        next_fence: Of the next lease.
        done: The fences of shards that were read to their end.
        num_samples_done: Samples that were committed.
        growths: The number of the last growth of each caller; who grew last is last.
    """

    spec: DatasetSpec
    next_shard: int = 0
    num_samples: int = 0
    is_closed: bool = False
    waiting: deque[Shard] = field(default_factory=deque)
    leased: dict[int, Lease] = field(default_factory=dict)
    dead: list[tuple[Shard, str]] = field(default_factory=list)
    next_fence: int = 1
    done: IntervalSet = field(default_factory=IntervalSet)
    num_samples_done: int = 0
    growths: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        """Counts the samples of a dataset that does not grow."""
        if self.spec.num_samples is not None:
            self.num_samples = self.spec.num_samples
            self.is_closed = True

    @property
    def is_finished(self) -> bool:
        """Whether every shard is done or dead."""
        return not self.leased and not self.waiting and self._fresh(0) is None

    def fresh(self) -> Iterator[Shard]:
        """Yields the shards that were never leased."""
        number = 0
        while (shard := self._fresh(number)) is not None:
            yield shard
            number += 1

    def _fresh(self, ahead: int) -> Shard | None:
        spec, number = self.spec, self.next_shard + ahead
        epoch, place = 0, number
        if spec.num_shards is not None:
            epoch, place = divmod(number, spec.num_shards)
            if spec.shuffle == "shards":
                (place,) = permuted(
                    place, place + 1, num=spec.num_shards, seed=spec.seed, epoch=epoch
                ).tolist()
        if spec.num_epochs is not None and epoch >= spec.num_epochs:
            return None
        start = place * spec.shard_size
        end = min(start + spec.shard_size, self.num_samples)
        if start >= end or (end - start < spec.shard_size and not self.is_closed):
            return None
        return Shard(number, epoch, start, end)

    def apply(self, event: Event) -> None:
        """Changes the state as an event says; the event was decided on this state."""
        match event:
            case Leased(leases):
                for one in leases:
                    if one.shard.number >= self.next_shard:
                        self.next_shard = one.shard.number + 1
                    else:
                        self.waiting.popleft()
                    self.leased[one.fence] = one
                    self.next_fence = one.fence + 1
            case Committed(fence, upto):
                one = self.leased[fence]
                self.num_samples_done += upto - one.shard.start
                if upto == one.shard.end:
                    del self.leased[fence]
                    self.done.add(fence)
                else:
                    self.leased[fence] = one._replace(
                        shard=one.shard._replace(start=upto)
                    )
            case Returned(fence, failed, reason):
                shard = self.leased.pop(fence).shard
                shard = shard._replace(num_failures=shard.num_failures + failed)
                if shard.num_failures > self.spec.max_failures:
                    self.dead.append((shard, reason))
                else:
                    self.waiting.append(shard)
            case Appended(num_samples, caller, call):
                self.num_samples += num_samples
                if caller:
                    self.growths[caller] = call
                    self.growths.move_to_end(caller)
                    if len(self.growths) > _MOST_CALLERS:
                        self.growths.popitem(last=False)
            case Closed():
                self.is_closed = True


def indices_of(
    spec: DatasetSpec, *, epoch: int, start: int, end: int
) -> NDArray[np.int64]:
    """Returns the samples at some places of an epoch.

    Args:
        spec: The dataset.
        epoch: Which pass over it.
        start: The first place.
        end: One after the last place.

    Example:
        >>> spec = DatasetSpec(name="d", num_samples=6, shard_size=3)
        >>> halves = (indices_of(spec, epoch=0, start=at, end=at + 3) for at in (0, 3))
        >>> sorted(index for half in halves for index in half.tolist())
        [0, 1, 2, 3, 4, 5]
    """
    if spec.shuffle != "samples" or spec.num_samples is None:
        return np.arange(start, end, dtype=np.int64)
    return permuted(start, end, num=spec.num_samples, seed=spec.seed, epoch=epoch)


def num_with_indices(spec: DatasetSpec, num_shards: int) -> int:
    """Returns how many shards a reply can have if all their samples are named in it.

    Args:
        spec: The dataset.
        num_shards: How many are asked for.

    Raises:
        ProgramError: Not even one.
    """
    size = min(spec.shard_size, spec.num_samples or spec.shard_size)
    if size > _MOST_INDICES:
        message = (
            f"dataset {spec.name!r}: a shard of {size} samples is too large for a reply "
            f"with their indices, which has {_MOST_INDICES} at most; ask without them, or "
            f"make shards smaller"
        )
        raise ProgramError(message)
    return min(num_shards, _MOST_INDICES // size)


def lease(state: DatasetState, worker: str, num_shards: int) -> Leased | None:
    """Returns what a worker gets: what came back first, then what is fresh.

    Args:
        state: Of the dataset.
        worker: Who asks.
        num_shards: How many at most; it gets no more than 1,000 at once.

    Returns:
        None if nothing is to be had: all is done, or leased, or has not come yet.
    """
    num_shards = min(num_shards, _MOST_LEASES)
    shards = list(islice(state.waiting, num_shards))
    fresh = state.fresh()
    while len(shards) < num_shards and (shard := next(fresh, None)) is not None:
        shards.append(shard)
    if not shards:
        return None
    return Leased(
        tuple(
            Lease(state.next_fence + i, shard, worker) for i, shard in enumerate(shards)
        )
    )


def commit(
    state: DatasetState, worker: str, fence: int, upto: int
) -> tuple[Committed | None, str]:
    """Decides whether samples that a worker reports count as read.

    Args:
        state: Of the dataset.
        worker: Who reports.
        fence: Of its lease.
        upto: One after the last place that it has read.

    Returns:
        What happens, and an empty string; or None, and why it does not count. A report
        that repeats an earlier one changes nothing, and is right.
    """
    held = state.leased.get(fence)
    if held is None and fence in state.done:
        return None, ""
    if held is None:
        return None, f"lease {fence} of dataset {state.spec.name!r} has ended"
    if held.worker != worker:
        return None, f"lease {fence} is held by {held.worker}, not by {worker}"
    if not held.shard.start <= upto <= held.shard.end:
        return None, (
            f"place {upto} does not lie in the shard from {held.shard.start} to "
            f"{held.shard.end} of lease {fence}"
        )
    if upto == held.shard.start:
        return None, ""
    return Committed(fence, upto), ""


def give_back(
    state: DatasetState,
    worker: str,
    fences: Iterable[int],
    *,
    failed: bool,
    reason: str,
) -> tuple[list[Returned], list[str]]:
    """Decides what happens to leases that a worker does not want any more.

    Args:
        state: Of the dataset.
        worker: Who gives them back.
        fences: Of its leases.
        failed: Whether the shards may be the cause.
        reason: Why, for people.

    Returns:
        What happens, and for each fence an empty string, or why it is not the worker's to
        give back. One that has ended, as it has when this repeats an earlier return, is
        right, and changes nothing.
    """
    events: dict[int, Returned] = {}
    refusals = []
    for fence in fences:
        held, why = state.leased.get(fence), ""
        if held is not None and held.worker != worker:
            why = f"lease {fence} is held by {held.worker}, not by {worker}"
        elif held is not None:
            events[fence] = Returned(fence, failed, reason)
        elif fence in state.done:
            why = f"all samples of lease {fence} are committed"
        elif not 0 < fence < state.next_fence:
            why = f"dataset {state.spec.name!r} has had no lease {fence}"
        refusals.append(why)
    return list(events.values()), refusals


def return_of(
    state: DatasetState, workers: Iterable[str], *, failed: bool, reason: str
) -> list[Returned]:
    """Returns what happens to the leases of workers that are gone.

    Args:
        state: Of the dataset.
        workers: Who is gone.
        failed: Whether the shards may be the cause. A node that was taken away says
            nothing about what was read on it.
        reason: Why, for people.
    """
    gone = set(workers)
    return [
        Returned(one.fence, failed, reason)
        for one in state.leased.values()
        if one.worker in gone
    ]


def append(
    state: DatasetState, num_samples: int, caller: str = "", call: int = 0
) -> tuple[Appended | None, str]:
    """Decides whether a source grows.

    Args:
        state: Of the dataset.
        num_samples: How many samples come.
        caller: Who says so, by a name that is its own; empty if it repeats nothing.
        call: Its how-manieth growth this is, from 1.

    Returns:
        What happens, and an empty string; or None, and why it may not grow. A growth that
        repeats an earlier one changes nothing, and is right.
    """
    if caller and call < 1:
        return None, f"the growths of a caller are numbered from 1, got {call}"
    if caller and call <= state.growths.get(caller, 0):
        return None, ""
    if state.is_closed:
        return None, f"dataset {state.spec.name!r} grows no more"
    if num_samples < 1:
        return None, f"a source grows by at least 1 sample, not by {num_samples}"
    if state.num_samples + num_samples > _MOST_SAMPLES:
        return None, (
            f"dataset {state.spec.name!r} has {state.num_samples} samples, and can have "
            f"{_MOST_SAMPLES}: not {num_samples} more"
        )
    return Appended(num_samples, caller, call), ""
