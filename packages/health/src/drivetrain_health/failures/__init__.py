"""Why something has failed, which node is to blame, and what follows.

    evidence of a worker --diagnose--> diagnosis
    diagnoses of several workers --root_cause--> diagnosis --respond--> action

All are pure functions of plain values; `drivetrain_health.diagnosis` reads the evidence.
"""

from __future__ import annotations

from drivetrain_health.failures._diagnose import diagnose
from drivetrain_health.failures._diagnosis import Diagnosis, Finding
from drivetrain_health.failures._evidence import (
    ErrorRecord,
    Evidence,
    GpuReading,
    NicReading,
)
from drivetrain_health.failures._failure_class import FailureClass
from drivetrain_health.failures._health import Health
from drivetrain_health.failures._respond import (
    LADDERS,
    Action,
    Incident,
    Ladder,
    Response,
    ResponseConfig,
    respond,
)
from drivetrain_health.failures._root_cause import root_cause

__all__ = [
    "LADDERS",
    "Action",
    "Diagnosis",
    "ErrorRecord",
    "Evidence",
    "FailureClass",
    "Finding",
    "GpuReading",
    "Health",
    "Incident",
    "Ladder",
    "NicReading",
    "Response",
    "ResponseConfig",
    "diagnose",
    "respond",
    "root_cause",
]
