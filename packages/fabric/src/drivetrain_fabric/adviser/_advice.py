"""What an adviser says: what to set, what it would have to know, what is set wrongly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["bad", "warn", "try"]
Scope = Literal["env", "sysctl", "host"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One setting, and why.

    Args:
        setting: What to set: a variable, a sysctl, or a thing of the host.
        value: To what; None means that it must not be set.
        scope: `env` for variables, `sysctl` for the kernel, `host` for what an
            administrator does.
        level: `bad` if it fails or is wrong without, `warn` if it costs time without,
            `try` if it may help: measure it.
        because: Why, with the values that were found.
        source: Who says so.
        since: The first version of NCCL that knows the setting; empty if it is not
            NCCL's, or older than what is written down.
        until: The first one that does not know it any more; empty if there is none.
    """

    setting: str
    value: str | None
    scope: Scope
    level: Level
    because: str
    source: str
    since: str = ""
    until: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """A subject on which nothing can be said.

    Args:
        subject: What it is about.
        lacks: The fact that is missing.
        give: How to give it.
    """

    subject: str
    lacks: str
    give: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A setting that does not do what whoever set it may believe.

    Args:
        name: The variable; of a line without one, its text.
        where: `environment`, or the file and the line.
        because: What is wrong with it.
        fix: What to do.
    """

    name: str
    where: str
    because: str
    fix: str
