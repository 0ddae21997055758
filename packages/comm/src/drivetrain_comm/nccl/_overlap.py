"""Which rules of a table would both decide one call.

The same search as in `csrc/nccl_tuner/overlap.cpp`, so that both name the same rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drivetrain_comm.nccl._rule import Rule

_ANY = -1
_CONDITIONS = ("ranks", "nodes", "num_pipe_ops", "reg_buff")

# Collective and conditions, the first byte, the place of the rule, and its class.
_Entry = tuple[tuple[str | int, ...], int, int, int]


def find_overlap(rules: Sequence[Rule]) -> tuple[int, int] | None:
    """Returns the places of two rules that would both decide some call, or None.

    Rules are taken together by which of their conditions are fixed. Within two such
    classes they are sorted by what is fixed in both, so that one pass finds those that
    meet: n log n steps for n rules.

    Args:
        rules: In any order.

    Example:
        >>> from drivetrain_comm.nccl import Rule
        >>> small = Rule(collective="reduce", algorithm="ring", protocol="ll",
        ...     end_bytes=100, ranks=2)
        >>> all_of_two_nodes = Rule(collective="reduce", algorithm="ring",
        ...     protocol="simple", nodes=2)
        >>> find_overlap([small, all_of_two_nodes])
        (0, 1)
    """
    conditions = [_conditions_of(rule) for rule in rules]
    classes: dict[int, list[int]] = {}
    for place, values in enumerate(conditions):
        fixed = sum(1 << at for at, value in enumerate(values) if value != _ANY)
        classes.setdefault(fixed, []).append(place)
    pairs = [
        pair
        for one in classes
        for other in classes
        if one <= other
        for pair in _meetings(
            rules,
            _sorted_entries(rules, conditions, classes, one, other),
            is_one_class=one == other,
        )
    ]
    if not pairs:
        return None
    later, earlier = min(pairs)
    return earlier, later


def _conditions_of(rule: Rule) -> tuple[int, ...]:
    values = (getattr(rule, name) for name in _CONDITIONS)
    return tuple(_ANY if value is None else int(value) for value in values)


def _sorted_entries(
    rules: Sequence[Rule],
    conditions: Sequence[tuple[int, ...]],
    classes: dict[int, list[int]],
    one: int,
    other: int,
) -> list[_Entry]:
    fixed = one & other
    entries: list[_Entry] = []
    for side, name in enumerate((one,) if one == other else (one, other)):
        for place in classes[name]:
            values = conditions[place]
            in_both = (v if fixed >> at & 1 else _ANY for at, v in enumerate(values))
            rule = rules[place]
            entries.append(((rule.collective, *in_both), rule.begin_bytes, place, side))
    return sorted(entries)


def _meetings(
    rules: Sequence[Rule], entries: Sequence[_Entry], *, is_one_class: bool
) -> Iterator[tuple[int, int]]:
    """Yields where a rule begins before one of the other class ends; the later first."""
    farthest: list[tuple[tuple[str | int, ...], float, int] | None] = [None, None]
    for key, begin, place, side in entries:
        other = farthest[0 if is_one_class else 1 - side]
        if other and other[0] == key and other[1] > begin:
            yield max(other[2], place), min(other[2], place)
        end = rules[place].end_bytes
        reach = float("inf") if end is None else end
        mine = farthest[side]
        if mine is None or mine[0] != key or reach > mine[1]:
            farthest[side] = key, reach, place
