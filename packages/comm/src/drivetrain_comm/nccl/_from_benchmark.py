"""Makes a table out of measurements: only what beats NCCL's own choice becomes a rule."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_comm.nccl._errors import NcclTableError
from drivetrain_comm.nccl._rule import Rule
from drivetrain_comm.nccl._table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from drivetrain_comm.nccl._measurement import Measurement

LEAST_GAIN = 0.03
"""By which part of NCCL's time a choice must be faster, to become a rule."""

_Choice = tuple[str, str, int | None]
_Place = tuple[str, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Winner:
    """What was the fastest at one size.

    Args:
        place: Collective, ranks and nodes.
        size_bytes: The size.
        choice: Algorithm, protocol and channels; None where NCCL's own choice stays.
        time_us: The median time of the choice.
        default_us: The median time of NCCL's own.
    """

    place: tuple[str, int, int]
    size_bytes: int
    choice: tuple[str, str, int | None] | None
    time_us: float
    default_us: float


def table_from(
    measurements: Iterable[Measurement], *, least_gain: float = LEAST_GAIN
) -> Table:
    """Returns a table of the choices that were faster than NCCL's own.

    Neighbouring sizes with the same choice become one range, from the first of them to
    the last. Between neighbours with two choices the ranges meet at the geometric mean;
    next to a size that stays NCCL's, and outside of all sizes, a range ends with the
    size that was measured.

    Args:
        measurements: Several of the same kind are repeats: their medians are compared,
            and a choice must also be faster in three of four repeats than NCCL's own in
            one of four. The more choices are tried, the more repeats it takes to keep
            noise out; five are a good number.
        least_gain: By which part of NCCL's time a choice must be faster.

    Raises:
        NcclTableError: There is no time of NCCL's own choice for some size, or the gain
            is not from 0 to less than 1.

    Example:
        >>> from drivetrain_comm.nccl import format_table, parse_measurements
        >>> rows = '''collective,ranks,nodes,size_bytes,algorithm,protocol,channels,time_us
        ... all_reduce,8,1,1024,default,default,,20
        ... all_reduce,8,1,1024,ring,ll,,12
        ... all_reduce,8,1,2048,default,default,,21
        ... all_reduce,8,1,2048,ring,ll,,13
        ... all_reduce,8,1,4096,default,default,,22
        ... all_reduce,8,1,4096,ring,ll,,22'''
        >>> print(format_table(table_from(parse_measurements(rows))))
        drivetrain-nccl-table 1
        # collective  sizes        ranks  nodes  algorithm  protocol
        all_reduce    1KiB..2049B  8      1      ring       ll
        <BLANKLINE>
    """
    by_place: dict[_Place, list[Winner]] = {}
    for winner in find_winners(measurements, least_gain=least_gain):
        by_place.setdefault(winner.place, []).append(winner)
    rules = [rule for winners in by_place.values() for rule in _rules(winners)]
    return Table(rules=tuple(rules))


def find_winners(
    measurements: Iterable[Measurement], *, least_gain: float = LEAST_GAIN
) -> list[Winner]:
    """Returns the fastest choice for each collective, communicator and size, in order.

    Args:
        measurements: As for `table_from`.
        least_gain: As for `table_from`.

    Raises:
        NcclTableError: As for `table_from`.
    """
    if not 0 <= least_gain < 1:
        message = f"least_gain must be from 0 to less than 1, got {least_gain}"
        raise NcclTableError(message)
    times: dict[tuple[_Place, int], dict[_Choice | None, list[float]]] = {}
    first: dict[tuple[_Place, int], str] = {}
    for one in measurements:
        key = ((one.collective, one.ranks, one.nodes), one.size_bytes)
        first.setdefault(key, f"{one.where}: " if one.where else "")
        times.setdefault(key, {}).setdefault(one.choice, []).append(one.time_us)
    winners = []
    for (place, size_bytes), by_choice in sorted(
        times.items(), key=lambda item: item[0]
    ):
        defaults = by_choice.pop(None, None)
        if defaults is None:
            collective, ranks, nodes = place
            message = (
                f"{first[place, size_bytes]}NCCL's own time must be known for every size: there is none for "
                f"{collective} of {size_bytes} bytes, {ranks} ranks on {nodes} nodes "
                "(a row with the algorithm and the protocol 'default')"
            )
            raise NcclTableError(message)
        best = _fastest(by_choice, defaults, least_gain)
        winners.append(
            Winner(
                place=place,
                size_bytes=size_bytes,
                choice=best,
                time_us=statistics.median(by_choice[best] if best else defaults),
                default_us=statistics.median(defaults),
            )
        )
    return winners


def _fastest(
    by_choice: Mapping[_Choice | None, Sequence[float]],
    defaults: Sequence[float],
    least_gain: float,
) -> _Choice | None:
    # Of two that are as fast the one that leaves the channels to NCCL comes first.
    faster = [
        (statistics.median(times), choice[2] or 0, choice[:2], choice)
        for choice, times in by_choice.items()
        if choice is not None and _is_faster(times, defaults, least_gain)
    ]
    return min(faster)[-1] if faster else None


def _is_faster(
    times: Sequence[float], defaults: Sequence[float], least_gain: float
) -> bool:
    middle, default = statistics.median(times), statistics.median(defaults)
    if middle > (1 - least_gain) * default:
        return False
    return _quartile(times, 3) < _quartile(defaults, 1)


def _quartile(times: Sequence[float], number: int) -> float:
    if len(times) == 1:
        return times[0]
    return statistics.quantiles(times, n=4, method="inclusive")[number - 1]


def _rules(winners: Sequence[Winner]) -> list[Rule]:
    """Returns the rules of one collective and communicator, whose sizes are in order."""
    rules: list[Rule] = []
    begin = 0
    for at, winner in enumerate(winners):
        before = winners[at - 1].choice if at else None
        after = winners[at + 1].choice if at + 1 < len(winners) else None
        if winner.choice is None:
            continue
        if before is None:
            begin = winner.size_bytes
        if after == winner.choice:
            continue
        end = winner.size_bytes + 1
        if after is not None:
            end = max(end, math.isqrt(winner.size_bytes * winners[at + 1].size_bytes))
        collective, ranks, nodes = winner.place
        algorithm, protocol, channels = winner.choice
        rules.append(
            Rule(
                collective=collective,
                begin_bytes=begin,
                end_bytes=end,
                ranks=ranks,
                nodes=nodes,
                algorithm=algorithm,
                protocol=protocol,
                channels=channels,
            )
        )
        begin = end
    return rules
