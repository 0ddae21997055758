"""Shorthands with which rules write advice; itself no rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Advice
from drivetrain_fabric.adviser._rules._sources import manual

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Level, Scope


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
    said = None if value is None else str(value)
    source = manual(name) if source is None else source
    return _advice("env", name, said, level, because, source)


def sysctl(name: str, value: str, level: Level, because: str, source: str) -> Advice:
    """Returns advice on the kernel.

    Args:
        name: The sysctl.
        value: What to set it to.
        level: How much it matters.
        because: Why.
        source: Who says so.
    """
    return _advice("sysctl", name, value, level, because, source)


def host(name: str, value: str, level: Level, because: str, source: str) -> Advice:
    """Returns advice for an administrator.

    Args:
        name: What it is about.
        value: What to do.
        level: How much it matters.
        because: Why.
        source: Who says so.
    """
    return _advice("host", name, value, level, because, source)


def _advice(
    scope: Scope, name: str, value: str | None, level: Level, because: str, source: str
) -> Advice:
    return Advice(
        setting=name,
        value=value,
        scope=scope,
        level=level,
        because=because,
        source=source,
    )
