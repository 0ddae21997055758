"""Whether each GPU computes the same bits again and again, and the same as the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_health.checks._gpus import gpus
from drivetrain_health.checks._silent_corruption import probe_bits
from drivetrain_health.checks._task import Found

if TYPE_CHECKING:
    from drivetrain_health.checks._task import Task


def measure(task: Task) -> Found:
    """Returns the digest of each GPU, and how they contradict themselves.

    Each GPU is compared with the one of the same number on other nodes: so a node has one
    voice for each, and one bad GPU of eight is one against all others.

    Raises:
        NotHereError: There is no GPU.
    """
    digests, differs = {}, []
    for device in gpus():
        task.note(f"computing on {device}")
        report = probe_bits(device, measure_s=task.measure_s)
        digests[f"{device}, {report.build}"] = report.digest
        if report.differs:
            differs.append(report.differs)
    return Found(digests=digests, wrong_bits="; ".join(differs))
