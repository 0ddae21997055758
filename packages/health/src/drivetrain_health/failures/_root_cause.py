"""Which of several failures came first: the cause, rather than its echoes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_core import ProgramError
from drivetrain_health.failures._failure_class import FailureClass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_health.failures._diagnosis import Diagnosis, Finding

# Of failures at about the same time, which one makes the others. Hardware that has proven
# bad is believed first; a rank that hangs or was killed may be the cause of others, and a
# rank that only lost its connections is believed last. Time decides within a row.
_ROWS = (
    {"gpu-hardware", "node-hardware", "corruption"},
    {"program", "crash", "out-of-memory", "storage", "driver", "service", "data"},
    {"node-lost", "killed", "scheduler"},
    {"interconnect", "rendezvous"},
    {"hang"},
    {"unknown", "straggler"},
)
_ECHOES = ({"interconnect"}, {"rendezvous"}, {"killed", "scheduler"})


def root_cause(findings: Sequence[Finding]) -> Diagnosis:
    """Returns what made several workers fail at about the same time.

    Which failures belong together is the caller's to say; seconds are enough for what the
    death of a rank makes, and a collective's time-out for what a hang makes. Findings may
    come in any order, since the agent of the node that fails may be the last to speak.

    Args:
        findings: What was found of each worker.

    Raises:
        ProgramError: There is none.

    Example:
        >>> from drivetrain_health.failures import *
        >>> reset = diagnose(Evidence(worker="a/0", node="a", exit_code=1,
        ...     output="RuntimeError: Connection reset by peer"))
        >>> killed = diagnose(Evidence(worker="b/0", node="b", exit_code=-9))
        >>> root_cause([Finding(3.0, reset), Finding(3.2, killed)]).node
        'b'
    """
    if not findings:
        message = "the root cause of no findings was asked for; give one at least"
        raise ProgramError(message)
    return min(findings, key=_rank).diagnosis


def _rank(finding: Finding) -> tuple[int, float, bool]:
    one = finding.diagnosis
    rows, first = (_ECHOES, len(_ROWS)) if one.is_echo else (_ROWS, 0)
    for at, row in enumerate(rows, first):
        if one.failure_class in row:
            # It takes proof to stop a job: of two at the same time the other one counts.
            is_program = one.failure_class == FailureClass.PROGRAM
            return at, finding.at_s, is_program
    return first + len(rows), finding.at_s, False
