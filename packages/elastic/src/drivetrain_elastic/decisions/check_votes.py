"""Which nodes a check has found faulty, if some of those who tell of it may be so themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def convicted(
    votes: Mapping[str, Mapping[str, str]], present: Collection[str]
) -> dict[str, str]:
    """Returns the nodes that are faulty, with the reason.

    Who says so of itself is believed. Of another one it takes more than half of those that
    are there: a node that lies cannot put out the others. Who is not there is left alone.

    Args:
        votes: Whom each node has found faulty, and why.
        present: The nodes that are there.

    Example:
        >>> votes = {"a": {"c": "slow"}, "b": {"c": "slow"}, "c": {"a": "slow"}}
        >>> convicted(votes, ["a", "b", "c"])
        {'c': 'slow'}
    """
    found: dict[str, str] = {}
    accused: dict[str, list[str]] = {}
    for voter, bad in votes.items():
        if voter in bad:
            found[voter] = bad[voter]
        if voter in present:
            for node, why in bad.items():
                if node != voter:
                    accused.setdefault(node, []).append(why)
    for node, reasons in accused.items():
        if node not in found and 2 * len(reasons) > len(present):
            found[node] = reasons[0]
    return {node: why for node, why in found.items() if node in present}
