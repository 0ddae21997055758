"""What the counters of GPUs and network ports say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import Clue
from drivetrain_health.failures._failure_class import FailureClass
from drivetrain_health.failures._xids import clue_of_xid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_health.failures._evidence import GpuReading, NicReading

_GPU, _LINK = FailureClass.GPU_HARDWARE, FailureClass.INTERCONNECT
# One damaged packet is nothing; a bad cable or optic makes many.
_MANY_ERRORS, _MANY_RETRANSMITS = 1_000, 10_000


def clues_of_gpus(gpus: Iterable[GpuReading]) -> list[Clue]:
    """Returns what the driver says of GPUs, the worst of each first.

    Args:
        gpus: Of one node.

    Example:
        >>> from drivetrain_health.failures import GpuReading
        >>> [one.cause for one in clues_of_gpus([GpuReading(is_lost=True)])]
        ['gpu-lost']
    """
    clues = []
    for gpu in gpus:
        name = f"GPU {gpu.index}"
        if gpu.is_lost:
            clues.append(Clue(_GPU, "gpu-lost", f"{name} is lost: {gpu.missing}"))
        xids = [clue for one in gpu.xids if (clue := clue_of_xid(one)) is not None]
        clues += [one._replace(reason=f"{name}: {one.reason}") for one in xids]
        if gpu.recovery in {"gpu-reset", "node-reboot", "drain-and-reset"}:
            reason = f"{name}: the driver asks for {gpu.recovery}"
            clues.append(Clue(_GPU, "needs-reset", reason))
        elif gpu.recovery:
            reason = f"{name}: the driver asks for {gpu.recovery}"
            clues.append(Clue(_LINK, "nvlink-error", reason))
        if gpu.remap_failed:
            reason = f"{name}: rows of its memory could not be remapped"
            clues.append(Clue(_GPU, "remap-failed", reason))
        if gpu.ecc_uncorrected > 0:
            reason = (
                f"{name}: {gpu.ecc_uncorrected} new uncorrected errors of its memory"
            )
            clues.append(Clue(_GPU, "ecc-uncorrected", reason))
        if gpu.nvlinks_down > 0:
            reason = f"{name}: {gpu.nvlinks_down} of its NVLinks have gone down"
            clues.append(Clue(_LINK, "nvlink-down", reason))
        elif gpu.nvlink_errors >= _MANY_ERRORS:
            reason = f"{name}: {gpu.nvlink_errors} new errors of its NVLinks"
            clues.append(Clue(_LINK, "nvlink-error", reason))
    return clues


def clues_of_network(ports: Iterable[NicReading]) -> list[Clue]:
    """Returns what the system says of network ports: first what is down, then what flaps.

    Args:
        ports: Of one node.

    Example:
        >>> from drivetrain_health.failures import NicReading
        >>> port = NicReading(name="mlx5_0/1", was_up=True, is_up=False)
        >>> [one.reason for one in clues_of_network([port])]
        ['port mlx5_0/1 was up and is down']
    """
    down, flaps, noisy = [], [], []
    for port in ports:
        name = f"port {port.name}"
        if port.was_up and port.is_up is False:
            down.append(Clue(_LINK, "link-down", f"{name} was up and is down"))
        elif port.num_link_downs > 0:
            reason = f"{name} has gone down {port.num_link_downs} times"
            flaps.append(Clue(_LINK, "link-flap", reason))
        elif port.num_errors >= _MANY_ERRORS:
            reason = f"{name}: {port.num_errors} packets were damaged or lost"
            noisy.append(Clue(_LINK, "link-errors", reason))
        elif port.num_retransmits >= _MANY_RETRANSMITS:
            reason = f"{name}: {port.num_retransmits} packets were sent again"
            # The other end of the cable, or a switch, may be what loses them.
            noisy.append(Clue(_LINK, "retransmits", reason, False, True))
    return down + flaps + noisy
