"""What is not as it should be on a node, from what it reads of itself with each heartbeat."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drivetrain_health.failures import GpuReading, NicReading


@dataclass(frozen=True, kw_only=True, slots=True)
class AlertConfig:
    """When something is worth an alert.

    Args:
        memory_share: Of the host's memory that is in use.
        shared_memory_share: Of `/dev/shm` that is in use.
        temperature_c: Of a GPU.
        margin: An alert is over when a share is so much below its limit, or a temperature so
            many tenths of a degree; so that what hovers at it is told once.

    Raises:
        ProgramError: A value is out of range.
    """

    memory_share: float = 0.95
    shared_memory_share: float = 0.95
    temperature_c: float = 90.0
    margin: float = 0.02

    def __post_init__(self) -> None:
        """Checks the values."""
        for name in ("memory_share", "shared_memory_share"):
            if not 0 < getattr(self, name) <= 1:
                message = (
                    f"{name} must be above 0 and at most 1, got {getattr(self, name)}"
                )
                raise ProgramError(message)
        if not (self.temperature_c > 0 and 0 <= self.margin < 1):
            message = (
                "temperature_c must be above 0 and margin from 0 to 1, got "
                f"{self.temperature_c} and {self.margin}"
            )
            raise ProgramError(message)


class NodeReading(NamedTuple):
    """What a node reads of itself.

    Attributes:
        memory_share: Of the host's memory that is in use; NaN where unknown.
        shared_memory_share: Of `/dev/shm` that is in use; NaN where unknown.
        gpus: What the driver says.
        network: What ports say.
        traffic: Why the traffic is not what it usually is; empty if it is.
    """

    memory_share: float = math.nan
    shared_memory_share: float = math.nan
    gpus: Sequence[GpuReading] = ()
    network: Sequence[NicReading] = ()
    traffic: str = ""


class AlertNews(NamedTuple):
    """What has changed.

    Attributes:
        begun: Alerts by kind, with their reasons.
        over: Alerts that are over, with what their reasons were.
    """

    begun: dict[str, str]
    over: dict[str, str]


def judge_node(
    reading: NodeReading, known: Mapping[str, str], config: AlertConfig
) -> dict[str, str]:
    """Returns all that is not as it should be, by kind, with the reason.

    Args:
        reading: What the node reads of itself.
        known: The alerts that there are already; these end only with a margin.
        config: The limits.

    Example:
        >>> config = AlertConfig()
        >>> judge_node(NodeReading(memory_share=0.97), {}, config)
        {'memory': '97 % of the memory is in use'}
        >>> judge_node(NodeReading(memory_share=0.94), {"memory": "97 %"}, config)
        {'memory': '94 % of the memory is in use'}
        >>> judge_node(NodeReading(memory_share=0.90), {"memory": "97 %"}, config)
        {}
    """
    found: dict[str, str] = {}
    for kind, share, limit, what in (
        ("memory", reading.memory_share, config.memory_share, "the memory"),
        (
            "shared-memory",
            reading.shared_memory_share,
            config.shared_memory_share,
            "/dev/shm",
        ),
    ):
        if share >= limit - (config.margin if kind in known else 0.0):
            found[kind] = f"{share:.0%} of {what} is in use".replace("%", " %")
    for gpu in reading.gpus:
        kind = f"gpu-{gpu.index}-hot"
        limit_c = config.temperature_c - (config.margin * 100 if kind in known else 0.0)
        if gpu.temperature_c is not None and gpu.temperature_c >= limit_c:
            found[kind] = f"GPU {gpu.index} has {gpu.temperature_c:.0f} degrees"
        if gpu.is_throttled:
            found[f"gpu-{gpu.index}-throttled"] = (
                f"GPU {gpu.index} slows itself down, for heat or power"
            )
    for port in reading.network:
        if port.was_up and port.is_up is False:
            found[f"link-{port.name}-down"] = f"the link of {port.name} is down"
        elif port.num_link_downs:
            found[f"link-{port.name}-flaps"] = (
                f"the link of {port.name} was down {port.num_link_downs} times"
            )
    if reading.traffic:
        found["traffic"] = reading.traffic
    return found


def news_of(before: Mapping[str, str], now: Mapping[str, str]) -> AlertNews:
    """Returns which alerts have begun, and which are over.

    Example:
        >>> news_of({"memory": "97 %"}, {"traffic": "nothing is sent"})
        AlertNews(begun={'traffic': 'nothing is sent'}, over={'memory': '97 %'})
    """
    return AlertNews(
        {kind: why for kind, why in now.items() if kind not in before},
        {kind: why for kind, why in before.items() if kind not in now},
    )
