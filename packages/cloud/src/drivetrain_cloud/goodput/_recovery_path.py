"""From a failure to the moment when its cause is known and removed, in virtual time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_cloud.goodput._ledger import Loss
from drivetrain_cloud.goodput._modes import Sign
from drivetrain_elastic.decisions.liveness import Signs, judge_liveness
from drivetrain_elastic.decisions.presence import judge_presence
from drivetrain_elastic.decisions.respawn import judge_respawn
from drivetrain_health.failures import (
    Action,
    Diagnosis,
    FailureClass,
    Health,
    Incident,
    respond,
)

if TYPE_CHECKING:
    import random

    from drivetrain_cloud.goodput._config import GoodputConfig
    from drivetrain_cloud.goodput._modes import FailureMode

_STRENGTH = {action: at for at, action in enumerate(Action)}
# As the agent's own: see its configuration and crew.
_RESTARTS = {"max_restarts": 10, "window_s": 3600.0, "quick_s": 5.0}
# So often remedies are tried in vain before somebody looks.
_MOST_TRIES = 10
# How often a step is looked at where no heartbeat is given.
_LOOK_S = 1.0
_SHORTEST_S = 1e-3


class Path(NamedTuple):
    """What follows from a failure.

    Attributes:
        steps: What time goes by until the cause is removed, in order.
        action: What was done in the end.
    """

    steps: list[tuple[Loss, float]]
    action: Action


class Paths:
    """Decides what follows from failures, as master and agents do, on a virtual clock.

    Args:
        config: The job.
        dice: For what is left to chance.
    """

    def __init__(self, config: GoodputConfig, dice: random.Random) -> None:
        self._config = config
        self._dice = dice
        self._past: list[Incident] = []
        self._deaths_s: dict[str, list[float]] = {}

    def follow(self, now_s: float, mode: FailureMode, node: str) -> Path:
        """Returns what follows from a failure.

        Args:
            now_s: When it happened, or, where training goes on with it, was noticed.
            mode: What has failed.
            node: Where.
        """
        profile = self._config.recovery
        steps = [(Loss.DETECTION, self._detection_s(mode.sign))]
        at_s = now_s + steps[0][1]
        for _ in range(_MOST_TRIES):
            steps.append((Loss.DIAGNOSIS, profile.diagnose_s))
            at_s += profile.diagnose_s
            action = self._decide(at_s, mode, node)
            if action == Action.STOP_JOB:
                # Somebody finds the cause, and what follows is another job.
                self._past.clear()
                return Path([*steps, (Loss.PEOPLE, profile.operator_s)], mode.cure)
            if action == Action.REPLACE_NODE:
                steps.append(self._search())
            wait_s, is_given_up = self._respawn(at_s, action, node)
            steps.append((Loss.RESTART, wait_s))
            if is_given_up:
                action = Action.REPLACE_NODE
            if _STRENGTH[action] >= _STRENGTH[mode.cure]:
                return Path(steps, action)
            # It did not help: all is set up again, and fails again.
            at_s += wait_s + self._try_s()
            again_s = self._detection_s(mode.sign)
            steps += [(Loss.RESTART, self._try_s()), (Loss.DETECTION, again_s)]
            at_s += again_s
        # The ladder never gets there, as when its window is shorter than it takes to try.
        return Path([*steps, (Loss.PEOPLE, profile.operator_s)], mode.cure)

    def _detection_s(self, sign: Sign) -> float:
        profile = self._config.recovery
        if sign == Sign.EXIT:
            return profile.exit_s
        if sign == Sign.NODE_LOST:
            return self._silence_s()
        return self._stuck_s() if sign == Sign.HANG else 0.0

    def _silence_s(self) -> float:
        """Returns after how long a node that is gone counts as lost."""
        profile = self._config.recovery
        if profile.node_timeout_s == 0:
            return 0.0
        # Its last word was up to a heartbeat before.
        heard_s = {"node": -self._dice.random() * profile.heartbeat_s}
        at_s = 0.0
        while True:
            presence = judge_presence(at_s, heard_s, timeout_s=profile.node_timeout_s)
            if presence.lost:
                return at_s
            assert presence.wait_s is not None
            # A sum of floats may fall short of the time-out by a rounding error.
            at_s += max(presence.wait_s, _SHORTEST_S)

    def _stuck_s(self) -> float:
        """Returns after how long a step that does not end counts as stuck."""
        profile = self._config.recovery
        if profile.hang_timeout_s == 0:
            return 0.0
        limits = {"frozen_s": math.inf, "stuck_s": profile.hang_timeout_s}
        # It had begun before it hung, and is looked at with each heartbeat.
        began_s = self._dice.random() * min(self._config.step_s, profile.hang_timeout_s)
        period_s = max(profile.heartbeat_s or _LOOK_S, _SHORTEST_S)
        at_s = math.floor((profile.hang_timeout_s - began_s) / period_s) * period_s
        while True:
            signs = Signs(0.0, 0.0, "R", "computing", began_s + at_s)
            if judge_liveness(signs, **limits)[0] == Health.STUCK:
                return at_s
            at_s += period_s

    def _decide(self, at_s: float, mode: FailureMode, node: str) -> Action:
        is_wrong = self._dice.random() < self._config.recovery.wrong_share
        known = mode.failure_class, mode.cause
        failure_class, cause = (FailureClass.UNKNOWN, "unknown") if is_wrong else known
        diagnosis = Diagnosis(failure_class, cause, node, "simulated")
        window_s = self._config.response.window_s
        self._past = [one for one in self._past if one.at_s > at_s - window_s]
        response = respond(at_s, diagnosis, self._past, self._config.response)
        self._past.append(
            Incident(at_s, failure_class, cause, node, node, response.action)
        )
        return response.action

    def _search(self) -> tuple[Loss, float]:
        profile = self._config.recovery
        if self._dice.random() < profile.manual_share:
            return Loss.PEOPLE, profile.manual_s
        return Loss.DIAGNOSIS, profile.locate_s

    def _respawn(self, at_s: float, action: Action, node: str) -> tuple[float, bool]:
        """Returns how long a new process waits, and whether its place is given up."""
        if action != Action.RESTART_PROCESS:
            return 0.0, False
        window_s = _RESTARTS["window_s"]
        deaths_s = [t for t in self._deaths_s.get(node, ()) if t > at_s - window_s]
        deaths_s.append(at_s)
        self._deaths_s[node] = deaths_s
        verdict = judge_respawn(
            deaths_s,
            max_restarts=int(_RESTARTS["max_restarts"]),
            window_s=window_s,
            quick_s=_RESTARTS["quick_s"],
        )
        return verdict.wait_s or 0.0, verdict.wait_s is None

    def _try_s(self) -> float:
        """Returns what it takes to train again, in vain."""
        profile = self._config.recovery
        if profile.keeps_survivors:
            return profile.regroup_s
        return profile.restart_s + profile.load_s
