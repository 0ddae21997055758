"""What nodes say after a round of checks, and what of it can be believed.

A node tells of itself, and of what it did together with its group. It may also say nothing,
or what cannot be: a rate that is not a number, or a hundred times that of all others, or
two things at once. That is taken as a failure of its own, never as a measure.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Groups = tuple[tuple[str, ...], ...]
"""The nodes that are checked together in one round; a node is in one group at most."""

# Fewer nodes have no majority, and no median that one of them could not move.
_FEWEST_TO_COMPARE = 3


class Result(NamedTuple):
    """What one node says after a round.

    Attributes:
        round_number: Of the round, from 0.
        node: Who says it.
        group: With whom it was checked, itself included.
        measures: Rates, by names that say the unit and of which more is better; those
            whose names begin with `network_` were measured with the group.
        failures: Why checks of the node alone failed, by their names.
        network_failure: Why what it did with its group failed; empty if it did not.
        received: A digest of what all of the group have sent each other, drawn at random:
            nobody knows it who did not receive it.
        wrong_bits: How the node contradicts itself in computing the same thing twice.
        digests: Of a fixed computation: by the build and device that made it, which have
            to agree for digests to be compared.
        not_made: Why checks could not be made, by their names, which is no fault.
    """

    round_number: int
    node: str
    group: tuple[str, ...]
    measures: Mapping[str, float] = {}
    failures: Mapping[str, str] = {}
    network_failure: str = ""
    received: str = ""
    wrong_bits: str = ""
    digests: Mapping[str, str] = {}
    not_made: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCheckConfig:
    """How results are judged.

    Args:
        slow_ratio: A node is slow if its best rate is less than the median divided by it.
        slow_z: And, among eight nodes or more, below the median by so many deviations,
            as the median absolute deviation estimates them.
        incredible_ratio: A rate of so many medians is not believed.
        max_rounds: After so many rounds, what is not known yet cannot be told.
        only_shown: How the names of measures begin that nobody is judged by. Disks are
            shared between nodes, and differ by large factors on healthy ones.
        has_exchange: Whether groups exchange anything; if not, nodes are judged by
            themselves alone.

    Raises:
        ProgramError: A value is out of range.
    """

    slow_ratio: float = 2.0
    slow_z: float = 3.5
    incredible_ratio: float = 20.0
    max_rounds: int = 4
    only_shown: tuple[str, ...] = ("disk_",)
    has_exchange: bool = True

    def __post_init__(self) -> None:
        """Checks the values."""
        # NaN is neither less nor more.
        if not 1 < self.slow_ratio < math.inf:
            message = (
                f"slow_ratio must be a number over 1, which is the median itself, got "
                f"{self.slow_ratio}"
            )
            raise ProgramError(message)
        if not self.incredible_ratio > self.slow_ratio:
            message = (
                f"incredible_ratio must be over slow_ratio, {self.slow_ratio:g}, got "
                f"{self.incredible_ratio}"
            )
            raise ProgramError(message)
        if not self.slow_z >= 0:
            message = f"slow_z must be at least 0, got {self.slow_z}"
            raise ProgramError(message)
        if not self.max_rounds >= 1:
            message = f"max_rounds must be at least 1, got {self.max_rounds}"
            raise ProgramError(message)


@dataclass(kw_only=True, slots=True)
class Statement:
    """What is believed of a node's word about one round.

    Attributes:
        group: With whom it was to be checked.
        is_silent: Whether there is no result of it that counts.
        failure: Why the node alone failed; empty if it did not.
        wrong_bits: How it computes other bits than it should.
        network_failure: What it says of its group.
        received: What it says that it has received there.
        measures: The rates that can be.
    """

    group: tuple[str, ...]
    is_silent: bool = False
    failure: str = ""
    wrong_bits: str = ""
    network_failure: str = ""
    received: str = ""
    measures: dict[str, float] = field(default_factory=dict)


def most_rounds(num_nodes: int, config: NodeCheckConfig) -> int:
    """Returns after how many rounds nothing more can be found out.

    Args:
        num_nodes: How many nodes there are; two that fail together once more are no wiser.
        config: How results are judged.
    """
    return min(config.max_rounds, 2) if num_nodes <= 2 else config.max_rounds


def statements_of(
    rounds: Sequence[Groups], results: Sequence[Result], config: NodeCheckConfig
) -> list[dict[str, Statement]]:
    """Returns what is believed of each node that was in a group, for each round.

    Results of another round, of a node that was not asked or of another group than the
    node was in count as none. If a node says two things of one round, neither does.

    Args:
        rounds: The groups of each round.
        results: In any order.
        config: How they are judged.

    Example:
        >>> result = Result(0, "a", ("a",), measures={"compute_gflops": -1.0})
        >>> said = statements_of([(("a",), ("b",))], [result], NodeCheckConfig())[0]
        >>> said["a"].failure, said["b"].failure
        ('compute_gflops of -1 cannot be', 'did not answer')
    """
    said = _by_round(rounds, results)
    usual = [
        {name: median_of(rates, name) for name, rates in _rates_of(one).items()}
        for one in said
    ]
    expected = _expected(said[0]) if said else {}
    digests = majority_digests(one for by_node in said for one in by_node.values())
    found = []
    for number, groups in enumerate(rounds):
        statements = {}
        for group in groups:
            for node in group:
                result = said[number].get(node)
                statement = Statement(group=group)
                if result is None:
                    statement.is_silent = True
                    statement.failure = "did not answer"
                else:
                    # Few are asked again: those of the first round say what is usual.
                    medians = {**usual[number], **usual[0]}
                    _believe(statement, result, medians, expected, config)
                    _compare_bits(statement, result, digests)
                statements[node] = statement
        found.append(statements)
    for one in results:
        number = one.round_number
        before = said[number].get(one.node) if 0 <= number < len(rounds) else None
        if before is not None and before.group == one.group and before != one:
            statement = found[number][one.node]
            statement.failure = "says two different things of the same round"
            statement.measures.clear()
    return found


def majority_digests(results: Iterable[Result]) -> dict[str, tuple[str, int, int]]:
    """Returns, for each build, the digest of most nodes, how many have it, and of how many.

    A build of fewer than three nodes, or without a majority, is left out.

    Args:
        results: Of which each node's last one for a build counts.

    Example:
        >>> said = [Result(0, n, (n,), digests={"cpu": d}) for n, d in zip("abc", "xyx")]
        >>> majority_digests(said)
        {'cpu': ('x', 2, 3)}
    """
    found = {}
    for build, by_node in _digests_of(results).items():
        digest, num = Counter(by_node.values()).most_common(1)[0]
        if len(by_node) >= _FEWEST_TO_COMPARE and num * 2 > len(by_node):
            found[build] = digest, num, len(by_node)
    return found


def disputed_bits(results: Sequence[Result]) -> dict[str, str]:
    """Returns, for nodes whose digests differ without a majority, what is in dispute.

    Args:
        results: Of which each node's last one for a build counts.

    Example:
        >>> said = [Result(0, n, (n,), digests={"cpu": n}) for n in "ab"]
        >>> disputed_bits(said)["a"]
        '2 nodes compute 2 different results of the same (cpu)'
    """
    settled = majority_digests(results)
    found = {}
    for build, by_node in _digests_of(results).items():
        num = len(set(by_node.values()))
        if num > 1 and build not in settled:
            reason = (
                f"{len(by_node)} nodes compute {num} different results of the same "
                f"({build})"
            )
            found.update(dict.fromkeys(by_node, reason))
    return found


def best_rates(said: Iterable[Mapping[str, Statement]]) -> dict[str, dict[str, float]]:
    """Returns the best rate of each node in any round, by the measure's name.

    Args:
        said: What is believed of each round.
    """
    best: dict[str, dict[str, float]] = {}
    for statements in said:
        for node, statement in statements.items():
            for name, rate in statement.measures.items():
                rates = best.setdefault(name, {})
                rates[node] = max(rate, rates.get(node, 0.0))
    return best


def median_of(rates: Sequence[float], name: str) -> float | None:
    """Returns the rate that others are compared with; None for fewer than three nodes.

    All of a group have the same rate of the network: of two groups of which one has a bad
    node, the better one is what the network can do. Else half of the nodes are no reason
    to think ill of the other half.

    Args:
        rates: Of all nodes.
        name: Of the measure.

    Example:
        >>> median_of([1.0, 1.0, 9.0, 9.0], "network_all_reduce_gb_per_s")
        9.0
        >>> median_of([1.0, 1.0, 9.0, 9.0], "compute_gflops")
        1.0
    """
    if len(rates) < _FEWEST_TO_COMPARE:
        return None
    if is_of_network(name):
        return statistics.median_high(rates)
    return statistics.median_low(rates)


def is_of_network(name: str) -> bool:
    """Returns whether a measure is one of a group, not of a node alone.

    Args:
        name: Of the measure.
    """
    return name.startswith("network_")


def _digests_of(results: Iterable[Result]) -> dict[str, dict[str, str]]:
    """Returns each node's digest, by the build."""
    found: dict[str, dict[str, str]] = {}
    for result in results:
        for build, digest in result.digests.items():
            found.setdefault(build, {})[result.node] = digest
    return found


