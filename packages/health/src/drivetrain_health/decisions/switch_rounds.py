"""Rounds of nodes under one switch, and of nodes under different ones; which switch is bad.

What all nodes under a switch do together shows the switch. What pairs across switches do
all at once shows their uplinks: those of a switch are bad if it is slow with each other
one, of which at least one is fast with others.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_health.decisions.node_results import Groups, Result

# Of fewer, one could move what is usual; one that is bad spoils two meetings on the ring.
_FEWEST_TO_COMPARE, _FEWEST_ON_RING = 3, 4
# What all nodes of a switch get together is steadier than what one gets.
_LEAST_SHARE = 0.75


class SwitchMeeting(NamedTuple):
    """What nodes did together: all under one switch, or those of two switches in pairs.

    Attributes:
        switches: One, or two.
        rate: In GB/s; 0 if it failed.
    """

    switches: tuple[str, ...]
    rate: float


def switch_rounds(nodes: Sequence[str], switches: Mapping[str, str]) -> list[Groups]:
    """Returns the groups of some rounds: under each switch, then pairs across switches.

    Each switch meets two others, unless there are fewer than four.

    Args:
        nodes: Those that have passed.
        switches: Under which switch each node is, as far as it is known.

    Example:
        >>> under = {n: f"s{i // 2}" for i, n in enumerate("abcdefgh")}
        >>> for groups in switch_rounds("abcdefgh", under):
        ...     print(*map("".join, groups))
        ab cd ef gh
        ac bd eg fh
        ce df ga hb
    """
    members: dict[str, list[str]] = {}
    for node in nodes:
        if node in switches:
            members.setdefault(switches[node], []).append(node)
    ring = list(members.values()) if len(members) >= _FEWEST_ON_RING else []
    across: list[list[tuple[str, ...]]] = [[], [], []]
    for at, here in enumerate(ring):
        # The last one of an odd ring meets the first when both are free.
        number = 2 if at == len(ring) - 1 and at % 2 == 0 else at % 2
        across[number] += zip(here, ring[(at + 1) % len(ring)], strict=False)
    under = [tuple(group) for group in members.values() if len(group) > 1]
    return [tuple(groups) for groups in (under, *across) if groups]


def bad_switches(
    results: Sequence[Result], switches: Mapping[str, str]
) -> dict[str, str]:
    """Returns the switches that are bad, and why.

    Args:
        results: What nodes have said of those rounds.
        switches: Under which switch each node is.

    Example:
        >>> from drivetrain_health.decisions.node_results import Result
        >>> under = {n: f"s{i // 2}" for i, n in enumerate("abcdefgh")}
        >>> said = [Result(r, n, g, {"network_x": 9.0 if under[n] == "s1" else 20.0})
        ...         for r, groups in enumerate(switch_rounds("abcdefgh", under))
        ...         for g in groups for n in g]
        >>> bad_switches(said, under)["s1"]
        'network_x under it: 9 GB/s at best, usual are 20'
    """
    names = {name for one in results for name in one.measures} or {"exchange"}
    rates: dict[tuple[str, int], dict[tuple[str, ...], list[float]]] = {}
    for one in results:
        met = tuple(dict.fromkeys(switches[node] for node in one.group))
        for name in sorted(names):
            of_name = rates.setdefault((name, len(met)), {})
            of_name.setdefault(met, []).append(one.measures.get(name, 0.0))
    found: dict[str, str] = {}
    for (name, num), of_name in rates.items():
        where = "under it" if num == 1 else "across its uplinks"
        meetings = [
            SwitchMeeting(met, statistics.median(known))
            for met, known in of_name.items()
        ]
        for switch, why in _bad(meetings).items():
            found.setdefault(switch, f"{name} {where}: {why}")
    return found


def _bad(meetings: Sequence[SwitchMeeting]) -> dict[str, str]:
    usual = statistics.median_high(one.rate for one in meetings)
    least = _LEAST_SHARE * usual if len(meetings) >= _FEWEST_TO_COMPARE else 0.0
    fast = {s for m in meetings if m.rate >= least and m.rate for s in m.switches}
    found = {}
    for switch in dict.fromkeys(s for one in meetings for s in one.switches):
        its = [one for one in meetings if switch in one.switches]
        others = {s for one in its for s in one.switches} - {switch}
        if switch not in fast and (not others or not fast or others & fast):
            best = max(one.rate for one in its)
            said = f"{best:.3g} GB/s at best, usual are {usual:.3g}"
            found[switch] = said if best else "failed"
    return found
