"""What a deletion does to an object: it goes at once, or it is marked and goes later."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_cluster_double.errors import bad_request
from drivetrain_cluster_double.times import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = ["FOREGROUND", "ORPHAN", "DeleteOptions", "Removal", "is_over", "remove"]

FOREGROUND = "foregroundDeletion"
"""The finalizer of an object that waits for those that it owns."""

ORPHAN = "orphan"
"""The finalizer of an object that is to be forgotten by those that it owns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteOptions:
    """How an object is deleted.

    Args:
        grace_s: How long it may take to end; None for what the object says.
        propagation: What becomes of those that it owns: `Background`, `Foreground` or
            `Orphan`; empty for what its kind does by default.
        uid: The object must have it.
        revision: The object must have this version.
        is_dry_run: Whether nothing is to happen.
    """

    grace_s: int | None = None
    propagation: str = ""
    uid: str = ""
    revision: str = ""
    is_dry_run: bool = False

    @classmethod
    def read(cls, body: Mapping[str, Any], query: Mapping[str, str]) -> DeleteOptions:
        """Reads the options of a call.

        Raises:
            StatusError: They cannot be read.
        """
        if not isinstance(body, dict) or not isinstance(
            body.get("preconditions") or {}, dict
        ):
            message = f"the options of a deletion are an object, got {str(body)[:60]}"
            raise bad_request(message)
        grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        policy = body.get("propagationPolicy") or query.get("propagationPolicy", "")
        if policy not in {"", "Background", "Foreground", "Orphan"}:
            message = (
                "propagationPolicy must be Background, Foreground or Orphan, got "
                f"{policy!r}"
            )
            raise bad_request(message)
        orphans = body.get("orphanDependents", query.get("orphanDependents"))
        if not policy and orphans is not None:
            policy = "Orphan" if orphans in {True, "true"} else "Background"
        wanted = body.get("preconditions") or {}
        return cls(
            grace_s=None if grace is None else _seconds(grace),
            propagation=policy,
            uid=wanted.get("uid") or "",
            revision=wanted.get("resourceVersion") or "",
            is_dry_run=bool(body.get("dryRun") or query.get("dryRun")),
        )


class Removal(NamedTuple):
    """What a deletion does.

    Attributes:
        item: The object as it is left, or as it was last.
        is_gone: Whether it is removed now.
    """

    item: dict[str, Any]
    is_gone: bool


def remove(item: dict[str, Any], options: DeleteOptions, now: datetime) -> Removal:
    """Decides what a deletion does to an object.

    Args:
        item: The object.
        options: How it is deleted.
        now: The time.
    """
    metadata = dict(item["metadata"])
    finalizers = [
        name
        for name in metadata.get("finalizers") or ()
        if not options.propagation or name not in {FOREGROUND, ORPHAN}
    ]
    if options.propagation == "Foreground":
        finalizers.append(FOREGROUND)
    elif options.propagation == "Orphan":
        finalizers.append(ORPHAN)
    metadata.pop("finalizers", None)
    if finalizers:
        metadata["finalizers"] = finalizers
    grace_s = _grace(item, options)
    there_s = metadata.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" not in metadata or grace_s < (there_s or 0):
        end = now + timedelta(seconds=grace_s)
        metadata["deletionTimestamp"] = format_time(end)
        metadata["deletionGracePeriodSeconds"] = grace_s
        if "generation" in metadata:
            metadata["generation"] += 1
    found = {**item, "metadata": metadata}
    return Removal(found, is_over(found))


def is_over(item: Mapping[str, Any]) -> bool:
    """Whether an object that is being deleted is to be removed now."""
    metadata = item["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if item["kind"] == "Namespace" and item.get("spec", {}).get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def _seconds(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        message = f"gracePeriodSeconds is a whole number, got {value!r}"
        raise bad_request(message) from error


def _grace(item: Mapping[str, Any], options: DeleteOptions) -> int:
    if item["kind"] != "Pod":
        return 0
    is_idle = not item["spec"].get("nodeName")
    if is_idle or item.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return 0
    given = options.grace_s
    if given is None:
        given = item["spec"].get("terminationGracePeriodSeconds", 30)
    return max(given, 0)
