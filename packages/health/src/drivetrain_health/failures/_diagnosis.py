"""What was found about a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from drivetrain_health.failures._failure_class import FailureClass


class Diagnosis(NamedTuple):
    """Why something has failed, and which node is to blame.

    Attributes:
        failure_class: What kind of failure it is.
        cause: What exactly, as one word: `xid-79`, `port-in-use`, `value-error`.
        node: The node to blame; empty if it is no node's fault, or nobody can tell.
        reason: The piece of evidence that says so, for people.
        worker: Where it was seen.
        place: Where the program was, as `train.py:12 in step`; empty if that is not known.
        is_echo: Whether a failure elsewhere may look like this here: a connection that
            was closed by the other side.
    """

    failure_class: FailureClass
    cause: str
    node: str
    reason: str
    worker: str = ""
    place: str = ""
    is_echo: bool = False


class Finding(NamedTuple):
    """A diagnosis, and when the master heard of it.

    Attributes:
        at_s: On the master's monotonic clock.
        diagnosis: What was found.
    """

    at_s: float
    diagnosis: Diagnosis
