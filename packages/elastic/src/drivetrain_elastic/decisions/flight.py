"""Hang report: which ranks keep all others waiting, by what each rank did last.

Collectives of a group begin in the same order on all ranks, and are counted. In a hang, most
ranks are in the same one; who has not entered it is silent, and the others only wait. If all
are in the same one, nobody is silent: the network between them is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class LastOperation(NamedTuple):
    """What a rank did last.

    Attributes:
        epoch: Of the world that it is in.
        step: That it makes.
        collective: How many collectives of that world it has entered.
        name: What it is in: "all-reduce 2", "computing", for example.
        seconds: Since when.
        is_waiting: Whether that is a collective, which waits for all others.
    """

    epoch: int
    step: int
    collective: int
    name: str
    seconds: float
    is_waiting: bool


class HangReport(NamedTuple):
    """What `find_silent` has found.

    Attributes:
        silent: The workers that keep the others waiting.
        reason: What shows it, for people.
    """

    silent: tuple[str, ...]
    reason: str


def find_silent(members: Mapping[str, LastOperation | None]) -> HangReport:
    """Names those for whom the ranks of a world wait.

    Args:
        members: What each worker of the world did last; None for one that says nothing.

    Example:
        >>> at = LastOperation(3, 120, 17, "all-reduce", 9.0, True)
        >>> find_silent({"a": at, "b": at, "c": at._replace(
        ...     collective=16, name="computing", is_waiting=False)})
        HangReport(silent=('c',), reason="c is in 'computing' of step 120 for 9.0 s, and has \
not entered collective 17, in which 2 others wait")
    """
    mute = [name for name, last in members.items() if last is None]
    heard = {name: last for name, last in members.items() if last is not None}
    if not heard:
        return HangReport((), "no rank says what it does")
    newest = max(last.epoch for last in heard.values())
    late = [name for name, last in heard.items() if last.epoch < newest]
    here = {name: last for name, last in heard.items() if last.epoch == newest}
    furthest = max(last.collective for last in here.values())
    waiting = [
        name
        for name, last in here.items()
        if last.collective == furthest and last.is_waiting
    ]
    behind = [name for name, last in here.items() if last.collective < furthest]
    if mute:
        reason = f"{_names(mute)} {_be(mute)} silent, and {len(waiting)} others wait"
        return HangReport(tuple(mute), reason)
    if late:
        reason = f"{_names(late)} {_be(late)} not in world {newest}, where others wait"
        return HangReport(tuple(late), reason)
    if behind:
        one = min(behind, key=lambda name: (here[name].collective, -here[name].seconds))
        last = here[one]
        others = f" (and so {_names([b for b in behind if b != one])})" * (
            len(behind) > 1
        )
        reason = (
            f"{one} is in {last.name!r} of step {last.step} for {last.seconds:.1f} s, and "
            f"has not entered collective {furthest}, in which {len(waiting)} others wait"
            f"{others}"
        )
        return HangReport(tuple(behind), reason)
    busy = [name for name, last in here.items() if not last.is_waiting]
    if len(busy) == len(here):
        reason = "all ranks compute, and none waits"
        return HangReport((), reason)
    if busy:
        # It has left the collective that others are still in, or has entered it late.
        reason = (
            f"all ranks have entered collective {furthest}; {_names(busy)} {_be(busy)} "
            f"out of it, in {here[busy[0]].name!r}"
        )
        return HangReport(tuple(busy), reason)
    reason = (
        f"all {len(here)} ranks wait in collective {furthest}: what is silent is the "
        "network between them"
    )
    return HangReport((), reason)


def _be(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