def _by_round(
    rounds: Sequence[Groups], results: Iterable[Result]
) -> list[dict[str, Result]]:
    asked = [{node: group for group in groups for node in group} for groups in rounds]
    said: list[dict[str, Result]] = [{} for _ in rounds]
    for one in results:
        if not 0 <= one.round_number < len(rounds):
            continue
        if asked[one.round_number].get(one.node) == one.group:
            said[one.round_number].setdefault(one.node, one)
    return said


def _rates_of(said: Mapping[str, Result]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for result in said.values():
        for name, rate in result.measures.items():
            if _can_be(rate):
                found.setdefault(name, []).append(rate)
    return found


def _can_be(rate: float) -> bool:
    return math.isfinite(rate) and rate > 0


def _expected(said: Mapping[str, Result]) -> dict[str, tuple[int, int]]:
    """Returns what most nodes have measured alone: by how many of how many."""
    counts = Counter(name for result in said.values() for name in result.measures)
    if len(said) < _FEWEST_TO_COMPARE:
        return {}
    return {
        name: (num, len(said))
        for name, num in counts.items()
        if num * 2 > len(said) and not is_of_network(name)
    }


def _believe(
    statement: Statement,
    result: Result,
    medians: Mapping[str, float | None],
    expected: Mapping[str, tuple[int, int]],
    config: NodeCheckConfig,
) -> None:
    """Enters what a node says of itself and of its group."""
    failures = [f"{name}: {why}" for name, why in sorted(result.failures.items())]
    missing = sorted(expected.keys() - result.measures.keys())
    if missing and not failures and not result.not_made:
        num, num_all = expected[missing[0]]
        failures.append(f"has no {missing[0]}, which {num} of {num_all} nodes have")
    for name, rate in sorted(result.measures.items()):
        median = medians.get(name)
        if not _can_be(rate):
            failures.append(f"{name} of {rate:g} cannot be")
        elif (
            median is not None
            and rate > config.incredible_ratio * median
            and not name.startswith(config.only_shown)
        ):
            failures.append(
                f"{name} of {rate:g} is {rate / median:.0f} times the median: it is "
                "not believed"
            )
        else:
            statement.measures[name] = rate
    statement.failure = "; ".join(failures)
    statement.wrong_bits = result.wrong_bits
    statement.network_failure = result.network_failure
    statement.received = result.received


def _compare_bits(
    statement: Statement,
    result: Result,
    majority: Mapping[str, tuple[str, int, int]],
) -> None:
    for build, digest in result.digests.items():
        wanted = majority.get(build)
        if wanted is not None and digest != wanted[0] and not statement.wrong_bits:
            statement.wrong_bits = (
                f"computes other bits than {wanted[1]} of {wanted[2]} nodes ({build})"
            )
