"""The check of several nodes with each other, which all come to one verdict."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, NamedTuple

from torch.distributed.distributed_c10d import PrefixStore

from drivetrain_core import DistributedError, ProgramError
from drivetrain_health.checks._check_config import CheckConfig
from drivetrain_health.checks._check_node import NodeReport, measure_node
from drivetrain_health.checks._checks import CHECKS
from drivetrain_health.checks._round_table import RoundTable
from drivetrain_health.checks._wire import read_result, write_result
from drivetrain_health.decisions.node_check import Outcome, judge
from drivetrain_health.decisions.node_pairs import pair
from drivetrain_health.decisions.node_results import most_rounds
from drivetrain_health.decisions.switch_rounds import bad_switches, switch_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.distributed_c10d import Store

    from drivetrain_health.decisions.node_check import CheckVerdict
    from drivetrain_health.decisions.node_results import Groups, Result

    Measure = Callable[[tuple[str, ...], Store, bool], NodeReport]


class Together(NamedTuple):
    """What came of a check of several nodes.

    Attributes:
        verdict: On all nodes, the same on each.
        results: What they have said, in all rounds.
        report: What was measured here last.
    """

    verdict: CheckVerdict
    results: tuple[Result, ...]
    report: NodeReport


def check_nodes(
    store: Store,
    node: str,
    nodes: int | Sequence[str],
    config: CheckConfig | None = None,
) -> CheckVerdict:
    """Checks nodes with each other; to be called on all of them, with the same arguments.

    It takes up to `join_s` for all to come, and as many rounds of up to `round_s` as it
    takes to know about everybody, four at most. Nodes that fall silent cost a round its
    whole time, and no more.

    Args:
        store: Where the nodes meet, used by nothing else: a `PrefixStore` of one that is.
            Keep a store that is written in Python in a variable while a `PrefixStore`
            stands before it, which does not keep it itself.
        node: The name of this one.
        nodes: The names of all, in an order in which neighbours are near to each other;
            or how many there are.
        config: What is checked, and for how long.

    Returns:
        What is thought of each node, the same on all of them.

    Raises:
        ProgramError: Names are not unique, or nodes are checked differently.
        DistributedError: The store is gone, this node was not waited for, or nothing can
            be measured here.

    Example:
        >>> from torch.distributed import HashStore
        >>> config = CheckConfig(checks=("loopback",), measure_s=0.1)
        >>> verdict = check_nodes(HashStore(), "a", 1, config)
        >>> verdict.opinions["a"].reason
        'passed'
    """
    return check_together(store, node, nodes, config).verdict


def check_together(
    store: Store,
    node: str,
    nodes: int | Sequence[str],
    config: CheckConfig | None = None,
) -> Together:
    """Does what `check_nodes` does, and returns what was measured as well.

    Args:
        store: Where the nodes meet.
        node: The name of this one.
        nodes: The names of all, or how many there are.
        config: What is checked, and for how long.

    Raises:
        ProgramError: Names are not unique, or nodes are checked differently.
        DistributedError: The store is gone, this node was not waited for, or nothing can
            be measured here.
    """
    config = config or CheckConfig()

    paired = tuple(name for name in config.checks if CHECKS[name].is_paired)

    def measure(
        group: tuple[str, ...], store_of_round: Store, is_whole: bool
    ) -> NodeReport:
        chosen = config if is_whole else replace(config, checks=paired)
        return measure_node(chosen, node, group, store_of_round)

    return confer(store, node, nodes, config, measure)


def confer(
    store: Store,
    node: str,
    nodes: int | Sequence[str],
    config: CheckConfig,
    measure: Measure,
) -> Together:
    """Meets the other nodes, measures in rounds, and agrees on a verdict.

    Args:
        store: Where the nodes meet.
        node: The name of this one.
        nodes: The names of all, or how many there are.
        config: What is checked, and for how long.
        measure: Given a group, where it meets, and whether all checks are to be made or
            only those with the group, makes them.

    Raises:
        ProgramError: Names are not unique, or nodes are checked differently.
        DistributedError: The store is gone, or this node was not waited for.
    """
    table = RoundTable(store)
    has_exchange = any(CHECKS[name].is_paired for name in config.checks)
    judging = replace(config.judging, has_exchange=has_exchange)
    names, absent = _join(table, node, nodes, config)
    rounds: list[Groups] = []
    results: list[Result] = []
    verdict: CheckVerdict | None = None
    reports: list[NodeReport] = []

    def hold(groups: Groups, number: int, *, is_whole: bool) -> list[Result]:
        """Measures in a round, and returns what all have said of it."""
        until_s = time.monotonic() + config.round_s
        group_of = {member: group for group in groups for member in group}
        if node in group_of:
            group = group_of[node]
            store_of_round = PrefixStore(f"round {number}/{group[0]}", store)
            reports.append(measure(group, store_of_round, is_whole))
            table.say(f"round {number}", node, write_result(reports[-1], group))
        said = table.close(
            f"round {number}", group_of, until_s=until_s, has_said=node in group_of
        )
        return [
            read_result(text, round_number=number, node=one, group=group_of[one])
            for one, text in said.items()
            if one in group_of
        ]

    while verdict is None or (
        verdict.suspects and len(rounds) < most_rounds(len(names), judging)
    ):
        groups = pair(names, rounds, verdict, config.switches)
        results += hold(groups, len(rounds), is_whole=True)
        rounds.append(groups)
        verdict = judge(names, rounds, results, judging)
    passed = [n for n, o in verdict.opinions.items() if o.outcome == Outcome.PASSED]
    own = reports[-1] if reports else NodeReport(node)
    said: list[Result] = []
    later = switch_rounds(passed, config.switches) if has_exchange else []
    for number, groups in enumerate(later, len(rounds)):
        said += hold(groups, number, is_whole=False)
    verdict = verdict._replace(bad_switches=bad_switches(said, config.switches))
    table.end()
    if absent:
        # A node that was not there is not known to be faulty.
        note = f"{', '.join(absent)} did not come within {config.join_s:g} s"
        verdict = verdict._replace(notes=(*verdict.notes, note), absent=tuple(absent))
    return Together(verdict, tuple(results), own)


def _join(
    table: RoundTable, node: str, nodes: int | Sequence[str], config: CheckConfig
) -> tuple[list[str], list[str]]:
    """Returns who has come, in the order of nodes, and who has not."""
    until_s = time.monotonic() + config.join_s
    _check_names(node, nodes)
    if table.is_over():
        message = (
            f"this store was used by an earlier check, which is over, or {node} came too "
            "late for this one: remove the file, or name another one, or give the check "
            "another id"
        )
        raise ProgramError(message)
    if table.enter(f"node {node}") > 1:
        message = (
            f"two nodes call themselves {node}, or another check was made with this "
            "store: give each node a name, and each check a PrefixStore of its own"
        )
        raise ProgramError(message)
    places = (
        [str(i + 1) for i in range(nodes)] if isinstance(nodes, int) else list(nodes)
    )
    place = str(table.enter("seats")) if isinstance(nodes, int) else node
    if place not in places:
        message = f"this check is of {nodes} nodes, and {node} is one more"
        raise ProgramError(message)
    mine = json.dumps({"node": node, "terms": _terms(config)})
    table.say("join", place, mine)
    said = table.close("join", places, until_s=until_s, has_said=True)
    if place not in said:
        message = (
            f"the check has begun without {node}, which came after {config.join_s:g} s: "
            "give the nodes more time to come (join_s)"
        )
        raise DistributedError(message)
    came = {one: json.loads(text) for one, text in said.items()}
    for other in came.values():
        if other["terms"] != _terms(config):
            message = (
                f"all nodes must be checked in the same way, got {_terms(config)} on "
                f"{node} and {other['terms']} on {other['node']}"
            )
            raise ProgramError(message)
    present = [str(came[one]["node"]) for one in places if one in came]
    if isinstance(nodes, int):
        present.sort()
    absent = [
        f"(one of {nodes})" if isinstance(nodes, int) else one
        for one in places
        if one not in came
    ]
    return present, _unique(absent)


def _unique(names: list[str]) -> list[str]:
    """Returns names that are told apart by numbers."""
    if len(set(names)) == len(names):
        return names
    return [f"{name} {number}" for number, name in enumerate(names, start=1)]


def _check_names(node: str, nodes: int | Sequence[str]) -> None:
    if isinstance(nodes, int):
        if nodes < 1:
            message = f"nodes must be at least 1, got {nodes}"
            raise ProgramError(message)
    elif len(set(nodes)) != len(nodes) or node not in nodes or isinstance(nodes, str):
        message = (
            f"nodes must be different names, and {node} one of them, got "
            f"{nodes if isinstance(nodes, str) else ', '.join(nodes) or 'none'}"
        )
        raise ProgramError(message)
    if not node or "/" in node:
        message = f"a node's name must not be empty and have no '/', got {node!r}"
        raise ProgramError(message)


def _terms(config: CheckConfig) -> str:
    """Returns what all nodes have to agree on, to come to the same verdict."""
    terms = {
        "checks": list(config.checks),
        "measure_s": config.measure_s,
        "round_s": config.round_s,
        "switches": dict(sorted(config.switches.items())),
        "judging": asdict(config.judging),
    }
    return json.dumps(terms)
