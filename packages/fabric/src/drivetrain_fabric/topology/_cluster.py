"""Finds hosts, slow links and lopsided links in measured numbers, without any names."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_fabric.topology._errors import TopologyError
from drivetrain_fabric.topology._units import amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drivetrain_fabric.topology._matrix import LinkMatrix

_Groups = tuple[tuple[int, ...], ...]
_LEAST_DELAY_S = 1e-9
# With fewer links nobody knows what is usual.
_LEAST_LINKS = 6
# A rank is slow if so many of its links are: some that are faster are to its own host.
_MOST_LINKS = 0.75


@dataclass(frozen=True, slots=True)
class Flaw:
    """A link, or all links of a rank, that are not like the others.

    Args:
        kind: `slow` or `lopsided`.
        ranks: From which rank to which; one rank alone where all its links are slow.
        factor: How much worse it is than it should be.
        message: All that in words.
        is_mutual: Whether the way back is as bad.
    """

    kind: str
    ranks: tuple[int, ...]
    factor: float
    message: str
    is_mutual: bool = False


def find_levels(matrix: LinkMatrix, *, min_gap: float = 1.5) -> tuple[_Groups, ...]:
    """Returns the groups of ranks that are near to each other, the finest groups first.

    The distance of two ranks is the geometric mean of delay and seconds a byte, of the
    worse direction. Ranks are joined from the nearest on; where the next distance is
    larger by `min_gap`, a level ends.

    Args:
        matrix: What was measured.
        min_gap: The least ratio of distances between levels. 1.5 is 2.25 in delay or
            speed alone.

    Raises:
        TopologyError: `min_gap` is not more than 1.

    Example:
        >>> from drivetrain_fabric.topology import LinkMatrix
        >>> near = lambda a, b: a != b and (1e-5 if a % 2 == b % 2 else 1e-3)
        >>> links = LinkMatrix(
        ...     delay_s=tuple(tuple(float(near(a, b)) for b in range(4))
        ...                   for a in range(4)),
        ...     bytes_per_s=tuple(tuple(1e9 * (a != b) for b in range(4))
        ...                       for a in range(4)))
        >>> find_levels(links)
        (((0, 2), (1, 3)),)
    """
    if not min_gap > 1:
        message = f"min_gap must be more than 1, got {min_gap}"
        raise TopologyError(message)
    far = _distances(matrix)
    group_of = list(range(len(matrix)))
    levels = []
    reached = None
    edges = sorted((far[a][b], a, b) for a, b in matrix.pairs() if a < b)
    for length, a, b in edges:
        if group_of[a] == group_of[b]:
            continue
        if reached is not None and length >= reached * min_gap:
            levels.append(_groups(group_of, matrix.ranks))
        reached = length
        old, new = group_of[b], group_of[a]
        group_of = [new if group == old else group for group in group_of]
    return tuple(levels)


def find_hosts(matrix: LinkMatrix, *, min_gap: float = 1.5) -> _Groups:
    """Returns the ranks of each host, as far as distances tell them apart.

    It is the finest level. Where all distances are alike, all ranks are one host: as
    many hosts of one rank each would look the same. A rank that is slow to reach from
    everywhere looks like a host of its own.

    Args:
        matrix: What was measured.
        min_gap: As in `find_levels`.

    Raises:
        TopologyError: `min_gap` is not more than 1.
    """
    levels = find_levels(matrix, min_gap=min_gap)
    return levels[0] if levels else (tuple(sorted(matrix.ranks)),)


def check_hosts(hosts: Iterable[Sequence[int]], matrix: LinkMatrix) -> list[list[int]]:
    """Returns the rows of each host.

    Args:
        hosts: The ranks of each host.
        matrix: What was measured.

    Raises:
        TopologyError: A rank is missing, doubled, or was not measured.
    """
    hosts = [list(host) for host in hosts if host]
    if sorted(rank for host in hosts for rank in host) != sorted(matrix.ranks):
        message = f"hosts must hold each of {sorted(matrix.ranks)} once, got {hosts}"
        raise TopologyError(message)
    rows = {rank: row for row, rank in enumerate(matrix.ranks)}
    return [[rows[rank] for rank in host] for host in hosts]


def find_flaws(
    matrix: LinkMatrix,
    *,
    hosts: Iterable[Sequence[int]] | None = None,
    factor: float = 1.5,
) -> tuple[Flaw, ...]:
    """Returns the links that are worse than others of their kind, the worst first.

    Links within hosts are compared with each other, and those between hosts likewise.

    Args:
        matrix: What was measured.
        hosts: The ranks of each host; by default what `find_hosts` finds.
        factor: How much worse than the median a link must be.

    Raises:
        TopologyError: `factor` is not more than 1, or `hosts` do not fit.
    """
    if not factor > 1:
        message = f"factor must be more than 1, got {factor}"
        raise TopologyError(message)
    rows = check_hosts(find_hosts(matrix) if hosts is None else hosts, matrix)
    host_of = {row: i for i, host in enumerate(rows) for row in host}
    found: list[Flaw] = []
    for is_within in (True, False):
        pairs = [
            (a, b) for a, b in matrix.pairs() if (host_of[a] == host_of[b]) == is_within
        ]
        found += _judge(matrix, pairs, "within" if is_within else "between", factor)
    return tuple(sorted(found, key=lambda flaw: (-flaw.factor, flaw.ranks)))


def _judge(
    matrix: LinkMatrix, pairs: list[tuple[int, int]], where: str, factor: float
) -> Iterable[Flaw]:
    if not pairs:
        return
    speeds, delays = matrix.bytes_per_s, matrix.delay_s
    usual_speed = statistics.median(speeds[a][b] for a, b in pairs)
    usual_delay = statistics.median(delays[a][b] for a, b in pairs)
    slow: dict[tuple[int, int], tuple[float, str]] = {}
    for a, b in pairs:
        by_speed = usual_speed / speeds[a][b]
        by_delay = delays[a][b] / max(usual_delay, _LEAST_DELAY_S)
        bytes_too = _against(speeds[a][b], usual_speed, "B/s")
        delay_too = _against(delays[a][b], usual_delay, "s")
        worst = max((by_speed, bytes_too), (by_delay, delay_too))
        if worst[0] >= factor and len(pairs) >= _LEAST_LINKS:
            slow[a, b] = worst
    for row in sorted({a for a, _ in pairs}):
        links = [pair for pair in pairs if row in pair]
        bad = [slow[pair][0] for pair in links if pair in slow]
        if len(bad) >= max(_MOST_LINKS * len(links), 4):
            rank, worse = matrix.ranks[row], statistics.median(bad)
            text = f"rank {rank}: its links {where} hosts are {worse:.1f}x slower"
            yield Flaw("slow", (rank,), worse, text)
            slow = {pair: why for pair, why in slow.items() if row not in pair}
    for a, b in pairs:
        ends = matrix.ranks[a], matrix.ranks[b]
        ratio = speeds[b][a] / speeds[a][b]
        is_mutual = (b, a) in slow
        text = f"rank {ends[0]} {'and' if is_mutual else 'to'} rank {ends[1]}"
        if ratio >= factor:
            text = f"rank {ends[0]} to rank {ends[1]}: {ratio:.1f}x slower than back"
            why = _against(speeds[a][b], speeds[b][a], "B/s")
            yield Flaw("lopsided", ends, ratio, f"{text} ({why})")
        elif (a, b) in slow and (a < b or not is_mutual) and ratio > 1 / factor:
            worse, why = slow[a, b]
            text += f": {worse:.1f}x slower than others {where} hosts ({why})"
            yield Flaw("slow", ends, worse, text, is_mutual)


def _against(value: float, usual: float, unit: str) -> str:
    return f"{amount(value, unit)}, not {amount(usual, unit)}"


def _distances(matrix: LinkMatrix) -> list[list[float]]:
    def one_way(a: int, b: int) -> float:
        delay = max(matrix.delay_s[a][b], _LEAST_DELAY_S)
        return math.sqrt(delay / matrix.bytes_per_s[a][b])

    size = range(len(matrix))
    return [
        [0.0 if a == b else max(one_way(a, b), one_way(b, a)) for b in size]
        for a in size
    ]


def _groups(group_of: Sequence[int], ranks: Sequence[int]) -> _Groups:
    found: dict[int, list[int]] = {}
    for rank, group in zip(ranks, group_of, strict=True):
        found.setdefault(group, []).append(rank)
    return tuple(sorted(tuple(sorted(group)) for group in found.values()))
