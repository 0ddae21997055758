"""Who trains together: the world of ranks, from one change of membership to the next.

A worker is a process that can hold a rank. A world is an ordered set of workers, numbered
by an epoch that only grows. Whoever dies leaves at once, and the rest go on without it if
they are enough; whoever is to leave, or is ready to join, changes the world at the end of
a step. If nobody who stays has the state of the training, one copy of those who leave is in
the next world too, until somebody has made a step there.

              ready            in the next world
    starting ------> standby ------------------> member ---> gone
                        ^                          |
                        '----- one too many -------'
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet


class Status(StrEnum):
    """What a worker is doing."""

    STARTING = "starting"
    STANDBY = "standby"
    MEMBER = "member"
    LEAVING = "leaving"


class Worker(NamedTuple):
    """A process that can hold a rank.

    Attributes:
        name: Which one; no two workers of a job ever have the same.
        node: Where it runs.
        slot: Its place on the node, from 0; nobody else has it.
        status: What it is doing.
        has_state: Whether it has made a step.
    """

    name: str
    node: str
    slot: int
    status: Status = Status.STARTING
    has_state: bool = False


class World(NamedTuple):
    """Workers that train together.

    Attributes:
        epoch: Counts the worlds of a job, from 1.
        members: The names of the workers, by rank.
        reason: Why the world is what it is, for people.
        broken_epoch: The last world in which somebody was lost, or collectives failed:
            whoever is still in it waits in vain.
    """

    epoch: int
    members: tuple[str, ...]
    reason: str
    broken_epoch: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MembershipConfig:
    """What a world may be.

    Args:
        min_workers: No step is made with fewer.
        max_workers: More stand by.
        unit: Worlds have a multiple of so many workers, those whose slots on a node make
            up a copy of the model; a copy that is not whole stands by.
        last_call_s: How long the first world waits for more than the least.
        settle_s: How long a world that only grows, or that is broken though nobody is
            gone, waits for what else may come.

    Raises:
        ProgramError: The numbers contradict each other.
    """

    min_workers: int
    max_workers: int
    unit: int = 1
    last_call_s: float = 1.0
    settle_s: float = 0.1

    def __post_init__(self) -> None:
        """Checks the numbers."""
        if self.unit < 1 or self.min_workers < 1:
            message = (
                "min_workers and unit must be at least 1, got "
                f"{self.min_workers} and {self.unit}"
            )
            raise ProgramError(message)
        if self.min_workers > self.max_workers:
            message = (
                f"min_workers must not be more than max_workers, got "
                f"{self.min_workers} and {self.max_workers}"
            )
            raise ProgramError(message)
        if self.max_workers // self.unit * self.unit < self.min_workers:
            message = (
                f"no multiple of unit {self.unit} lies from {self.min_workers} to "
                f"{self.max_workers}"
            )
            raise ProgramError(message)


@dataclass(kw_only=True, slots=True)
class MembershipState:
    """The workers of a job and their world.

    Attributes:
        workers: All that are there, by name.
        nodes: Nodes in the order in which they first came, which is that of ranks.
        world: The last one; None before the first.
        last_join_s: When a worker last became ready.
        broken_s: When the world was found broken; None while it is whole.
        broken_why: What was found.
        admitted: The nodes that may train; None for all.
    """

    workers: dict[str, Worker] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    world: World | None = None
    last_join_s: float = 0.0
    broken_s: float | None = None
    broken_why: str = ""
    admitted: frozenset[str] | None = None

    def may_train(self, worker: Worker) -> bool:
        """Whether a worker's node may train."""
        return self.admitted is None or worker.node in self.admitted

    def add(self, worker: Worker) -> None:
        """Takes in a worker."""
        self.workers[worker.name] = worker
        if worker.node not in self.nodes:
            self.nodes.append(worker.node)

    def remove(self, names: Iterable[str]) -> None:
        """Forgets workers that are gone."""
        for name in names:
            self.workers.pop(name, None)

    def set_status(self, name: str, status: Status, now_s: float) -> None:
        """Notes what a worker is doing."""
        self.workers[name] = self.workers[name]._replace(status=status)
        if status == Status.STANDBY:
            self.last_join_s = now_s

    def set_has_state(self, name: str) -> bool:
        """Notes that a worker has made a step; returns whether that is news."""
        worker = self.workers.get(name)
        if worker is None or worker.has_state:
            return False
        self.workers[name] = worker._replace(has_state=True)
        return True

    def set_broken(self, epoch: int, why: str, now_s: float) -> None:
        """Notes that the collectives of a world fail, if it is the current one."""
        is_current = self.world is not None and epoch == self.world.epoch
        if is_current and self.broken_s is None:
            self.broken_s, self.broken_why = now_s, why

    def enter(self, world: World) -> None:
        """Makes a world the current one."""
        self.world = world
        self.broken_s = None
        members = set(world.members)
        for name, worker in self.workers.items():
            status = worker.status
            if status == Status.LEAVING:
                continue
            if name in members:
                status = Status.MEMBER
            elif status == Status.MEMBER:
                status = Status.STANDBY
            self.workers[name] = worker._replace(status=status)


