"""A pool on this machine: agents as processes, taken away and given back by a trace."""

from __future__ import annotations

import contextlib
import math
import random
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

import psutil

from drivetrain_cloud.notices import CLOUDS, FakeCloud
from drivetrain_cloud.spot.capacity import Market
from drivetrain_cloud.spot.pool import PoolNode
from drivetrain_core import ProgramError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Sequence

# In a row; others would end as well.
_MOST_FAILED = 5


class CapacityChange(NamedTuple):
    """How many spot nodes there can be from some time on.

    Attributes:
        at_s: When, from the begin of the trace.
        nodes: How many.
    """

    at_s: float
    nodes: int


class PoolEvent(NamedTuple):
    """Something that has happened to a node.

    Attributes:
        at_s: When, from the begin of the trace.
        what: "came", "noticed", "killed" (at the deadline of its notice) or "ended".
        node: Which one.
    """

    at_s: float
    what: str
    node: str


@dataclass(kw_only=True, slots=True)
class _Machine:
    name: str
    market: Market
    kind: str
    notice_s: float
    cloud: FakeCloud
    process: subprocess.Popen[bytes] | None = None
    # Of the first look that finds the request.
    asked_s: float = math.inf
    deadline_s: float = math.inf
    is_released: bool = field(default=False)


