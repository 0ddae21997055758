"""From facts to a report: all rules, what is set wrongly, what is not known; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Advice, Gap, Problem
from drivetrain_fabric.adviser._check import check_settings
from drivetrain_fabric.adviser._rules import RULES
from drivetrain_fabric.adviser._versions import find_setting, is_known, version_text

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
    """

    nccl: str
    transport: str
    advice: tuple[Advice, ...]
    problems: tuple[Problem, ...]
    gaps: tuple[Gap, ...]


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
    advice = [_dated(one) for one in said if isinstance(one, Advice)]
    usable = [one for one in advice if _is_usable(one, facts)]
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
    return Report(
        nccl=f"NCCL {version_text(facts.nccl)} ({how}{facts.nccl_from})",
        transport=facts.transport or "not known",
        advice=tuple(sorted(usable, key=lambda one: _URGENCY.index(one.level))),
        problems=check_settings(facts),
        gaps=tuple(gaps),
    )


def _dated(one: Advice) -> Advice:
    """Returns the advice with the versions of NCCL that know its setting."""
    setting = find_setting(one.setting) if one.scope == "env" else None
    if setting is None or not one.setting.startswith("NCCL_"):
        return one
    return replace(one, since=setting.since, until=setting.until)


def _is_usable(one: Advice, facts: Facts) -> bool:
    if one.scope != "env" or one.value is None:
        return True
    return is_known(one.setting, facts.nccl)
