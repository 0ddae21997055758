"""Whether the CPU computes the same bits again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_health.checks._silent_corruption import probe_bits
from drivetrain_health.checks._task import Found

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Task


def measure(task: Task) -> Found:
    """Returns the digest of the CPU, and how it contradicts itself."""
    report = probe_bits("cpu", measure_s=task.measure_s)
    return Found(digests={report.build: report.digest}, wrong_bits=report.differs)
