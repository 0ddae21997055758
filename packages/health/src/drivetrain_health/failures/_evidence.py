"""What is known about a worker that has failed, as plain values: nothing reads here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from drivetrain_core import ProgramError
from drivetrain_health.failures._health import Health


class ErrorRecord(NamedTuple):
    """The exception that has ended a worker.

    Attributes:
        type: Its class, as `torch.OutOfMemoryError`.
        message: What it said.
        traceback: Where it was raised, with what has caused it.
    """

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """What the driver says of a GPU now, and what has changed since the first reading.

    Args:
        uuid: Which one.
        index: Its number on the node.
        missing: Why some of this could not be read; empty if all could.
        is_lost: Whether the driver cannot reach it any more.
        xids: The errors that the driver has told of since the first reading.
        recovery: What the driver asks for: `gpu-reset`, `node-reboot`, `drain-and-reset`,
            `drain-p2p`; empty for nothing.
        ecc_uncorrected: Errors of its memory that could not be corrected, new ones.
        remap_pending: Whether rows of its memory wait for a reset to be replaced.
        remap_failed: Whether rows of its memory could not be replaced.
        nvlink_errors: Errors of its NVLinks that lost or repeated data, new ones.
        nvlinks_down: Links that were up at the first reading and are not now.
        temperature_c: How hot it is; None if that is not known.
        is_throttled: Whether the hardware slows it down, for its heat or its power.
        name: Its model; empty if that is not known.
        busy_share: Of the time lately, from 0 to 1.
        memory_used: Bytes of its memory.
        memory_total: All of them; 0 if that is not known.
    """

    uuid: str = ""
    index: int = 0
    missing: str = ""
    is_lost: bool = False
    xids: tuple[int, ...] = ()
    recovery: str = ""
    ecc_uncorrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    nvlink_errors: int = 0
    nvlinks_down: int = 0
    temperature_c: float | None = None
    is_throttled: bool = False
    name: str = ""
    busy_share: float = 0.0
    memory_used: int = 0
    memory_total: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class NicReading:
    """What the system says of a network port now, and since the first reading.

    Args:
        name: Which one: `eth0`, `mlx5_0/1`.
        missing: Why some of this could not be read; empty if all could.
        was_up: Whether it was up at the first reading.
        is_up: Whether it is now; None if that is not known.
        num_link_downs: How often its link has gone down since then.
        num_errors: Packets that were damaged or lost by the port or its cable.
        num_retransmits: Packets that were sent again, or waited for in vain.
    """

    name: str
    missing: str = ""
    was_up: bool = False
    is_up: bool | None = None
    num_link_downs: int = 0
    num_errors: int = 0
    num_retransmits: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is known about one worker when it has failed. All but its name may be missing.

    No times of different machines are in it, so that no clock has to be right.

    Args:
        worker: Which one.
        node: Where it ran.
        exit_code: As `subprocess` gives it, a signal below zero; None while it lives.
        error: The exception that has ended it.
        output: The last text that it wrote; its stacks, if it hangs.
        kernel: What the kernel of its node has said lately, one message each.
        gpus: Of its node.
        network: The ports of its node.
        oom_kills: How many processes the kernel has killed in its control group since it
            began, for want of memory.
        phase: What it last said it was doing.
        silent_s: For how long it had been silent.
        health: What its agent found when it looked last.
        why_killed: Why its own agent has killed it; empty if it has not.
        is_asked: Whether its end was asked for: a node that leaves, a job that is stopped.
        is_node_lost: Whether nothing is heard of its node any more.
        probe: What the probe for silent corruption found wrong; empty for nothing.
        slow: Why its node counts as a straggler; empty if it does not.

    Raises:
        ProgramError: The worker has no name, or a number is none.

    Example:
        >>> Evidence(worker="n1/0", node="n1", exit_code=-9).output
        ''
    """

    worker: str
    node: str
    exit_code: int | None = None
    error: ErrorRecord | None = None
    output: str = ""
    kernel: tuple[str, ...] = ()
    gpus: tuple[GpuReading, ...] = ()
    network: tuple[NicReading, ...] = ()
    oom_kills: int = 0
    phase: str = ""
    silent_s: float = 0.0
    health: Health = Health.WELL
    why_killed: str = ""
    is_asked: bool = False
    is_node_lost: bool = False
    probe: str = ""
    slow: str = ""

    def __post_init__(self) -> None:
        """Checks what a diagnosis relies on."""
        if not self.worker:
            message = "evidence names the worker it is about, got an empty name"
            raise ProgramError(message)
        if math.isnan(self.silent_s) or self.silent_s < 0:
            message = f"silent_s is a time of 0 s or more, got {self.silent_s}"
            raise ProgramError(message)
