"""Ways in which a training fails: how often, how it shows, and what it takes to cure it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from drivetrain_cloud.goodput._checks import check_number, check_whole
from drivetrain_core import ProgramError
from drivetrain_health.failures import Action, FailureClass

_HOUR_S = 3600.0
_RATES = ("mtbf_gpu_h", "mtbf_node_h", "mtbf_job_h")


class Sign(StrEnum):
    """How a failure shows itself.

    Example:
        >>> Sign("hang")
        <Sign.HANG: 'hang'>
    """

    EXIT = "exit"
    """A process ends."""
    NODE_LOST = "node-lost"
    """A node falls silent."""
    HANG = "hang"
    """All wait, and nothing ends."""
    SLOW = "slow"
    """All go on at the pace of one that is slow."""
    CORRUPTION = "corruption"
    """All go on, with numbers that are wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureMode:
    """One way in which a training fails.

    Exactly one of the times between failures is given.

    Args:
        name: What to call it.
        failure_class: What a diagnosis finds, when it is right.
        cause: Likewise, as a short word.
        sign: How it shows itself.
        cure: The least that helps; with less it comes again at once.
        mtbf_gpu_h: Mean hours between two failures of one GPU; `inf` for never.
        mtbf_node_h: Of one node.
        mtbf_job_h: Of the whole job, however many nodes it has.
        num_nodes: How many neighbouring nodes it takes at once.
        slowdown: By how much a slow node lengthens each step, as a factor.
        repair_h: Hours until a node that was replaced can be used again.
        is_host_lost: Whether what lay in the host's memory is gone.

    Raises:
        ProgramError: A value is out of range, or not exactly one time is given.

    Example:
        >>> mode = FailureMode(name="gpu", mtbf_gpu_h=50_000)
        >>> round(1 / mode.rate_per_s(num_nodes=1536, devices_per_node=8) / 3600, 2)
        4.07
    """

    name: str
    failure_class: FailureClass = FailureClass.GPU_HARDWARE
    cause: str = "gpu-lost"
    sign: Sign = Sign.EXIT
    cure: Action = Action.REPLACE_NODE
    mtbf_gpu_h: float | None = None
    mtbf_node_h: float | None = None
    mtbf_job_h: float | None = None
    num_nodes: int = 1
    slowdown: float = 1.0
    repair_h: float = 24.0
    is_host_lost: bool = False

    def __post_init__(self) -> None:
        """Checks the values."""
        given = [name for name in _RATES if getattr(self, name) is not None]
        if len(given) != 1:
            said = ", ".join(given) if given else "none"
            message = (
                f"failure mode {self.name!r} must have exactly one of "
                f"{', '.join(_RATES)}, got {said}"
            )
            raise ProgramError(message)
        value = getattr(self, given[0])
        check_number(given[0], value)
        if value == 0:
            message = f"{given[0]} of {self.name!r} must be more than 0, got 0"
            raise ProgramError(message)
        check_whole("num_nodes", self.num_nodes, least=1)
        check_number("slowdown", self.slowdown, least=1.0)
        check_number("repair_h", self.repair_h)

    def rate_per_s(self, *, num_nodes: int, devices_per_node: int) -> float:
        """Returns how often it strikes a job, in failures a second.

        Args:
            num_nodes: That the job has.
            devices_per_node: That one of them has.
        """
        if self.mtbf_gpu_h is not None:
            return num_nodes * devices_per_node / (self.mtbf_gpu_h * _HOUR_S)
        if self.mtbf_node_h is not None:
            return num_nodes / (self.mtbf_node_h * _HOUR_S)
        assert self.mtbf_job_h is not None
        return 1.0 / (self.mtbf_job_h * _HOUR_S)

    def rarer(self, factor: float) -> FailureMode:
        """Returns the same mode with a longer time between failures.

        Args:
            factor: How many times as long.
        """
        given = next(name for name in _RATES if getattr(self, name) is not None)
        return replace(self, **{given: getattr(self, given) * factor})


# The Llama 3 Herd of Models (arXiv 2407.21783), section 3.3.4 and table 5: 419 unexpected
# interruptions in 54 days of 16,384 GPUs.
_LLAMA3_INTERRUPTIONS = 419
LLAMA3_MTBF_GPU_H = 54 * 24 * 16_384 / _LLAMA3_INTERRUPTIONS
"""The hours of one GPU between failures of Llama 3's training."""

