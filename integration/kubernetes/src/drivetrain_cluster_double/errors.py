"""What an API server answers when it does not do what was asked: `Status` objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_core import DrivetrainError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Cause",
    "StatusError",
    "already_exists",
    "bad_request",
    "conflict",
    "expired",
    "forbidden",
    "invalid",
    "method_not_allowed",
    "not_found",
    "path_not_found",
    "success",
    "too_large_revision",
    "too_many_requests",
    "unauthorized",
]


class Cause(NamedTuple):
    """One thing that is wrong with an object.

    Attributes:
        reason: A word for programs, as `FieldValueInvalid`.
        message: For people.
        field: Which field, as `spec.replicas`.
    """

    reason: str
    message: str
    field: str

    def text(self) -> str:
        """Returns the field and what is wrong with it."""
        return f"{self.field}: {self.message}" if self.field else self.message


class StatusError(DrivetrainError, RuntimeError):
    """The API server refuses a call.

    Args:
        code: The status code of HTTP.
        reason: A word for programs.
        message: For people.
        details: Of the `Status` object.
        retry_after_s: After how many seconds the caller may try again; None to say
            nothing about it.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details, self.retry_after_s = dict(details or {}), retry_after_s
        if retry_after_s is not None:
            self.details["retryAfterSeconds"] = retry_after_s

    def status(self) -> dict[str, Any]:
        """Returns the `Status` object that tells it."""
        found: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if self.details:
            found["details"] = self.details
        return {**found, "code": self.code}


def success(name: str, group: str, resource: str, uid: str) -> dict[str, Any]:
    """Returns the `Status` object of a deletion that is complete."""
    details = _details(name, group, resource) | {"uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details,
    }


def not_found(group: str, resource: str, name: str) -> StatusError:
    """Returns that an object is not there."""
    message = f'{_qualified(group, resource)} "{name}" not found'
    return StatusError(
        404, "NotFound", message, details=_details(name, group, resource)
    )


def path_not_found() -> StatusError:
    """Returns that nothing is served under a path."""
    message = "the server could not find the requested resource"
    return StatusError(404, "NotFound", message)


def already_exists(group: str, resource: str, name: str) -> StatusError:
    """Returns that an object of this name is there."""
    message = f'{_qualified(group, resource)} "{name}" already exists'
    details = _details(name, group, resource)
    return StatusError(409, "AlreadyExists", message, details=details)


def conflict(
    group: str,
    resource: str,
    name: str,
    why: str = (
        "the object has been modified; please apply your changes to the latest version "
        "and try again"
    ),
) -> StatusError:
    """Returns that a change was meant for another version of the object."""
    message = f'Operation cannot be fulfilled on {_qualified(group, resource)} "{name}": {why}'
    details = _details(name, group, resource)
    return StatusError(409, "Conflict", message, details=details)


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> StatusError:
    """Returns that an object breaks rules, with each of them."""
    qualified = f"{kind}.{group}" if group else kind
    texts = [cause.text() for cause in causes]
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details: dict[str, Any] = {"name": name, "group": group, "kind": kind}
    details["causes"] = [cause._asdict() for cause in causes]
    message = f'{qualified} "{name}" is invalid: {listed}'
    return StatusError(422, "Invalid", message, details=details)


def forbidden(group: str, resource: str, name: str, why: str) -> StatusError:
    """Returns that a caller may not do this."""
    shown = f' "{name}"' if name else ""
    message = f"{_qualified(group, resource)}{shown} is forbidden: {why}"
    details = _details(name, group, resource)
    return StatusError(403, "Forbidden", message, details=details)


def bad_request(message: str) -> StatusError:
    """Returns that a call cannot be understood."""
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """Returns that nobody knows the caller."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def method_not_allowed() -> StatusError:
    """Returns that a resource cannot be used like this."""
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message)


def expired(message: str) -> StatusError:
    """Returns that a version is no longer known; the caller has to list again."""
    return StatusError(410, "Expired", message)


def too_large_revision(asked: int, current: int) -> StatusError:
    """Returns that a version has not been reached yet."""
    message = f"Too large resource version: {asked}, current: {current}"
    cause = Cause("ResourceVersionTooLarge", "Too large resource version", "")
    details = {"causes": [cause._asdict()]}
    return StatusError(504, "Timeout", message, details=details, retry_after_s=1)


def too_many_requests(
    message: str, retry_after_s: int = 1, causes: Sequence[Cause] = ()
) -> StatusError:
    """Returns that the caller has to wait."""
    details = {"causes": [cause._asdict() for cause in causes]} if causes else {}
    return StatusError(
        429, "TooManyRequests", message, details=details, retry_after_s=retry_after_s
    )


def _qualified(group: str, resource: str) -> str:
    return f"{resource}.{group}" if group else resource


def _details(name: str, group: str, resource: str) -> dict[str, Any]:
    found = {"name": name, "group": group, "kind": resource}
    return {key: value for key, value in found.items() if value}
