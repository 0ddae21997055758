"""Events as the core has them, and as the newer group `events.k8s.io` has them."""

from __future__ import annotations

from typing import Any

GROUP = "events.k8s.io"
"""The newer group; its objects are kept as those of the core."""

# Of the newer group, and of the core.
_NAMES = {
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "deprecatedCount": "count",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedSource": "source",
}
_OLD_NAMES = {core: new for new, core in _NAMES.items()}


def to_core(item: dict[str, Any]) -> dict[str, Any]:
    """Returns an event of the newer group as the core has it.

    Example:
        >>> to_core({"apiVersion": "events.k8s.io/v1", "note": "gone"})
        {'apiVersion': 'v1', 'message': 'gone'}
    """
    found = {_NAMES.get(key, key): value for key, value in item.items()}
    return {**found, "apiVersion": "v1"}


def from_core(item: dict[str, Any]) -> dict[str, Any]:
    """Returns an event of the core as the newer group has it."""
    found = {_OLD_NAMES.get(key, key): value for key, value in item.items()}
    return {**found, "apiVersion": f"{GROUP}/v1"}
