"""What a reconciliation asks for: plain data, carried out in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateObject:
    """Makes an object; one that is there already is left as it is.

    Args:
        kind: Its kind.
        item: The whole of it.
    """

    kind: str
    item: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteObject:
    """Deletes an object; one that is gone, or another one of its name, is none.

    Args:
        kind: Its kind.
        namespace: Its namespace.
        name: Its name.
        uid: Of the one that is meant.
        reason: Why.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchObject:
    """Merges into an object.

    Args:
        kind: Its kind.
        namespace: Its namespace.
        name: Its name.
        patch: What becomes different.
        reason: Why.
        sub: A part of it, as `status`.
    """

    kind: str
    namespace: str
    name: str
    patch: dict[str, Any]
    reason: str
    sub: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetStatus:
    """Replaces the status of the job, of the version that was looked at.

    Args:
        status: The whole of it, without times of conditions that have changed.
    """

    status: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsureSecret:
    """Makes the token and the certificates of the job, unless it has them.

    Args:
        name: Of the secret.
        address: Of the service of its master.
        owner: Whom it goes with.
    """

    name: str
    address: str
    owner: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class TellEvent:
    """Tells people what happens to the job.

    Args:
        reason: In a word.
        note: In a sentence.
        is_warning: Whether they should look at it.
    """

    reason: str
    note: str
    is_warning: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmitWorkers:
    """Lets only these workers train; none pauses the job.

    Args:
        pods: Their names.
        reason: Why.
    """

    pods: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveState:
    """Asks for a checkpoint at the end of a step.

    Args:
        request: A name for it that no other one has.
        within_s: In how many seconds it must be durable.
        reason: Why.
    """

    request: str
    within_s: float
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LetLeave:
    """Lets a worker leave at the end of a step.

    Args:
        pod: Which one.
        within_s: After how many seconds it is ended.
        reason: Why.
    """

    pod: str
    within_s: float
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StopTraining:
    """Ends the training of the job.

    Args:
        reason: Why.
        exit_code: Of the job.
    """

    reason: str
    exit_code: int


OperatorAction = (
    CreateObject
    | DeleteObject
    | PatchObject
    | SetStatus
    | EnsureSecret
    | TellEvent
    | AdmitWorkers
    | SaveState
    | LetLeave
    | StopTraining
)


def delete_object(kind: str, item: dict[str, Any], reason: str) -> DeleteObject:
    """Returns the action that deletes an object."""
    data = item["metadata"]
    return DeleteObject(
        kind=kind,
        namespace=data["namespace"],
        name=data["name"],
        uid=data["uid"],
        reason=reason,
    )


def patch_object(
    kind: str, item: dict[str, Any], patch: dict[str, Any], reason: str
) -> PatchObject:
    """Returns the action that merges into an object."""
    data = item["metadata"]
    return PatchObject(
        kind=kind,
        namespace=data["namespace"],
        name=data["name"],
        patch=patch,
        reason=reason,
    )