class Verdict(NamedTuple):
    """What `next_world` decided.

    Attributes:
        world: The next world; None to keep what stands.
        reason: Why.
        wait_s: After how many seconds to ask again; None when something has changed.
        is_short: Whether too few workers are left to train at all.
    """

    world: World | None
    reason: str
    wait_s: float | None = None
    is_short: bool = False


def next_world(
    now_s: float, state: MembershipState, config: MembershipConfig
) -> Verdict:
    """Decides whether the world changes, and into what.

    Args:
        now_s: The time, on the master's monotonic clock.
        state: Of the workers.
        config: What a world may be.

    Example:
        >>> state = MembershipState()
        >>> for slot in range(3):
        ...     state.add(Worker(f"a/{slot}", "a", slot, Status.STANDBY))
        >>> config = MembershipConfig(min_workers=2, max_workers=3)
        >>> state.enter(next_world(0.0, state, config).world)
        >>> state.remove(["a/1"])
        >>> next_world(0.0, state, config).world
        World(epoch=2, members=('a/0', 'a/2'), reason='a/1 is gone', broken_epoch=1)
    """
    if state.admitted is not None and not state.admitted:
        return _pause(state, "training is paused: no node may train")
    copies = [
        copy
        for copy in _whole_copies(state, config.unit, _ABLE)
        if state.may_train(copy[0])
    ]
    num_able = len(copies) * config.unit
    size = min(num_able, config.max_workers // config.unit * config.unit)
    if size < config.min_workers:
        reason = f"{num_able} workers are ready, of {config.min_workers} at least"
        if _may_leave(state, config.unit):
            return _pause(state, f"without those that leave, {reason}")
        return Verdict(None, reason, is_short=True)
    current = state.world
    if current is None:
        wait_s = state.last_join_s + config.last_call_s - now_s
        if size < config.max_workers and wait_s > 0:
            return Verdict(None, "more workers may come", wait_s=wait_s)
        members = _in_order(copies[: size // config.unit], state)
        reason = f"{size} workers are ready"
        return Verdict(World(1, members, reason), reason)
    chosen = copies[: size // config.unit]
    chosen += _carriers(chosen, state, config.unit)
    members = _in_order(chosen, state)
    reason = _difference(current, members, state)
    if members == current.members:
        if state.broken_s is None:
            return Verdict(None, "nothing has changed")
        reason = f"collectives failed: {state.broken_why}"
        wait_s = state.broken_s + config.settle_s - now_s
    elif set(current.members) <= set(members):
        wait_s = state.last_join_s + config.settle_s - now_s
    else:
        wait_s = 0.0
    if wait_s > 0:
        return Verdict(None, reason, wait_s=wait_s)
    return Verdict(_after(current, members, reason, state), reason)


def _may_leave(state: MembershipState, unit: int) -> bool:
    """Whether ranks leave a world that is not to be followed by another one now.

    Those that stay wait for others with the state. One that is new would need it first.
    """
    if all(one.status != Status.LEAVING for one in state.workers.values()):
        return False
    stay = _whole_copies(state, unit, frozenset(Status) - _LEAVING)
    return not stay or any(all(one.has_state for one in copy) for copy in stay)


def _pause(state: MembershipState, reason: str) -> Verdict:
    """Returns a world of nobody, which its ranks enter at the end of a step."""
    current = state.world
    if current is None or not current.members:
        return Verdict(None, reason, is_short=True)
    return Verdict(_after(current, (), reason, state), reason, is_short=True)


def _after(
    current: World, members: tuple[str, ...], reason: str, state: MembershipState
) -> World:
    is_lost = any(name not in state.workers for name in current.members)
    is_broken = is_lost or state.broken_s is not None
    broken_epoch = current.epoch if is_broken else current.broken_epoch
    return World(current.epoch + 1, members, reason, broken_epoch)


def can_do_without(node: str, state: MembershipState, config: MembershipConfig) -> bool:
    """Returns whether workers of other nodes, and those that stand by, are enough.

    Args:
        node: Which node may go.
        state: Of the workers.
        config: What a world may be.
    """
    others = [
        one
        for one in state.workers.values()
        if one.node != node and one.status in _ABLE
    ]
    return len(others) >= config.min_workers


_ABLE = frozenset({Status.MEMBER, Status.STANDBY})
_LEAVING = frozenset({Status.LEAVING})


def _carriers(
    chosen: Sequence[Sequence[Worker]], state: MembershipState, unit: int
) -> list[list[Worker]]:
    """Returns a copy that is to go and alone has the state, if there is one."""
    if any(all(one.has_state for one in copy) for copy in chosen):
        return []
    leaving = _whole_copies(state, unit, _LEAVING)
    leaving += [
        copy
        for copy in _whole_copies(state, unit, _ABLE)
        if not state.may_train(copy[0])
    ]
    return [copy for copy in leaving if all(one.has_state for one in copy)][:1]


def _whole_copies(
    state: MembershipState, unit: int, statuses: AbstractSet[Status]
) -> list[list[Worker]]:
    """Returns the copies of the model of some statuses, those that take part first."""
    order = {node: at for at, node in enumerate(state.nodes)}
    copies: dict[tuple[int, int], list[Worker]] = {}
    for worker in state.workers.values():
        if worker.status in statuses:
            place = order[worker.node], worker.slot // unit
            copies.setdefault(place, []).append(worker)
    whole = [
        (any(one.status != Status.MEMBER for one in copy), place, copy)
        for place, copy in copies.items()
        if len(copy) == unit
    ]
    # Members stay: one that stands by only takes a place that is free.
    whole.sort(key=lambda entry: entry[:2])
    return [copy for _, _, copy in whole]


def _in_order(
    copies: Sequence[Sequence[Worker]], state: MembershipState
) -> tuple[str, ...]:
    order = {node: at for at, node in enumerate(state.nodes)}
    chosen = [worker for copy in copies for worker in copy]
    chosen.sort(key=lambda one: (order[one.node], one.slot))
    return tuple(worker.name for worker in chosen)


def _difference(
    current: World, members: tuple[str, ...], state: MembershipState
) -> str:
    parts = []
    before, after = set(current.members), set(members)
    lost = [name for name in current.members if name not in after]
    stay = [n for n in members if state.workers[n].status == Status.LEAVING]
    for says, names in (
        ("gone", [n for n in lost if n not in state.workers]),
        ("leaving", [n for n in lost if n in state.workers]),
        ("new", [n for n in members if n not in before]),
        ("leaving when another one has the state", stay),
    ):
        if names:
            verb = "is" if len(names) == 1 else "are"
            parts.append(f"{', '.join(names)} {verb} {says}")
    return "; ".join(parts)