# The rows of that table by what they come to here. Which sign a row shows is our reading:
# the table has causes only, and a network that fails is taken for one that hangs.
_LLAMA3: tuple[tuple[float, str, FailureClass, str, dict[str, Any]], ...] = (
    # Faulty GPU 148, HBM3 72, SRAM 19, system processor 17, thermal interface 6.
    (262, "gpu", FailureClass.GPU_HARDWARE, "gpu-lost", {}),
    # Software bug 54, dependency 2.
    (56, "process", FailureClass.CRASH, "signal", {"cure": Action.RESTART_PROCESS}),
    # Unplanned maintenance 32, power supply 3, SSD 3, chassis 2, IO board 2, CPU 2,
    # system memory 2.
    (
        46,
        "host",
        FailureClass.NODE_LOST,
        "node-lost",
        {"sign": Sign.NODE_LOST, "is_host_lost": True},
    ),
    # Network switch or cable 35, NIC 7: 42, of which a new start cures three in four, as in
    # DLRover's account of all faults (docs/blogs/flash_checkpoint.md), ...
    (
        0.75 * 42,
        "flap",
        FailureClass.INTERCONNECT,
        "link-flapping",
        {"sign": Sign.HANG, "cure": Action.RESTART_IN_PLACE},
    ),
    # ... and the rest needs another node.
    (0.25 * 42, "link", FailureClass.INTERCONNECT, "link-down", {"sign": Sign.HANG}),
    # NCCL watchdog time-outs.
    (
        7,
        "hang",
        FailureClass.HANG,
        "no-progress",
        {"sign": Sign.HANG, "cure": Action.RESTART_PROCESS},
    ),
    (
        6,
        "corruption",
        FailureClass.CORRUPTION,
        "silent-data-corruption",
        {"sign": Sign.CORRUPTION},
    ),
    # In hundredths, for each 100 of the rest. ByteRobust (arXiv 2509.16293) counts 1% of its
    # cases as a switch that takes 32 machines with it (section 8.2.1), ...
    (
        0.01 * _LLAMA3_INTERRUPTIONS,
        "switch",
        FailureClass.NODE_LOST,
        "node-lost",
        {"sign": Sign.NODE_LOST},
    ),
    # ... and 0.8% as a fall of the throughput (table 1); MegaScale's (arXiv 2402.15627)
    # slow hosts took 10% longer (section 6.3).
    (
        0.008 * _LLAMA3_INTERRUPTIONS,
        "slow",
        FailureClass.STRAGGLER,
        "slow-node",
        {"sign": Sign.SLOW, "slowdown": 1.1},
    ),
)


def usual_failures(
    mtbf_gpu_h: float = LLAMA3_MTBF_GPU_H, *, nodes_per_switch: int = 32
) -> tuple[FailureMode, ...]:
    """Returns failures in the shares in which Llama 3's training had them.

    Switches that take many nodes, and slow nodes, come on top, as ByteRobust counts them.

    Args:
        mtbf_gpu_h: Mean hours of one GPU between interruptions of its job; by default
            Llama 3's, 50,676.
        nodes_per_switch: How many nodes a switch takes with it.

    Raises:
        ProgramError: A number is not more than 0.

    Example:
        >>> [mode.name for mode in usual_failures()][:3]
        ['gpu', 'process', 'host']
    """
    check_number("mtbf_gpu_h", mtbf_gpu_h)
    if mtbf_gpu_h == 0 or math.isinf(mtbf_gpu_h):
        message = f"mtbf_gpu_h must be more than 0 and finite, got {mtbf_gpu_h:g}"
        raise ProgramError(message)
    return tuple(
        FailureMode(
            name=name,
            failure_class=failure_class,
            cause=cause,
            mtbf_gpu_h=mtbf_gpu_h * _LLAMA3_INTERRUPTIONS / count,
            num_nodes=nodes_per_switch if name == "switch" else 1,
            **rest,
        )
        for count, name, failure_class, cause, rest in _LLAMA3
    )
