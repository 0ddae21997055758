"""One training, from event to event, on a virtual clock.

             failure               cause removed           enough nodes
    TRAINING -------> FINDING_OUT --------------> WAITING --------------> RECOVERING
        ^                                                                     |
        '---------------------------------------------------------------------'

A failure in between begins again with what takes longer, its own recovery or what was left
of the other. Failures strike in wall time: nodes fail while they wait, too.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_cloud.goodput._checks import check_number
from drivetrain_cloud.goodput._fleet import Fleet
from drivetrain_cloud.goodput._ledger import Loss
from drivetrain_cloud.goodput._modes import Sign
from drivetrain_cloud.goodput._recovery_path import Paths
from drivetrain_cloud.goodput._track import CheckpointTrack
from drivetrain_health.failures import Action

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_cloud.goodput._config import GoodputConfig
    from drivetrain_cloud.goodput._modes import FailureMode

_DAY_S, _HOUR_S = 86_400.0, 3600.0
_SETTLE_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What one simulated training came to.

    Attributes:
        wall_s: How long it was simulated.
        effective_s: Steps that count, times what one takes at full speed.
        lost_s: What the rest of the time went to.
        num_failures: By name of the mode.
    """

    wall_s: float
    effective_s: float
    lost_s: dict[Loss, float] = field(default_factory=dict)
    num_failures: dict[str, int] = field(default_factory=dict)

    @property
    def goodput(self) -> float:
        """The share of the time that counts."""
        return self.effective_s / self.wall_s


def simulate(config: GoodputConfig, *, days: float = 90.0, seed: int = 0) -> Run:
    """Simulates one training.

    Args:
        config: The job.
        days: How long it runs.
        seed: Of what is left to chance.

    Returns:
        What it came to.

    Raises:
        ProgramError: `days` is not more than 0, or not finite.

    Example:
        >>> from drivetrain_cloud.goodput import preset
        >>> config = preset("drivetrain").config(num_nodes=128)
        >>> run = simulate(config, days=30)
        >>> run.goodput > 0.98
        True
    """
    check_number("days", days, least=1e-6, most=1e6)
    return _Simulation(config, days * _DAY_S, seed).run()


class _Phase(Enum):
    TRAINING = auto()
    FINDING_OUT = auto()
    WAITING = auto()
    RECOVERING = auto()


class _Event(NamedTuple):
    at_s: float
    number: int
    act: Callable[[], None]


