"""What a reconciliation asks for: plain data, carried out in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class OperatorAction:
    """Something to do; it may be done again."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateObject(OperatorAction):
    """Makes an object; one that is there already is left as it is.

    Args:
        kind: Its kind.
        item: The whole of it.
        is_kept: Whether one that is there is made to say the same.
    """

    kind: str
    item: dict[str, Any] = field(repr=False)
    is_kept: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteObject(OperatorAction):
    """Deletes an object; one that is gone, or another one of its name, is none.

    Args:
        kind: Its kind.
        namespace: Its namespace.
        name: Its name.
        uid: Of the one that is meant.
        reason: Why.
        is_forced: Whether nobody is waited for: its node is gone.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    reason: str
    is_forced: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchObject(OperatorAction):
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
class SetStatus(OperatorAction):
    """Replaces the status of the job, of the version that was looked at.

    Args:
        status: The whole of it, without times of conditions that have changed.
    """

    status: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsureSecret(OperatorAction):
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
class TellEvent(OperatorAction):
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
class TrainingRequest(OperatorAction):
    """Asks the master of the job for something.

    Args:
        reason: Why.
    """

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmitWorkers(TrainingRequest):
    """Lets only these workers train; none pauses the job.

    Args:
        pods: Their names.
    """

    pods: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveState(TrainingRequest):
    """Asks for a checkpoint at the end of a step.

    Args:
        request: A name for it that no other one has.
        within_s: In how many seconds it must be durable.
    """

    request: str
    within_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LetLeave(TrainingRequest):
    """Lets a worker leave at the end of a step.

    Args:
        pod: Which one.
        within_s: After how many seconds it is ended.
    """

    pod: str
    within_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StopTraining(TrainingRequest):
    """Ends the training of the job.

    Args:
        exit_code: Of the job.
    """

    exit_code: int


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
