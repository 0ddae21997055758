"""Nodes that do not exist, to rehearse checks with: results as good and bad ones give them.

Everything comes from a seed, and no time passes. So thousands of fleets can be tried, with
faults that no real machine shows on demand.
"""

from __future__ import annotations

import math
import random
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import ProgramError
from drivetrain_health.decisions.node_check import judge
from drivetrain_health.decisions.node_pairs import pair
from drivetrain_health.decisions.node_results import (
    NodeCheckConfig,
    Result,
    most_rounds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_health.decisions.node_check import CheckVerdict
    from drivetrain_health.decisions.node_results import Groups

_USUAL = {"compute_gflops": 900.0, "memory_gb_per_s": 200.0}
_NETWORK, _NETWORK_RATE = "network_all_gather_gb_per_s", 20.0
_SLOWER = 0.3


class NodeFault(StrEnum):
    """What is wrong with a node that does not exist.

    `lies` means that its network fails, and that it says that all went well.
    """

    DEAD = "dead"
    NETWORK = "network"
    LIES = "lies"
    HANGS = "hangs"
    SLOW_COMPUTE = "slow compute"
    SLOW_NETWORK = "slow network"
    INCREDIBLE = "incredible"
    NOT_A_NUMBER = "not a number"
    WRONG_BITS = "wrong bits"
    MISSING = "missing"
    CONTRADICTS = "contradicts"


class Rehearsal(NamedTuple):
    """What came of a check of nodes that do not exist.

    Attributes:
        verdict: The last one.
        rounds: The groups of each round.
    """

    verdict: CheckVerdict
    rounds: tuple[Groups, ...]


def rehearse(
    nodes: Sequence[str],
    faults: Mapping[str, NodeFault],
    *,
    seed: int,
    noise: float = 0.1,
    switches: Mapping[str, str] | None = None,
    config: NodeCheckConfig | None = None,
) -> Rehearsal:
    """Checks nodes that do not exist, for as many rounds as it takes.

    Args:
        nodes: Their names.
        faults: What is wrong, and with which of them.
        seed: Of the noise.
        noise: The standard deviation of rates, as a part of the rate.
        switches: Under which switch nodes are.
        config: How they are judged.

    Raises:
        ProgramError: A node with a fault is not there.

    Example:
        >>> nodes = [f"n{i}" for i in range(256)]
        >>> verdict, rounds = rehearse(nodes, {"n77": NodeFault.LIES}, seed=1)
        >>> verdict.faulty, verdict.slow, verdict.suspects, len(rounds)
        (('n77',), (), (), 2)
    """
    strangers = sorted(faults.keys() - set(nodes))
    if strangers:
        message = f"faults are for nodes that exist, got {', '.join(strangers)}"
        raise ProgramError(message)
    config = config or NodeCheckConfig()
    dice = random.Random(seed)
    rounds: list[Groups] = []
    results: list[Result] = []
    verdict = None
    while len(rounds) < most_rounds(len(nodes), config):
        groups = pair(nodes, rounds, verdict, switches)
        for group in groups:
            results += _results(len(rounds), group, faults, dice, noise)
        rounds.append(groups)
        verdict = judge(nodes, rounds, results, config)
        if not verdict.suspects:
            break
    assert verdict is not None
    return Rehearsal(verdict, tuple(rounds))


_BREAKS = {NodeFault.DEAD, NodeFault.NETWORK, NodeFault.LIES}


def _results(
    number: int,
    group: tuple[str, ...],
    faults: Mapping[str, NodeFault],
    dice: random.Random,
    noise: float,
) -> list[Result]:
    """Returns what the nodes of a group say after a round."""
    has = [faults.get(node) for node in group]
    network = _rate(_NETWORK_RATE, dice, noise)
    if NodeFault.SLOW_NETWORK in has:
        network *= _SLOWER
    is_broken = len(group) > 1 and not _BREAKS.isdisjoint(has)
    found = []
    for node, fault in zip(group, has, strict=True):
        if fault == NodeFault.DEAD:
            continue
        rates = {name: _rate(usual, dice, noise) for name, usual in _USUAL.items()}
        says_broken = is_broken and fault != NodeFault.LIES
        if len(group) > 1 and not says_broken:
            rates[_NETWORK] = network
        result = Result(
            *(number, node, group, rates),
            network_failure="timed out" if says_broken else "",
            received=str(dice.random()) if is_broken else str(number),
            digests={"cpu": "a1"},
        )
        found += _spoilt(result, rates, fault)
    return found


def _rate(usual: float, dice: random.Random, noise: float) -> float:
    return max(usual * dice.gauss(1.0, noise), usual / 100)


def _spoilt(
    result: Result, rates: dict[str, float], fault: NodeFault | None
) -> list[Result]:
    """Returns what a node with a fault of its own says instead."""
    name = "compute_gflops"
    if fault == NodeFault.HANGS:
        del rates[name]
        return [result._replace(failures={"compute": "no result within 5 s"})]
    if fault == NodeFault.SLOW_COMPUTE:
        rates[name] *= _SLOWER
    elif fault == NodeFault.INCREDIBLE:
        rates[name] *= 1000.0
    elif fault == NodeFault.NOT_A_NUMBER:
        rates[name] = math.nan
    elif fault == NodeFault.MISSING:
        del rates[name]
    elif fault == NodeFault.WRONG_BITS:
        return [result._replace(digests={"cpu": "a2"})]
    elif fault == NodeFault.CONTRADICTS:
        return [result, result._replace(measures={**rates, name: 1.0})]
    return [result]
