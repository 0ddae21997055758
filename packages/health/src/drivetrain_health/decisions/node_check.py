"""Which nodes are fit to train, by what they say after rounds of checks in small groups.

When something fails between two nodes, either may be the reason. So a node that failed is
put together with another one that has passed, until it has either passed with somebody
itself, or failed with two different nodes that passed with others. What a node says of
itself alone needs no witness, but has to happen twice. Only bits are different: a machine
that once computes other bits than it should is faulty, whatever it does next time.

A node is slow by its best rate of all rounds, and in two of them, for everybody has a bad
moment. A node that passed with another cannot have its network named faulty afterwards, so
one whose network fails now and then is found only by chance.
"""

from __future__ import annotations

import statistics
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import ProgramError
from drivetrain_health.decisions.node_results import (
    best_rates,
    disputed_bits,
    is_of_network,
    median_of,
    most_rounds,
    statements_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_health.decisions.node_results import (
        Groups,
        NodeCheckConfig,
        Result,
        Statement,
    )

# What happened so often was no accident; with so many witnesses it was not theirs.
_TWICE = 2
# The estimate of a deviation by fewer values says little.
_FEWEST_FOR_Z = 8
# Of a normal distribution, the standard deviation is so many median absolute deviations.
_DEVIATIONS = 1.4826


class Outcome(StrEnum):
    """What is thought of a node."""

    PASSED = "passed"
    SLOW = "slow"
    FAULTY = "faulty"
    SUSPECT = "suspect"


class Opinion(NamedTuple):
    """What is thought of a node, and why.

    Attributes:
        outcome: `suspect` if it needs another round, or if it cannot be told.
        reason: For people.
        measure: By which it is slow; empty if it is not.
        value: Its best rate in that measure.
        median: Of all nodes.
    """

    outcome: Outcome
    reason: str
    measure: str = ""
    value: float | None = None
    median: float | None = None


class CheckVerdict(NamedTuple):
    """What is thought of all nodes after some rounds.

    Attributes:
        opinions: Of each node, by its name.
        medians: Of the nodes' best rates, by the measure's name.
        notes: What cannot be told, and why.
        num_rounds: After how many rounds.
        absent: Who did not come: nothing is known of them.
        bad_switches: Switches that nodes are slow under, or across, and why.
    """

    opinions: dict[str, Opinion]
    medians: dict[str, float]
    notes: tuple[str, ...]
    num_rounds: int
    absent: tuple[str, ...] = ()
    bad_switches: Mapping[str, str] = {}

    @property
    def faulty(self) -> tuple[str, ...]:
        """The nodes that are faulty."""
        return self._those(Outcome.FAULTY)

    @property
    def slow(self) -> tuple[str, ...]:
        """The nodes that are slow."""
        return self._those(Outcome.SLOW)

    @property
    def suspects(self) -> tuple[str, ...]:
        """The nodes of which it is not known."""
        return self._those(Outcome.SUSPECT)

    @property
    def is_good(self) -> bool:
        """Whether all nodes have come and passed."""
        is_whole = not (self.absent or self.bad_switches)
        return is_whole and len(self._those(Outcome.PASSED)) == len(self.opinions)

    def _those(self, outcome: Outcome) -> tuple[str, ...]:
        return tuple(n for n, o in self.opinions.items() if o.outcome == outcome)


def judge(
    nodes: Sequence[str],
    rounds: Sequence[Groups],
    results: Sequence[Result],
    config: NodeCheckConfig,
) -> CheckVerdict:
    """Judges nodes by the results of all rounds until now.

    Args:
        nodes: All of them.
        rounds: The groups of each round, as `pair` has made them.
        results: What nodes have said; what is missing, or is of no use, counts as silence.
        config: How they are judged.

    Raises:
        ProgramError: A name is there twice, or a group has a node that is not.

    Example:
        >>> from drivetrain_health.decisions.node_results import *
        >>> rounds = [(("a", "b"), ("c", "d")), (("a", "c"), ("b", "d"))]
        >>> results = [
        ...     Result(r, n, g, network_failure="timed out" if "a" in g else "", received="x")
        ...     for r, groups in enumerate(rounds) for g in groups for n in g]
        >>> verdict = judge("abcd", rounds, results, NodeCheckConfig())
        >>> verdict.faulty, verdict.opinions["a"].reason
        (('a',), 'failed with b and c, which passed with others: timed out')
    """
    _check_names(nodes, rounds)
    case = _Case(nodes, rounds, results, config)
    opinions = {node: case.opinion(node) for node in nodes}
    medians = {name: m for name, m in case.medians.items() if m is not None}
    return CheckVerdict(opinions, medians, tuple(case.notes()), len(rounds))


def _check_names(nodes: Sequence[str], rounds: Sequence[Groups]) -> None:
    if not nodes or len(set(nodes)) != len(nodes):
        message = f"nodes must be one or more different names, got {', '.join(nodes) or 'none'}"
        raise ProgramError(message)
    known = set(nodes)
    for number, groups in enumerate(rounds):
        members = [node for group in groups for node in group]
        if len(set(members)) != len(members) or not known.issuperset(members):
            message = (
                f"each node may be in one group of a round and must be one of the "
                f"{len(nodes)} nodes, got {groups} in round {number}"
            )
            raise ProgramError(message)


class _Case:
    """What is known of all nodes after some rounds."""

    def __init__(
        self,
        nodes: Sequence[str],
        rounds: Sequence[Groups],
        results: Sequence[Result],
        config: NodeCheckConfig,
    ) -> None:
        self._nodes = nodes
        self._config = config
        self._said = statements_of(rounds, results, config)
        self._disputed = disputed_bits(results)
        self._is_over = len(rounds) >= most_rounds(len(nodes), config)
        self._of: dict[str, list[tuple[int, Statement]]] = {node: [] for node in nodes}
        for number, statements in enumerate(self._said):
            for node, statement in statements.items():
                self._of[node].append((number, statement))
        self._broken: dict[tuple[int, tuple[str, ...]], str] = {}
        for number, statements in enumerate(self._said if config.has_exchange else ()):
            for group, why in _broken_groups(statements).items():
                self._broken[number, group] = why
        # Those who have done all that was asked together with somebody.
        self._cleared = {
            node
            for node, said in self._of.items()
            if any(
                len(one.group) > 1 and (number, one.group) not in self._broken
                for number, one in said
            )
        }
        # Who is out of action by its own word needs no witness.
        self._out = {n for n in nodes if self._own_failure(n) is not None}
        self._best = best_rates(self._said)
        self.medians = {
            name: median_of(list(rates.values()), name)
            for name, rates in self._best.items()
        }
        self._limits = {name: self._limit(name) for name in self._best}

    def opinion(self, node: str) -> Opinion:
        """Returns what is thought of a node."""
        why = self._own_failure(node)
        if why is not None:
            return self._of_its_own(node, why)
        witnesses, why = self._witnesses(node)
        if len(witnesses) >= _TWICE:
            who = " and ".join(witnesses)
            reason = f"failed with {who}, which passed with others: {why}"
            return Opinion(Outcome.FAULTY, reason)
        said = self._of[node]
        if not said:
            return Opinion(Outcome.SUSPECT, "was not checked")
        if said[-1][1].failure:
            return self._suspect(said[-1][1].failure, "it happened once")
        if node in self._disputed:
            return self._suspect(self._disputed[node], "there is no majority")
        needs_others = self._config.has_exchange and len(self._nodes) > 1
        if needs_others and node not in self._cleared:
            return self._without_witness(node)
        slow = self._slowness(node)
        if slow is not None:
            return slow
        failed = [one.failure for _, one in said if one.failure]
        if failed:
            return Opinion(Outcome.PASSED, f"passed, but failed before: {failed[0]}")
        return Opinion(Outcome.PASSED, "passed")

    def notes(self) -> list[str]:
        """Returns what cannot be told."""
        return [*self._notes_on_rates(), *self._notes_on_groups()]

    def _of_its_own(self, node: str, why: str) -> Opinion:
        """Returns that a node is faulty, unless most nodes say the same of themselves."""
        num = sum(map(self._says_it_fails, self._nodes))
        if self._says_it_fails(node) and num > max(1, len(self._nodes) // 2):
            reason = (
                f"it cannot be told whether nodes or limits are wrong, for {num} of "
                f"{len(self._nodes)} nodes fail by themselves: {why}"
            )
            return Opinion(Outcome.SUSPECT, reason)
        return Opinion(Outcome.FAULTY, why)

    def _says_it_fails(self, node: str) -> bool:
        said = [one for _, one in self._of[node]]
        is_certain = any(one.is_silent or one.wrong_bits for one in said)
        return not is_certain and sum(bool(one.failure) for one in said) >= _TWICE

    def _suspect(self, reason: str, doubt: str) -> Opinion:
        if self._is_over:
            reason = f"it cannot be told, {doubt}: {reason}"
        return Opinion(Outcome.SUSPECT, reason)

    def _own_failure(self, node: str) -> str | None:
        """Returns why a node is faulty by what it does alone; None if it is not."""
        said = [one for _, one in self._of[node]]
        wrong = [one.wrong_bits for one in said if one.wrong_bits]
        if wrong:
            return wrong[0]
        failed = [one.failure for one in said if one.failure]
        if len(failed) < _TWICE:
            return None
        return f"{failed[-1]} ({len(failed)} of {len(said)} rounds)"

    def _witnesses(self, node: str) -> tuple[list[str], str]:
        """Returns nodes that passed with others, and not with this one, and what failed."""
        if node in self._cleared:
            return [], ""
        found, why = [], ""
        for number, one in self._of[node]:
            others = [n for n in one.group if n != node]
            if (number, one.group) not in self._broken or not others:
                continue
            if any(self._said[number][n].is_silent for n in others):
                continue
            if self._cleared.issuperset(others) and others[0] not in found:
                found.append(others[0])
                why = self._broken[number, one.group]
        return found, why

    def _without_witness(self, node: str) -> Opinion:
        """Returns what is thought of a node that has not passed with anybody yet."""
        others = [n for n in self._nodes if n != node]
        if self._out.issuperset(others):
            reason = "passed alone; its network was not checked, for all other nodes are faulty"
            return Opinion(Outcome.PASSED, reason)
        why = [
            self._broken[number, one.group]
            for number, one in self._of[node]
            if (number, one.group) in self._broken
        ]
        reason = why[-1] if why else "was not checked with another node"
        if not self._cleared:
            able = [n for n in self._nodes if n not in self._out]
            doubt = (
                f"no two of {len(able)} nodes passed together, and the network between "
                "them may be the reason"
            )
        else:
            doubt = "too few nodes that passed were there to check it with"
        return self._suspect(reason, doubt)

    def _slowness(self, node: str) -> Opinion | None:
        """Returns that a node is slow, or may be; None if it is not."""
        ratios: dict[str, float] = {}
        for name, rates in self._best.items():
            limit, median = self._limits[name], self.medians[name]
            if limit is None or median is None or rates.get(node, limit) >= limit:
                continue
            ratios[name] = median / rates[node]
        if not ratios:
            return None
        # A node that is slow by itself is slow with others too, and not the other way.
        name = min(ratios, key=lambda one: (is_of_network(one), -ratios[one], one))
        rate, median = self._best[name][node], self.medians[name]
        times = sum(self._counts(name, one, node) for _, one in self._of[node])
        reason = (
            f"{name} of {rate:.3g} at best, {ratios[name]:.1f} times less than the median, "
            f"{median:.3g}"
        )
        outcome = Outcome.SLOW if times >= _TWICE else Outcome.SUSPECT
        if outcome == Outcome.SUSPECT and self._is_over:
            reason = f"it cannot be told, it was measured once: {reason}"
        return Opinion(outcome, reason, name, rate, median)

    def _counts(self, name: str, said: Statement, node: str) -> bool:
        """Returns whether a slow rate tells against a node, not those it was with."""
        if name not in said.measures:
            return False
        if not is_of_network(name):
            return True
        limit = self._limits[name]
        rates = self._best[name]
        others = [n for n in said.group if n != node]
        return limit is not None and all(rates.get(n, 0.0) >= limit for n in others)

    def _limit(self, name: str) -> float | None:
        """Returns the rate below which a node is slow; None if that cannot be told."""
        median = self.medians[name]
        if median is None or name.startswith(self._config.only_shown):
            return None
        limit = median / self._config.slow_ratio
        rates = self._best[name].values()
        if len(rates) >= _FEWEST_FOR_Z:
            deviation = statistics.median(abs(rate - median) for rate in rates)
            limit = min(limit, median - self._config.slow_z * _DEVIATIONS * deviation)
        return limit

    def _notes_on_rates(self) -> list[str]:
        notes = []
        for name, rates in sorted(self._best.items()):
            low, high = min(rates.values()), max(rates.values())
            is_only_shown = name.startswith(self._config.only_shown)
            if is_only_shown or high <= low * self._config.slow_ratio:
                continue
            median = self.medians[name]
            if median is None:
                notes.append(
                    f"{name} differs by a factor of {high / low:.1f} between "
                    f"{' and '.join(rates)}: two nodes cannot tell which of them is wrong"
                )
                continue
            fast = sum(r > median * self._config.slow_ratio for r in rates.values())
            if fast * 2 >= len(rates):
                notes.append(
                    f"{name} is {high / low:.1f} times higher on {fast} of {len(rates)} "
                    "nodes: half of the nodes cannot tell which half is wrong"
                )
        return notes

    def _notes_on_groups(self) -> list[str]:
        if len(self._nodes) > 3 or not any(map(is_of_network, self._best)):
            return []
        note = (
            f"all {len(self._nodes)} nodes are one group: the rates of their network are "
            "compared with no others"
        )
        return [note]


def _broken_groups(
    statements: Mapping[str, Statement],
) -> dict[tuple[str, ...], str]:
    """Returns the groups that failed together, and how."""
    members: dict[tuple[str, ...], list[str]] = {}
    for node, one in statements.items():
        if len(one.group) > 1:
            members.setdefault(one.group, []).append(node)
    found = {}
    for group, nodes in members.items():
        said = [statements[node] for node in nodes]
        silent = [n for n, one in zip(nodes, said, strict=True) if one.is_silent]
        failures = [one.network_failure for one in said if one.network_failure]
        received = {one.received for one in said}
        if silent:
            found[group] = f"{' and '.join(silent)} did not answer"
        elif failures:
            found[group] = failures[0]
        elif len(received) > 1 or "" in received:
            found[group] = f"{' and '.join(nodes)} received different things"
    return found
