"""What becomes of an object whose owners go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cluster_double.removal import FOREGROUND, ORPHAN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Fate", "decide", "is_released", "is_waiting", "without_owners"]


class Fate(NamedTuple):
    """What is to be done with an object.

    Attributes:
        propagation: Delete it, like this; empty to keep it.
        lost_uids: Owners that it has no more.
    """

    propagation: str = ""
    lost_uids: frozenset[str] = frozenset()


def is_waiting(item: Mapping[str, Any]) -> bool:
    """Whether an object is being deleted, and waits for those that it owns."""
    metadata = item["metadata"]
    return "deletionTimestamp" in metadata and FOREGROUND in (
        metadata.get("finalizers") or ()
    )


def decide(
    item: Mapping[str, Any],
    owners: Mapping[str, Mapping[str, Any] | None],
    *,
    has_dependents: bool,
) -> Fate:
    """Decides what becomes of an object.

    Args:
        item: The object.
        owners: Those that it names, by their uids; None for one that is not there.
        has_dependents: Whether it owns others.

    Example:
        >>> pod = {"metadata": {"ownerReferences": [{"uid": "1"}]}}
        >>> decide(pod, {"1": None}, has_dependents=False)
        Fate(propagation='Background', lost_uids=frozenset())
    """
    metadata = item["metadata"]
    references = metadata.get("ownerReferences") or []
    if not references or "deletionTimestamp" in metadata:
        return Fate()
    lost = {one["uid"] for one in references if owners.get(one["uid"]) is None}
    waiting = {
        one["uid"]
        for one in references
        if (owner := owners.get(one["uid"])) is not None and is_waiting(owner)
    }
    if len(lost) + len(waiting) < len({one["uid"] for one in references}):
        return Fate(lost_uids=frozenset(lost | waiting))
    if waiting and has_dependents:
        return Fate("Foreground")
    finalizers = metadata.get("finalizers") or ()
    if ORPHAN in finalizers:
        return Fate("Orphan")
    return Fate("Foreground" if FOREGROUND in finalizers else "Background")


def is_released(uid: str, dependents: Iterable[Mapping[str, Any]]) -> bool:
    """Whether none of those that it owns keeps an object that waits for them."""
    return not any(
        one["uid"] == uid and one.get("blockOwnerDeletion")
        for item in dependents
        for one in item["metadata"].get("ownerReferences") or ()
    )


def without_owners(item: dict[str, Any], uids: Iterable[str]) -> dict[str, Any]:
    """Returns an object that does not name some owners."""
    lost, metadata = set(uids), dict(item["metadata"])
    kept = [o for o in metadata.pop("ownerReferences", ()) if o["uid"] not in lost]
    if kept:
        metadata["ownerReferences"] = kept
    return {**item, "metadata": metadata}
