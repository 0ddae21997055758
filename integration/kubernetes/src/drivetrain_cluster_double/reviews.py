"""Answers to the question whether somebody may do something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drivetrain_cluster_double.authorize import User, refusal, rules_of
from drivetrain_cluster_double.errors import path_not_found
from drivetrain_cluster_double.routes import Call

if TYPE_CHECKING:
    from drivetrain_cluster_double.store import Store

__all__ = ["review"]


def review(
    store: Store, user: User, call: Call, content: dict[str, Any]
) -> dict[str, Any]:
    """Answers a review.

    Args:
        store: Of the cluster.
        user: Who asks.
        call: Which kind of review it is.
        content: The review, without its status.

    Raises:
        StatusError: There is no such review.
    """
    spec = content.get("spec") or {}
    match call.resource:
        case "selfsubjectaccessreviews":
            status = _answer(store, user, spec)
        case "subjectaccessreviews":
            other = User(spec.get("user", ""), tuple(spec.get("groups") or ()))
            status = _answer(store, other, spec)
        case "selfsubjectrulesreviews":
            with store.lock:
                rules = list(rules_of(store, user, spec.get("namespace", "")))
            status = {
                "resourceRules": rules,
                "nonResourceRules": [],
                "incomplete": False,
            }
        case _:
            raise path_not_found()
    return {**content, "metadata": content.get("metadata") or {}, "status": status}


def _answer(store: Store, user: User, spec: dict[str, Any]) -> dict[str, Any]:
    asked = spec.get("resourceAttributes")
    if asked is None:
        # What the server says of itself, everybody may read.
        return {"allowed": True}
    wanted = Call(
        asked.get("verb", ""),
        asked.get("group", ""),
        asked.get("version", ""),
        asked.get("resource", ""),
        asked.get("namespace", ""),
        asked.get("name", ""),
        asked.get("subresource", ""),
    )
    error = refusal(store, user, wanted)
    return {"allowed": error is None, "reason": error.message if error else ""}