class LocalPool:
    """Starts an agent for each node, and takes nodes away as a trace says.

    A node hears of it from a metadata endpoint of its own, as on a cloud, and is killed
    at the deadline if it is still there. The pool itself tells nobody.

    Args:
        start: Starts the agent of a node, given its name and the `--notices` that it
            listens to.
        trace: How many spot nodes there can be, by time; a constant for ever if it has
            one entry only. It begins with the first look.
        clouds: As which cloud a node's metadata endpoint answers, and how long before it
            is taken away; several take turns.
        boot_s: How long a node takes until its agent starts.
        seed: Of which node is taken away.
        offer: What a list of prices calls a node.
        may_start: Asked before an agent is started beside others.

    Attributes:
        trace: As given; a longer one may take its place.
        boot_s: How long a node takes until its agent starts.
        events: What has happened.
        began_s: When it was looked at first, as `time.monotonic()` counts; None before.

    Raises:
        ProgramError: The trace is empty, or its times are not in order.
    """

    def __init__(
        self,
        start: Callable[[str, str], subprocess.Popen[bytes]],
        trace: Sequence[CapacityChange],
        *,
        clouds: Sequence[tuple[str, float]] = (("aws", 120.0), ("gcp", 30.0)),
        boot_s: float = 0.0,
        seed: int = 0,
        offer: str = "",
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        _check(trace, clouds)
        if not 0 <= boot_s < math.inf:
            message = f"boot_s must be a number of seconds from 0, got {boot_s}"
            raise ProgramError(message)
        self._offer = offer
        self._may_start = may_start
        self._start = start
        self.trace = tuple(trace)
        self.boot_s = boot_s
        self._clouds = tuple(clouds)
        self._dice = random.Random(seed)
        self._machines: dict[str, _Machine] = {}
        self.began_s: float | None = None
        self._num_named = self._num_failed = 0
        self.events: list[PoolEvent] = []

    # ---- the pool ----

    def request(self, market: Market, count: int) -> tuple[str, ...]:
        """Asks for nodes; spot nodes come as the trace allows."""
        names = []
        for _ in range(count):
            name = f"{market.value}-{self._num_named}"
            kind, notice_s = self._clouds[self._num_named % len(self._clouds)]
            self._num_named += 1
            cloud = FakeCloud()
            cloud.__enter__()
            self._machines[name] = _Machine(
                name=name,
                market=market,
                kind=kind,
                notice_s=notice_s,
                cloud=cloud,
            )
            names.append(name)
        return tuple(names)

    def cancel(self, node: str) -> None:
        """Takes a request back."""
        machine = self._machines.get(node)
        if machine is not None and machine.process is None:
            self._drop(machine)

    def release(self, node: str) -> None:
        """Lets an agent end, with SIGTERM."""
        machine = self._machines.get(node)
        if machine is None:
            return
        if machine.process is None:
            self._drop(machine)
        elif not machine.is_released:
            machine.is_released = True
            machine.process.send_signal(signal.SIGTERM)

    def nodes(self, now_s: float) -> tuple[PoolNode, ...]:
        """Follows the trace up to now, and returns what there is.

        Raises:
            ProgramError: Agents end by themselves again and again.
        """
        if self.began_s is None:
            self.began_s = now_s
        for machine in list(self._machines.values()):
            self._look(machine, now_s)
        self._take_away(now_s)
        self._give(now_s)
        return tuple(
            PoolNode(
                name=machine.name,
                market=machine.market,
                is_running=machine.process is not None,
                offer=self._offer,
            )
            for machine in self._machines.values()
        )

    def offered(self, now_s: float) -> int:
        """Returns how many more nodes the trace has than were asked for."""
        return max(0, self._size(now_s) - len(self._spot(self._machines.values())))

    def reclaim(self, node: str, now_s: float) -> None:
        """Takes a node away, whatever the trace says.

        Args:
            node: Which one; it is there.
            now_s: The time.
        """
        machine = self._machines[node]
        machine.deadline_s = now_s + machine.notice_s
        machine.cloud.reclaim(machine.notice_s)
        self._note(now_s, "noticed", machine.name)

    def withdraw(self, node: str) -> None:
        """Takes back that a node is taken away.

        Args:
            node: Which one; it is there.
        """
        machine = self._machines[node]
        machine.deadline_s = math.inf
        machine.cloud.withdraw()

    # ---- the trace ----

    def _size(self, now_s: float) -> int:
        assert self.began_s is not None
        past = [c.nodes for c in self.trace if c.at_s <= now_s - self.began_s]
        return past[-1] if past else 0

    def _spot(self, machines: Iterable[_Machine]) -> list[_Machine]:
        return [
            one
            for one in machines
            if one.market == Market.SPOT and one.deadline_s == math.inf
        ]

    def _running(self) -> list[_Machine]:
        return [one for one in self._machines.values() if one.process is not None]

    def _look(self, machine: _Machine, now_s: float) -> None:
        if machine.process is None:
            return
        if machine.process.poll() is not None:
            self._note(now_s, "ended", machine.name)
            self._drop(machine)
            self._judge_end(machine, machine.process.returncode)
        elif now_s >= machine.deadline_s:
            self._note(now_s, "killed", machine.name)
            _kill(machine.process)
            self._drop(machine)

    def _judge_end(self, machine: _Machine, exit_code: int) -> None:
        is_asked = machine.is_released or machine.deadline_s < math.inf
        is_failure = exit_code != 0 and not is_asked
        self._num_failed = self._num_failed + 1 if is_failure else 0
        if self._num_failed >= _MOST_FAILED:
            message = (
                f"{self._num_failed} agents in a row have ended by themselves, that of "
                f"{machine.name} with exit code {exit_code}; their output says why"
            )
            raise ProgramError(message)

    def _take_away(self, now_s: float) -> None:
        there = self._spot(self._running())
        size = self._size(now_s)
        while len(there) > size:
            machine = there.pop(self._dice.randrange(len(there)))
            self.reclaim(machine.name, now_s)

    def _give(self, now_s: float) -> None:
        for machine in list(self._machines.values()):
            machine.asked_s = min(machine.asked_s, now_s)
            if machine.process is not None or now_s < machine.asked_s + self.boot_s:
                continue
            is_spot = machine.market == Market.SPOT
            if is_spot and len(self._spot(self._running())) >= self._size(now_s):
                continue
            if self._running() and not self._may_start():
                return
            notices = f"{machine.kind}={machine.cloud.url}"
            machine.process = self._start(machine.name, notices)
            self._note(now_s, "came", machine.name)

    def _note(self, now_s: float, what: str, node: str) -> None:
        assert self.began_s is not None
        self.events.append(PoolEvent(now_s - self.began_s, what, node))

    def _drop(self, machine: _Machine) -> None:
        del self._machines[machine.name]
        machine.cloud.__exit__(None, None, None)

    # ---- the end ----

    def close(self) -> None:
        """Kills whatever still runs."""
        for machine in list(self._machines.values()):
            if machine.process is not None:
                _kill(machine.process)
            self._drop(machine)

    def __enter__(self) -> Self:
        """Returns the pool."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kills whatever still runs."""
        self.close()


def _check(
    trace: Sequence[CapacityChange], clouds: Sequence[tuple[str, float]]
) -> None:
    times_s = [change.at_s for change in trace]
    if not trace or times_s != sorted(times_s) or times_s[0] != 0.0:
        message = (
            "a trace needs changes in the order of their times, the first at 0; got "
            f"{times_s[:8]}"
        )
        raise ProgramError(message)
    if any(change.nodes < 0 for change in trace):
        message = (
            f"a trace cannot have fewer than 0 nodes, got {min(c.nodes for c in trace)}"
        )
        raise ProgramError(message)
    known = {name for name, seconds in clouds if 0 < seconds < math.inf} & CLOUDS.keys()
    if not known or len(known) < len({name for name, _ in clouds}):
        message = (
            f"a pool needs clouds out of {', '.join(CLOUDS)}, each with seconds above 0, "
            f"got {tuple(clouds)}"
        )
        raise ProgramError(message)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills an agent and all that it has started, as the end of a machine does."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        agent = psutil.Process(process.pid)
        found = [agent, *agent.children(recursive=True)]
    for one in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
