"""Which nodes are checked together in a round: neighbours first, then suspects and others.

A check between two nodes says that one of them is bad, or the way between them, and not
which. So whoever is suspect is put together with one that has passed, another one each time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_health.decisions.node_check import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from drivetrain_health.decisions.node_check import CheckVerdict
    from drivetrain_health.decisions.node_results import Groups


def pair(
    nodes: Sequence[str],
    rounds: Sequence[Groups],
    verdict: CheckVerdict | None,
    switches: Mapping[str, str] | None = None,
) -> Groups:
    """Returns the groups of the next round; none if nobody is suspect.

    In the first round, all nodes are in pairs: neighbours in their order, under one switch
    where that is possible; of an odd number, three are together. Later only those meet
    that are suspect: each with a node that has passed and that it has not met, under its
    switch if there is one. Suspects meet each other only when nobody else is left.

    Args:
        nodes: All of them, in an order in which neighbours are near to each other.
        rounds: The groups of all rounds until now.
        verdict: On these rounds; None before the first.
        switches: Under which switch nodes are, as far as it is known.

    Raises:
        ProgramError: There is no node, or rounds without a verdict.

    Example:
        >>> pair(["a", "b", "c", "d", "e"], [], None)
        (('a', 'b'), ('c', 'd', 'e'))
        >>> pair(["a", "b", "c", "d"], [], None, {"a": "s1", "b": "s2", "c": "s1"})
        (('a', 'c'), ('b', 'd'))
    """
    switches = switches or {}
    if not nodes:
        message = "there must be a node to be checked, got none"
        raise ProgramError(message)
    if not rounds:
        return _first(nodes, switches)
    if verdict is None:
        message = (
            f"after {len(rounds)} rounds, pair needs the verdict on them, got none"
        )
        raise ProgramError(message)
    return _next(verdict, _met(rounds), switches)


def _first(nodes: Sequence[str], switches: Mapping[str, str]) -> Groups:
    left: list[str] = []
    groups: list[tuple[str, ...]] = []
    by_switch: dict[str | None, list[str]] = {}
    for node in nodes:
        by_switch.setdefault(switches.get(node), []).append(node)
    for switch, members in by_switch.items():
        if switch is None and len(by_switch) > 1:
            left += members
            continue
        groups += zip(members[::2], members[1::2], strict=False)
        left += members[len(members) // 2 * 2 :]
    groups += zip(left[::2], left[1::2], strict=False)
    if len(left) % 2:
        last = left[-1]
        near = [g for g in groups if switches.get(g[0]) == switches.get(last)]
        if groups:
            chosen = (near or groups)[-1]
            groups[groups.index(chosen)] = (*chosen, last)
        else:
            groups.append((last,))
    return tuple(groups)


def _met(rounds: Sequence[Groups]) -> Counter[tuple[str, str]]:
    """Returns how often nodes have been together."""
    met: Counter[tuple[str, str]] = Counter()
    for groups in rounds:
        for group in groups:
            met.update(itertools.permutations(group, 2))
    return met


def _next(
    verdict: CheckVerdict,
    met: Mapping[tuple[str, str], int],
    switches: Mapping[str, str],
) -> Groups:
    by_outcome: dict[Outcome, list[str]] = {outcome: [] for outcome in Outcome}
    for node, opinion in verdict.opinions.items():
        by_outcome[opinion.outcome].append(node)
    # One that is slow is a witness all the same, but not of speed.
    helpers = dict.fromkeys(by_outcome[Outcome.PASSED] + by_outcome[Outcome.SLOW])
    groups: list[tuple[str, ...]] = []
    alone: list[str] = []
    for node in by_outcome[Outcome.SUSPECT]:
        helper = _choose(node, helpers, met, switches)
        if helper is None:
            alone.append(node)
        else:
            del helpers[helper]
            groups.append((node, helper))
    waiting = dict.fromkeys(alone)
    while waiting:
        node = next(iter(waiting))
        del waiting[node]
        partner = _choose(node, waiting, met, switches)
        if partner is None:
            groups.append((node,))
        else:
            del waiting[partner]
            groups.append((node, partner))
    return tuple(groups)


def _choose(
    node: str,
    candidates: Iterable[str],
    met: Mapping[tuple[str, str], int],
    switches: Mapping[str, str],
) -> str | None:
    """Returns the candidate that a node has met least, the nearest of several."""
    switch = switches.get(node)
    best, best_cost = None, (0, False)
    for one in candidates:
        cost = (
            met.get((node, one), 0),
            switch is not None and switches.get(one) != switch,
        )
        if best is None or cost < best_cost:
            best, best_cost = one, cost
        if cost == (0, False):
            break
    return best
