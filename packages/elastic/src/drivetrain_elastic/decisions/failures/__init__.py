"""Why something has failed, which node is to blame, and what follows.

    evidence of a worker --diagnose--> diagnosis
    diagnoses of several workers --root_cause--> diagnosis --respond--> action

All are pure functions of plain values; `drivetrain_elastic.diagnosis` reads the evidence.
"""

from __future__ import annotations

from drivetrain_elastic.decisions.failures._diagnose import diagnose
from drivetrain_elastic.decisions.failures._diagnosis import Diagnosis, Finding
from drivetrain_elastic.decisions.failures._evidence import (
    ErrorRecord,
    Evidence,
    GpuReading,
    NicReading,
)
from drivetrain_elastic.decisions.failures._failure_class import FailureClass
from drivetrain_elastic.decisions.failures._respond import (
    LADDERS,
    Action,
    Incident,
    Ladder,
    Response,
    ResponseConfig,
    respond,
)
from drivetrain_elastic.decisions.failures._root_cause import root_cause

__all__ = [
    "LADDERS",
    "Action",
    "Diagnosis",
    "ErrorRecord",
    "Evidence",
    "FailureClass",
    "Finding",
    "GpuReading",
    "Incident",
    "Ladder",
    "NicReading",
    "Response",
    "ResponseConfig",
    "diagnose",
    "respond",
    "root_cause",
]
