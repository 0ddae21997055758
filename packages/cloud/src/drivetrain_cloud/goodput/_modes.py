"""Ways in which a training fails: how often, how it shows, and what it takes to cure it."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.resources import files
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


_KINDS: dict[str, Any] = {"failure_class": FailureClass, "sign": Sign, "cure": Action}


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
    text = files(__package__).joinpath("failures.toml").read_text()
    return tuple(
        FailureMode(
            mtbf_gpu_h=mtbf_gpu_h * _LLAMA3_INTERRUPTIONS / mode.pop("count"),
            num_nodes=nodes_per_switch if mode["name"] == "switch" else 1,
            **{
                name: _KINDS.get(name, type(value))(value)
                for name, value in mode.items()
            },
        )
        for mode in tomllib.loads(text)["mode"]
    )
