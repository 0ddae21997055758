"""What the counters of GPUs and network ports say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_health.failures._clue import Clue
from drivetrain_health.failures._failure_class import FailureClass
from drivetrain_health.failures._xids import clue_of_xid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
    return [clue for gpu in gpus for clue in _of_gpu(gpu)]


def _of_gpu(gpu: GpuReading) -> Iterator[Clue]:
    name = f"GPU {gpu.index}"
    is_noisy = not gpu.nvlinks_down and gpu.nvlink_errors >= _MANY_ERRORS
    is_reset = gpu.recovery in {"gpu-reset", "node-reboot", "drain-and-reset"}
    xids = [clue for one in gpu.xids if (clue := clue_of_xid(one)) is not None]
    if gpu.is_lost:
        yield Clue(_GPU, "gpu-lost", f"{name} is lost: {gpu.missing}")
    yield from (one._replace(reason=f"{name}: {one.reason}") for one in xids)
    for is_so, failure_class, cause, said in (
        (is_reset, _GPU, "needs-reset", f"the driver asks for {gpu.recovery}"),
        (gpu.recovery and not is_reset, _LINK, "nvlink-error",
         f"the driver asks for {gpu.recovery}"),
        (gpu.remap_failed, _GPU, "remap-failed",
         "rows of its memory could not be remapped"),
        (gpu.ecc_uncorrected > 0, _GPU, "ecc-uncorrected",
         f"{gpu.ecc_uncorrected} new uncorrected errors of its memory"),
        (gpu.nvlinks_down > 0, _LINK, "nvlink-down",
         f"{gpu.nvlinks_down} of its NVLinks have gone down"),
        (is_noisy, _LINK, "nvlink-error",
         f"{gpu.nvlink_errors} new errors of its NVLinks"),
    ):  # fmt: skip
        if is_so:
            yield Clue(failure_class, cause, f"{name}: {said}")


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
