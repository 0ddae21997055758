"""Short forms of advice, by where it applies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Advice
from drivetrain_fabric.adviser._rules._sources import manual

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Level

__all__ = ["env", "host", "sysctl"]


def env(
    name: str, value: object, level: Level, because: str, source: str | None = None
) -> Advice:
    """Returns advice on a variable.

    Args:
        name: The variable.
        value: What to set it to; None to leave it out.
        level: How much it matters.
        because: Why.
        source: Who says so; by default its entry in NCCL's manual.

    Example:
        >>> env("NCCL_IB_TC", 106, "warn", "switches ask for it").value
        '106'
    """
    return Advice(
        setting=name,
        value=None if value is None else str(value),
        scope="env",
        level=level,
        because=because,
        source=manual(name) if source is None else source,
    )


def sysctl(name: str, value: str, level: Level, because: str, source: str) -> Advice:
    """Returns advice on the kernel.

    Args:
        name: The sysctl.
        value: What to set it to.
        level: How much it matters.
        because: Why.
        source: Who says so.
    """
    return Advice(
        setting=name,
        value=value,
        scope="sysctl",
        level=level,
        because=because,
        source=source,
    )


def host(name: str, value: str, level: Level, because: str, source: str) -> Advice:
    """Returns advice for an administrator.

    Args:
        name: What it is about.
        value: What to do.
        level: How much it matters.
        because: Why.
        source: Who says so.
    """
    return Advice(
        setting=name,
        value=value,
        scope="host",
        level=level,
        because=because,
        source=source,
    )
