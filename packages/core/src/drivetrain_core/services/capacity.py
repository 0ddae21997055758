"""How a training loop hears that nodes will go, and that the world has changed."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityNotice:
    """A node is to go: a spot instance is reclaimed, a machine is drained.

    A later notice for the same node replaces an earlier one; one whose deadline is
    infinite withdraws it.

    Args:
        deadline_s: When the node may be gone, as `time.monotonic()` counts on the
            machine that hears of it. Clocks of machines are never compared: a notice
            that crosses a wire carries the seconds that are left.
        node: The node's name, as `Membership.nodes` has it.
        reason: Who says so and why, for people.

    Raises:
        ValueError: The deadline is not a number, or no node is named.

    Example:
        >>> notice = CapacityNotice.within(30, node="worker-3", reason="spot reclaim")
        >>> 29 < notice.remaining_s() <= 30
        True
    """

    deadline_s: float
    node: str
    reason: str

    def __post_init__(self) -> None:
        """Checks the fields."""
        if math.isnan(self.deadline_s):
            message = "the deadline of a notice must be a number, got nan"
            raise ValueError(message)
        if not self.node:
            message = "a notice must name the node that is to go"
            raise ValueError(message)

    @classmethod
    def within(cls, seconds: float, *, node: str, reason: str) -> CapacityNotice:
        """Returns a notice for so many seconds from now."""
        return cls(deadline_s=time.monotonic() + seconds, node=node, reason=reason)

    @property
    def withdrawn(self) -> bool:
        """Whether this takes back an earlier notice for the node."""
        return self.deadline_s == math.inf

    def remaining_s(self, now_s: float | None = None) -> float:
        """Returns the seconds that are left, at least 0.

        Args:
            now_s: The time as `time.monotonic()` counts; now by default.
        """
        now_s = time.monotonic() if now_s is None else now_s
        return max(0.0, self.deadline_s - now_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """Who takes part in training, from one change of the world to the next.

    Args:
        epoch: Counts the changes; a higher one replaces a lower one.
        rank: The rank of this process.
        world_size: The number of ranks.
        nodes: The node of each rank, by rank.

    Raises:
        ValueError: The numbers contradict each other.

    Example:
        >>> Membership(epoch=2, rank=1, world_size=2, nodes=("a", "b")).nodes[1]
        'b'
    """

    epoch: int
    rank: int
    world_size: int
    nodes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Checks that the fields fit each other."""
        if self.epoch < 0:
            message = f"the epoch must be at least 0, got {self.epoch}"
            raise ValueError(message)
        if not 0 <= self.rank < self.world_size:
            message = f"there is no rank {self.rank} in a world of {self.world_size}"
            raise ValueError(message)
        if len(self.nodes) != self.world_size:
            message = (
                f"a world of {self.world_size} ranks needs the node of each, got "
                f"{len(self.nodes)}"
            )
            raise ValueError(message)


@runtime_checkable
class MembershipListener(Protocol):
    """What wants to hear of notices and changes.

    The calls come one at a time, in the same order for every listener, from a thread
    that is not the listener's: they must be quick and must not wait for a collective. A
    training loop takes note and acts at the next step. What a call raises is logged;
    the other listeners still hear.
    """

    def on_notice(self, notice: CapacityNotice) -> None:
        """Takes note that a node is to go, or is not."""
        ...

    def on_membership(self, membership: Membership) -> None:
        """Takes note that the world has changed."""
        ...


@runtime_checkable
class NoticeSource(Protocol):
    """What tells listeners of notices and changes."""

    def subscribe(self, listener: MembershipListener) -> Callable[[], None]:
        """Tells a listener what stands now, and then of each change.

        Args:
            listener: It first hears the current membership, if there is one, and the
                notices that stand.

        Returns:
            A function that ends the subscription; after it returns in the thread that
            tells, or after the call that is under way, the listener hears no more.
        """
        ...


class LocalNotices:
    """Tells the listeners of this process; the fallback `NoticeSource`.

    All methods may be called from any thread, and from a listener.

    Example:
        >>> class Printer:
        ...     def on_notice(self, notice):
        ...         print(notice.node, "is to go:", notice.reason)
        ...     def on_membership(self, membership):
        ...         print("epoch", membership.epoch)
        >>> notices = LocalNotices()
        >>> unsubscribe = notices.subscribe(Printer())
        >>> notices.publish(CapacityNotice.within(30, node="a", reason="drained"))
        a is to go: drained
        >>> unsubscribe()
    """

    def __init__(self) -> None:
        # Reentrant, since a signal handler may publish while its thread holds it.
        self._lock = threading.RLock()
        self._listeners: list[MembershipListener] = []
        self._membership: Membership | None = None
        self._notices: dict[str, CapacityNotice] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._calling = False

    def subscribe(self, listener: MembershipListener) -> Callable[[], None]:
        """Tells a listener what stands now, and then of each change."""

        def begin() -> None:
            with self._lock:
                self._listeners.append(listener)
                membership, notices = self._membership, list(self._notices.values())
            if membership is not None:
                _tell(listener, membership)
            for notice in notices:
                _tell(listener, notice)

        def end() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        self._run(begin)
        return end

    def publish(self, event: CapacityNotice | Membership) -> None:
        """Tells all listeners of an event.

        When it returns, they have heard, unless another thread is telling them of an
        earlier one: that thread tells them of this one, too. A membership that is not
        newer than the current one is left out.

        Args:
            event: A notice or a membership.
        """
        self._run(lambda: self._deliver(event))

    def _deliver(self, event: CapacityNotice | Membership) -> None:
        with self._lock:
            if isinstance(event, Membership):
                current = self._membership
                if current is not None and event.epoch <= current.epoch:
                    logger.info("membership %d is not news", event.epoch)
                    return
                self._membership = event
                for node in self._notices.keys() - set(event.nodes):
                    del self._notices[node]
            elif event.withdrawn:
                self._notices.pop(event.node, None)
            else:
                self._notices[event.node] = event
            listeners = list(self._listeners)
        for listener in listeners:
            if listener in self._listeners:
                _tell(listener, event)

    def _run(self, call: Callable[[], None]) -> None:
        """Runs a call after those before it; one thread runs them at a time."""
        with self._lock:
            self._calls.append(call)
            if self._calling:
                return
            self._calling = True
        while True:
            with self._lock:
                if not self._calls:
                    self._calling = False
                    return
                call = self._calls.popleft()
            try:
                call()
            except BaseException:  # an interrupt: let the next caller go on
                self._calling = False
                raise


def _tell(listener: MembershipListener, event: CapacityNotice | Membership) -> None:
    try:
        if isinstance(event, Membership):
            listener.on_membership(event)
        else:
            listener.on_notice(event)
    # One listener's fault must not keep the others from saving their state.
    except Exception:
        logger.exception("%r failed on %r", listener, event)
