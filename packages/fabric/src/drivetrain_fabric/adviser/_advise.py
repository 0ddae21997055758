"""From facts to a report: all rules, what is set wrongly, what is not known; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Advice, Gap, Problem
from drivetrain_fabric.adviser._check import check_settings
from drivetrain_fabric.adviser._rules import RULES
from drivetrain_fabric.adviser._rules._rdma import longest_flap
from drivetrain_fabric.adviser._versions import (
    release_of,
    settings_of,
    span_of,
    version_text,
)

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._facts import Facts

_URGENCY = ("bad", "warn", "try")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What an adviser has to say.

    Args:
        nccl: Which version of NCCL it is for, and how that is known.
        transport: How NCCL reaches other hosts, or that it is not known.
        advice: What to set, the most urgent first; each setting once.
        problems: What is set wrongly.
        gaps: On what nothing can be said, and what it would take.
        longest_flap: For how long a link may be gone, and how that is counted; empty
            without RDMA.
    """

    nccl: str
    transport: str
    advice: tuple[Advice, ...]
    problems: tuple[Problem, ...]
    gaps: tuple[Gap, ...]
    longest_flap: str = ""


def advise(facts: Facts) -> Report:
    """Returns what to set on a host and its network, for its version of NCCL.

    Args:
        facts: What is known.

    Example:
        >>> from drivetrain_fabric.adviser import Assignment, Facts
        >>> chunk = Assignment(name="NCCL_CHUNK_SIZE", value="1048576")
        >>> [(one.setting, one.value, one.level)
        ...  for one in advise(Facts(settings=(chunk,), ranks=8)).advice]
        [('NCCL_CHUNK_SIZE', None, 'bad')]
    """
    said = [one for rule in RULES for one in rule(facts)]
    known = settings_of(facts.nccl)
    usable = [
        _dated(one, facts)
        for one in said
        if isinstance(one, Advice)
        and (one.scope != "env" or one.value is None or one.setting in known)
    ]
    names = [one.setting for one in usable]
    assert len(set(names)) == len(names), f"two rules have one setting: {names}"
    gaps = [one for one in said if isinstance(one, Gap)]
    if facts.transport is None:
        lacks = "any network card"
        gaps.append(Gap(subject="network", lacks=lacks, give="run it on the host"))
    gaps += [
        Gap(
            subject=where,
            lacks=f"a number that makes sense, it says {text[:60]!r}",
            give="read it again on the host",
        )
        for where, text in facts.unreadable
    ]
    how = "assumed, as " if facts.is_nccl_assumed else ""
    version, release = version_text(facts.nccl), version_text(release_of(facts.nccl))
    by = "" if version == release else f", by the settings of {release}"
    return Report(
        nccl=f"NCCL {version} ({how}{facts.nccl_from}{by})",
        transport=facts.transport or "not known",
        advice=tuple(sorted(usable, key=lambda one: _URGENCY.index(one.level))),
        problems=check_settings(facts),
        gaps=tuple(gaps),
        longest_flap=longest_flap(facts),
    )


def _dated(one: Advice, facts: Facts) -> Advice:
    """Returns the advice with the releases that know its setting, and where they do."""
    span = span_of(one.setting) if one.scope == "env" else None
    known = settings_of(facts.nccl).get(one.setting)
    if span is None or known is None:
        return one
    source = f"{one.source}; NCCL {version_text(release_of(facts.nccl))}, {known.line}"
    return replace(one, since=span[0], until=span[1], source=source)
