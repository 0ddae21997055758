"""The nodes of a job, of which the master's own function says who trains together.

What the master calls a node with its slots is here a copy of the model with its nodes, and
a worker is a node: whole copies train, and one that lacks a node stands by.

Copies that nothing has happened to are alike. They are left out of the state that is
decided on, and so are their places in the bounds of the world, which changes no decision
and makes its time independent of the size of the job; a test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drivetrain_elastic.decisions.membership import (
    MembershipConfig,
    MembershipState,
    Status,
    Worker,
    World,
    next_world,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class Formed(NamedTuple):
    """What was decided about the world.

    Attributes:
        num_active: How many nodes train; 0 when they are too few.
        wait_s: How long the decision waited for more.
    """

    num_active: int
    wait_s: float


class Fleet:
    """The places of nodes in a job, and which of them are in the world.

    Args:
        num_nodes: The places; all are taken at first.
        nodes_per_copy: Nodes that hold one copy of the model.
        min_nodes: With fewer no world is formed.
        settle_s: How long a world that only grows waits for more.
        is_lean: Whether copies that nothing has happened to are left out of the state.

    Example:
        >>> fleet = Fleet(num_nodes=8, nodes_per_copy=2, min_nodes=2)
        >>> fleet.lose([5])
        >>> fleet.form(0.0)
        Formed(num_active=6, wait_s=0.0)
        >>> fleet.fill([5], 1.0)
        >>> fleet.form(1.0)
        Formed(num_active=8, wait_s=0.0)
    """

    def __init__(
        self,
        *,
        num_nodes: int,
        nodes_per_copy: int = 1,
        min_nodes: int = 1,
        settle_s: float = 0.0,
        is_lean: bool = True,
    ) -> None:
        self._unit = nodes_per_copy
        self._num_nodes = num_nodes
        self._min_nodes = min_nodes
        self._settle_s = settle_s
        self._num_copies = num_nodes // nodes_per_copy
        self._state = MembershipState(world=World(1, (), "all are there"))
        self._shown: set[int] = set()
        self._names: dict[int, str] = {}
        self._num_made = 0
        self._is_lean = is_lean
        self.num_active = num_nodes
        self.missing: set[int] = set()
        if not is_lean:
            for copy in range(self._num_copies):
                self._show(copy)

    @property
    def num_hidden(self) -> int:
        """How many nodes are left out of the state."""
        return (self._num_copies - len(self._shown)) * self._unit

    def has_state(self) -> bool:
        """Returns whether somebody who is left has a whole copy of the training's state."""
        if self.num_hidden:
            return True
        whole: dict[str, int] = {}
        for worker in self._state.workers.values():
            whole[worker.node] = whole.get(worker.node, 0) + worker.has_state
        return any(count == self._unit for count in whole.values())

    def is_active(self, place: int) -> bool:
        """Returns whether the node of a place was in the last world, and still is there."""
        if place // self._unit not in self._shown:
            return True
        name = self._names.get(place)
        worker = self._state.workers.get(name) if name else None
        return worker is not None and worker.status == Status.MEMBER

    def lose(self, places: Iterable[int]) -> None:
        """Takes the nodes out of some places."""
        for place in places:
            self._show(place // self._unit)
            name = self._names.pop(place, None)
            if name is not None:
                self._state.remove([name])
                self.missing.add(place)

    def fill(self, places: Iterable[int], now_s: float) -> None:
        """Puts nodes that are ready into places that are empty."""
        for place in places:
            self.missing.remove(place)
            name = self._add(place, Status.STANDBY)
            self._state.set_status(name, Status.STANDBY, now_s)

    def form(self, now_s: float) -> Formed:
        """Forms the next world, if it changes.

        Args:
            now_s: The time.
        """
        self._show_one_whole()
        hidden = self.num_hidden
        config = MembershipConfig(
            min_workers=max(1, self._min_nodes - hidden),
            max_workers=self._num_nodes - hidden,
            unit=self._unit,
            settle_s=self._settle_s,
        )
        verdict = next_world(now_s, self._state, config)
        wait_s = verdict.wait_s or 0.0
        if verdict.wait_s is not None:
            verdict = next_world(now_s + wait_s, self._state, config)
        if verdict.is_short:
            self.num_active = 0
            return Formed(0, wait_s)
        if verdict.world is not None:
            self._state.enter(verdict.world)
            for name in verdict.world.members:
                self._state.set_has_state(name)
        assert self._state.world is not None
        self.num_active = hidden + len(self._state.world.members)
        self._hide()
        return Formed(self.num_active, wait_s)

    def _show(self, copy: int) -> None:
        """Puts the nodes of a copy into the state."""
        if copy in self._shown:
            return
        self._shown.add(copy)
        first = copy * self._unit
        names = [self._add(first + i, Status.MEMBER) for i in range(self._unit)]
        for name in names:
            self._state.set_has_state(name)
        world = self._state.world
        assert world is not None
        self._state.world = world._replace(members=(*world.members, *names))

    def _show_one_whole(self) -> None:
        """Keeps a copy in the state that trains, as long as there is any.

        Else the state would look like that of a job of which nobody is left.
        """
        if not self._well():
            hidden = (n for n in range(self._num_copies) if n not in self._shown)
            copy = next(hidden, None)
            if copy is not None:
                self._show(copy)

    def _hide(self) -> None:
        """Leaves copies out again that are whole and train."""
        for copy in self._well()[1:] if self._is_lean else ():
            self._forget(copy)

    def _well(self) -> list[int]:
        """Returns the copies in the state that are whole and train."""
        counts: dict[str, int] = {}
        for worker in self._state.workers.values():
            is_well = worker.status == Status.MEMBER and worker.has_state
            counts[worker.node] = counts.get(worker.node, 0) + is_well
        return [int(node) for node, count in counts.items() if count == self._unit]

    def _forget(self, copy: int) -> None:
        first = copy * self._unit
        names = {self._names.pop(first + i) for i in range(self._unit)}
        self._state.remove(names)
        self._state.nodes.remove(str(copy))
        self._shown.remove(copy)
        world = self._state.world
        assert world is not None
        members = tuple(name for name in world.members if name not in names)
        self._state.world = world._replace(members=members)

    def _add(self, place: int, status: Status) -> str:
        self._num_made += 1
        name = f"{place}.{self._num_made}"
        copy, slot = divmod(place, self._unit)
        self._names[place] = name
        self._state.add(Worker(name, str(copy), slot, status))
        return name
