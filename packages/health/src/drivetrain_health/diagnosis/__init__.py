"""Reads what explains a failure: the kernel's log, GPUs, networks, output, exceptions.

What it means is decided by `drivetrain_health.failures`. What a machine does
not have, or does not let this process read, is missing with a reason; nothing here fails
because of it, and nothing waits for hardware that does not answer.
"""

from __future__ import annotations

from drivetrain_health.diagnosis._error_record import (
    install_error_record,
    read_error_record,
    write_error_record,
)
from drivetrain_health.diagnosis._gpus import GpuWatch
from drivetrain_health.diagnosis._kernel_log import KernelLog, KernelMessage
from drivetrain_health.diagnosis._network import NetworkSampler
from drivetrain_health.diagnosis._oom_kills import count_oom_kills
from drivetrain_health.diagnosis._output_tail import read_output_tail

__all__ = [
    "GpuWatch",
    "KernelLog",
    "KernelMessage",
    "NetworkSampler",
    "count_oom_kills",
    "install_error_record",
    "read_error_record",
    "read_output_tail",
    "write_error_record",
]