class _Simulation:
    def __init__(self, config: GoodputConfig, wall_s: float, seed: int) -> None:
        self._config = config
        self._wall_s = wall_s
        self._dice = random.Random(seed)
        self._paths = Paths(config, self._dice)
        self._fleet = Fleet(
            num_nodes=config.num_nodes,
            nodes_per_copy=config.nodes_per_copy,
            min_nodes=config.fewest_nodes,
            settle_s=_SETTLE_S if config.recovery.keeps_survivors else 0.0,
        )
        self._track = CheckpointTrack(config.checkpoint)
        self._now_s = 0.0
        self._progress_s = 0.0
        self._lost_s = dict.fromkeys(Loss, 0.0)
        self._num_failures = dict.fromkeys((mode.name for mode in config.modes), 0)
        self._events: list[_Event] = []
        self._numbers = itertools.count()
        self._phase = _Phase.TRAINING
        self._turn = 0
        # What is left of the phase, and what recovery will take after it.
        self._left: list[tuple[Loss, float]] = []
        self._recovery: list[tuple[Loss, float]] = []
        self._slow: dict[int, float] = {}
        self._num_ready = config.num_standbys
        self._num_coming = 0
        self._num_spares = config.num_spares
        self._rates = [
            mode.rate_per_s(
                num_nodes=config.num_nodes, devices_per_node=config.devices_per_node
            )
            for mode in config.modes
        ]
        self._rate = sum(self._rates)
        self._sums = list(itertools.accumulate(self._rates))

    def run(self) -> Run:
        self._track.note(0.0, 0.0)
        self._expect_failure()
        while self._events and self._events[0].at_s <= self._wall_s:
            event = heapq.heappop(self._events)
            self._advance(event.at_s)
            event.act()
        self._advance(self._wall_s)
        return Run(
            wall_s=self._wall_s,
            effective_s=self._progress_s,
            lost_s={loss: s for loss, s in self._lost_s.items() if s},
            num_failures=self._num_failures,
        )

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, _Event(at_s, next(self._numbers), act))

    # Time.

    def _advance(self, to_s: float) -> None:
        """Lets time go by, and notes what it went to."""
        left_s = to_s - self._now_s
        self._now_s = to_s
        if self._phase == _Phase.TRAINING:
            self._train(left_s)
        elif self._phase == _Phase.WAITING:
            self._lost_s[Loss.NODES] += left_s
        else:
            while left_s > 0 and self._left:
                loss, duration_s = self._left[0]
                part_s = min(left_s, duration_s)
                self._lost_s[loss] += part_s
                left_s -= part_s
                if part_s < duration_s:
                    self._left[0] = (loss, duration_s - part_s)
                else:
                    self._left.pop(0)
            # What rounding has left over.
            self._lost_s[Loss.RESTART] += left_s

    def _train(self, duration_s: float) -> None:
        share = self._fleet.num_active / self._config.num_nodes
        step_ratio = max(self._slow.values(), default=1.0) / share
        stalls = self._config.checkpoint.stall_share
        made_s = duration_s / (step_ratio + stalls)
        self._progress_s += made_s
        self._lost_s[Loss.CHECKPOINT] += made_s * stalls
        self._lost_s[Loss.DEGRADED] += made_s * (step_ratio - 1.0)
        self._track.note(self._now_s, self._progress_s)

    # Failures.

    def _expect_failure(self) -> None:
        if self._rate:
            at_s = self._now_s + self._dice.expovariate(self._rate)
            self._at(at_s, self._fail)

    def _fail(self) -> None:
        self._expect_failure()
        point = self._dice.random() * self._rate
        at = next(i for i, total in enumerate(self._sums) if point < total)
        mode = self._config.modes[at]
        self._num_failures[mode.name] += 1
        # Those that stand by fail as often as those that train.
        first = self._dice.randrange(self._config.num_nodes + self._num_ready)
        if first >= self._config.num_nodes:
            if mode.cure == Action.REPLACE_NODE:
                self._num_ready -= 1
                self._retire(1, mode, 0.0)
            return
        first -= first % mode.num_nodes
        places = range(first, min(first + mode.num_nodes, self._config.num_nodes))
        there = [one for one in places if one not in self._fleet.missing]
        if mode.sign == Sign.SLOW:
            self._slow_down(mode, there)
        elif mode.sign == Sign.CORRUPTION:
            self._corrupt(mode, there)
        elif there:
            self._stop(mode, there)

    def _slow_down(self, mode: FailureMode, places: list[int]) -> None:
        for place in places:
            self._slow[place] = mode.slowdown

        def found() -> None:
            still = [one for one in places if one in self._slow]
            if still:
                self._stop(mode, still)

        self._at(self._now_s + self._config.recovery.slow_s, found)

    def _corrupt(self, mode: FailureMode, places: list[int]) -> None:
        good_s = self._progress_s

        def found() -> None:
            there = [one for one in places if one not in self._fleet.missing]
            self._stop(mode, there, good_s=good_s)

        self._at(self._now_s + self._config.recovery.corruption_s, found)

    def _stop(
        self, mode: FailureMode, places: list[int], good_s: float | None = None
    ) -> None:
        """Begins what a failure entails that stops the training."""
        active = [one for one in places if self._fleet.is_active(one)]
        node = str(places[0]) if places else ""
        path = self._paths.follow(self._now_s, mode, node)
        finding_s = sum(seconds for _, seconds in path.steps)
        if path.action == Action.REPLACE_NODE and places:
            self._fleet.lose(places)
            for place in places:
                self._slow.pop(place, None)
            self._retire(len(places), mode, finding_s)
        if not active and good_s is None and self._phase == _Phase.TRAINING:
            return  # it was in a copy that stood by
        is_replaced = path.action == Action.REPLACE_NODE
        recovery = self._recover(mode, good_s, is_replaced=is_replaced)
        rest_s = sum(seconds for _, seconds in self._left)
        if self._phase != _Phase.FINDING_OUT or finding_s >= rest_s:
            self._left = path.steps
        if _total(recovery) >= _total(self._recovery):
            self._recovery = recovery
        self._begin(_Phase.FINDING_OUT)

    def _recover(
        self, mode: FailureMode, good_s: float | None, *, is_replaced: bool
    ) -> list[tuple[Loss, float]]:
        """Takes back the steps that are lost; returns what it takes to train again."""
        profile = self._config.recovery
        if profile.keeps_survivors and good_s is None and self._fleet.has_state():
            self._lose_progress(self._progress_s % self._config.step_s)
            self._track.note(self._now_s, self._progress_s)
            return [(Loss.RESTART, profile.regroup_s)]
        newest_s = self._track.newest(
            self._now_s,
            is_memory_lost=mode.is_host_lost,
            before_s=self._progress_s if good_s is None else good_s,
        )
        newest_s = min(newest_s, self._progress_s)
        self._lose_progress(self._progress_s - newest_s)
        self._track.roll_back(self._now_s, newest_s)
        return self._start_again(is_replaced=is_replaced)

    def _start_again(self, *, is_replaced: bool) -> list[tuple[Loss, float]]:
        profile, plan = self._config.recovery, self._config.checkpoint
        # A new node has no copy: without replicas, what the old one had in memory was
        # stored before it went, if its host still lived.
        from_memory = plan.memory_interval_s is not None and (
            plan.has_replicas or not is_replaced
        )
        load_s = profile.load_memory_s if from_memory else profile.load_s
        return [(Loss.RESTART, profile.restart_s + load_s)]

    def _lose_progress(self, lost_s: float) -> None:
        self._progress_s -= lost_s
        self._lost_s[Loss.REMADE] += lost_s

    # Phases.

    def _begin(self, phase: _Phase) -> None:
        self._phase = phase
        self._turn += 1
        if phase in (_Phase.TRAINING, _Phase.WAITING):
            return
        turn = self._turn
        end_s = self._now_s + _total(self._left)

        def ended() -> None:
            if turn == self._turn:
                self._go_on()

        self._at(end_s, ended)

    def _go_on(self) -> None:
        """Goes on after the end of a phase."""
        if self._phase == _Phase.RECOVERING:
            self._recovery = []
            self._begin(_Phase.TRAINING)
            self._track.note(self._now_s, self._progress_s)
            self._take_in()
            return
        num_joined = self._fill()
        formed = self._fleet.form(self._now_s)
        if not formed.num_active:
            self._begin(_Phase.WAITING)
            return
        self._left = [*self._recovery, (Loss.RESTART, formed.wait_s)]
        self._left.append((Loss.RESTART, self._change_s(num_joined)))
        self._begin(_Phase.RECOVERING)

    def _change_s(self, num_joined: int) -> float:
        profile = self._config.recovery
        if num_joined:
            return profile.join_s
        return profile.resize_s if self._fleet.missing else 0.0

    # Nodes.

    def _retire(self, num: int, mode: FailureMode, after_s: float) -> None:
        """Sends nodes to repair, and asks for others once it is known that they must go."""
        self._at(self._now_s + after_s, self._order)
        if self._num_spares is not None:
            repaired_s = self._now_s + after_s + mode.repair_h * _HOUR_S

            def repaired() -> None:
                assert self._num_spares is not None
                self._num_spares += num
                self._order()

            self._at(repaired_s, repaired)

    def _order(self) -> None:
        """Asks for as many nodes as are missing, and as there are."""
        wanted = len(self._fleet.missing) + self._config.num_standbys
        num = wanted - self._num_ready - self._num_coming
        if self._num_spares is not None:
            num = min(num, self._num_spares)
        if num <= 0:
            return
        if self._num_spares is not None:
            self._num_spares -= num
        self._num_coming += num

        def provided() -> None:
            self._num_coming -= num
            self._num_ready += num
            self._take_in()

        self._at(self._now_s + self._config.recovery.provision_s, provided)

    def _fill(self) -> int:
        """Puts nodes that are ready into places that are empty; returns how many."""
        places = sorted(self._fleet.missing)[: self._num_ready]
        self._num_ready -= len(places)
        self._fleet.fill(places, self._now_s)
        return len(places)

    def _take_in(self) -> None:
        """Lets nodes that are ready take part, if the job trains or waits for them."""
        if not self._fleet.missing or not self._num_ready:
            return
        if self._phase == _Phase.WAITING:
            self._go_on()
        elif self._phase == _Phase.TRAINING:
            if not self._config.recovery.keeps_survivors:
                self._recovery = self._restart_to_grow()
            self._go_on()

    def _restart_to_grow(self) -> list[tuple[Loss, float]]:
        """Starts all again where that is how a node joins."""
        newest_s = self._track.newest(self._now_s, is_memory_lost=False)
        newest_s = min(newest_s, self._progress_s)
        self._lose_progress(self._progress_s - newest_s)
        self._track.roll_back(self._now_s, newest_s)
        return self._start_again(is_replaced=True)


def _total(steps: list[tuple[Loss, float]]) -> float:
    return sum(seconds for _, seconds in steps)
