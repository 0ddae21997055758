"""What an API server answers when it does not do what was asked: `Status` objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from drivetrain_core import DrivetrainError


class Cause(NamedTuple):
    """One thing that is wrong with an object.

    Attributes:
        reason: A word for programs, as `FieldValueInvalid`.
        message: For people.
        field: Which field, as `spec.replicas`.
    """

    reason: str
    message: str
    field: str = ""


_WORDS = {
    "Required": "Required value",
    "Forbidden": "Forbidden",
    "NotSupported": "Unsupported value",
    "NotFound": "Not found",
    "Duplicate": "Duplicate value",
    "TooLong": "Too long",
}


def wrong(reason: str, field: str, message: str = "") -> Cause:
    """Returns what is wrong with a field, as a server says it.

    Example:
        >>> wrong("Required", "spec.ports").message
        'Required value'
    """
    words = _WORDS.get(reason, "Invalid value")
    return Cause(f"FieldValue{reason}", f"{words}: {message}".rstrip(": "), field)


class StatusError(DrivetrainError, RuntimeError):
    """The API server refuses a call.

    Args:
        code: The status code of HTTP.
        reason: A word for programs; empty for none.
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
        told = {"reason": self.reason, "details": self.details}
        return {
            **_status("Failure"),
            "message": self.message,
            **{key: value for key, value in told.items() if value},
            "code": self.code,
        }


def _status(text: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": text}


def _about(group: str, kind: str, name: str) -> dict[str, Any]:
    found = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in found.items() if value}


def _named(group: str, kind: str) -> str:
    return f"{kind}.{group}" if group else kind


def success(group: str, resource: str, name: str, uid: str) -> dict[str, Any]:
    """Returns the `Status` object of a deletion that is complete."""
    return {
        **_status("Success"),
        "details": _about(group, resource, name) | {"uid": uid},
    }


def not_done(what: str) -> StatusError:
    """Returns that the double lacks something that a cluster has."""
    return StatusError(501, "NotImplemented", f"this double does not do that: {what}")


def _refusal(
    code: int, reason: str, message: str, group: str, kind: str, name: str
) -> StatusError:
    return StatusError(code, reason, message, details=_about(group, kind, name))


def not_found(group: str, resource: str, name: str) -> StatusError:
    """Returns that an object is not there."""
    message = f'{_named(group, resource)} "{name}" not found'
    return _refusal(404, "NotFound", message, group, resource, name)


def path_not_found() -> StatusError:
    """Returns that nothing is served under a path."""
    message = "the server could not find the requested resource"
    return StatusError(404, "NotFound", message)


def already_exists(group: str, resource: str, name: str) -> StatusError:
    """Returns that an object of this name is there."""
    message = f'{_named(group, resource)} "{name}" already exists'
    return _refusal(409, "AlreadyExists", message, group, resource, name)


_MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and "
    "try again"
)


def conflict(group: str, resource: str, name: str, why: str = _MODIFIED) -> StatusError:
    """Returns that a change was meant for another version of the object."""
    message = (
        f'Operation cannot be fulfilled on {_named(group, resource)} "{name}": {why}'
    )
    return _refusal(409, "Conflict", message, group, resource, name)


def _causes(causes: Sequence[Cause]) -> list[dict[str, str]]:
    return [{k: v for k, v in one._asdict().items() if v} for one in causes]


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> StatusError:
    """Returns that an object breaks rules, with each of them."""
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = {**_about(group, kind, name), "name": name, "causes": _causes(causes)}
    message = f'{_named(group, kind)} "{name}" is invalid: {listed}'
    return StatusError(422, "Invalid", message, details=details)


def wrong_option(kind: str, field: str, reason: str, message: str) -> StatusError:
    """Returns that an option of a call, as of `PatchOptions`, is not valid."""
    return invalid("meta.k8s.io", kind, "", [wrong(reason, field, message)])


def forbidden(group: str, resource: str, name: str, why: str) -> StatusError:
    """Returns that a caller may not do this."""
    shown = f' "{name}"' if name else ""
    message = f"{_named(group, resource)}{shown} is forbidden: {why}"
    return _refusal(403, "Forbidden", message, group, resource, name)


def bad_request(message: str) -> StatusError:
    """Returns that a call cannot be understood."""
    return StatusError(400, "BadRequest", message)


def expired(message: str) -> StatusError:
    """Returns that a version is no longer known; the caller has to list again."""
    return StatusError(410, "Expired", message)


def too_large_revision(asked: int, current: int) -> StatusError:
    """Returns that a version has not been reached yet."""
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    cause = Cause("ResourceVersionTooLarge", "Too large resource version")
    details = {"causes": _causes([cause])}
    return StatusError(504, "Timeout", message, details=details, retry_after_s=1)
