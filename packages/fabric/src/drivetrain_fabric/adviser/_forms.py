"""Advice as lines for a shell, and as what changes against what is set now; pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._advice import Advice
    from drivetrain_fabric.adviser._advise import Report
    from drivetrain_fabric.adviser._facts import Facts

_SIGNS = {"added": "+", "changed": "~", "removed": "-", "unchanged": " "}


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What becomes of one setting.

    Args:
        kind: `added`, `changed`, `removed` or `unchanged`.
        setting: The variable or the sysctl.
        before: What it is; None if it is not set.
        after: What it should be; None if it should not be set.
        level: Of the advice; empty where there is none.
    """

    kind: Literal["added", "changed", "removed", "unchanged"]
    setting: str
    before: str | None
    after: str | None
    level: str = ""


def changes(facts: Facts, report: Report) -> tuple[Change, ...]:
    """Returns what becomes of each variable that is set or advised, and of sysctls.

    Args:
        facts: What is set now.
        report: What is advised.

    Example:
        >>> from drivetrain_fabric.adviser import Assignment, Facts, advise
        >>> facts = Facts(settings=(Assignment(name="NCCL_DEBUG", value="WARN"),))
        >>> [(one.kind, one.setting) for one in changes(facts, advise(facts))]
        [('unchanged', 'NCCL_DEBUG')]
    """
    advised = {one.setting: one for one in report.advice if one.scope != "host"}
    sysctls = dict(facts.sysctl)
    names = dict.fromkeys([*advised, *(one.name for one in facts.settings)])
    found = []
    for name in names:
        before = facts.value_of(name)
        if before is None:
            before = sysctls.get(name)
        one = advised.get(name)
        after, level = (one.value, one.level) if one is not None else (before, "")
        kind = _kind(before, after)
        found.append(
            Change(kind=kind, setting=name, before=before, after=after, level=level)
        )
    return tuple(found)


def as_diff(facts: Facts, report: Report) -> str:
    """Returns a line for each change: `+` new, `~` another value, `-` away.

    Args:
        facts: What is set now.
        report: What is advised.
    """
    lines = _head(f"{report.nccl}, {report.transport}", report)
    for one in changes(facts, report):
        values = {
            "added": f"{one.after}",
            "changed": f"{one.before} -> {one.after}",
            "removed": f"{one.before}",
            "unchanged": f"{one.before}",
        }
        level = f"  ({one.level})" if one.level else ""
        line = f"{_SIGNS[one.kind]} {one.setting}={values[one.kind]}{level}"
        lines.append(_one_line(line))
    lines += _unknown(report)
    return "\n".join(lines) + "\n"


def as_env(facts: Facts, report: Report) -> str:
    """Returns lines that a shell may source; all but variables are comments.

    What is only worth a try is a comment as well: it should be measured first.

    Args:
        facts: What is set now.
        report: What is advised.

    Example:
        >>> from drivetrain_fabric.adviser import Assignment, Facts, advise
        >>> chunk = Assignment(name="NCCL_CHUNK_SIZE", value="1048576")
        >>> facts = Facts(settings=(chunk,), ranks=8)
        >>> lines = as_env(facts, advise(facts)).splitlines()
        >>> [line for line in lines if line and not line.startswith("#")]
        ['unset NCCL_CHUNK_SIZE']
    """
    lines = _head(f"for {report.nccl}, {report.transport}", report)
    for one in report.advice:
        lines += ["", _comment(f"{one.level}: {one.because}")]
        lines += [_comment(f"from: {one.source}"), _command(one, facts)]
    lines += [""] if report.problems or report.gaps else []
    lines += [
        _comment(f"wrong: {one.name} ({one.where}): {one.because}; {one.fix}")
        for one in report.problems
    ]
    lines += _unknown(report)
    return "\n".join(lines) + "\n"


def _head(title: str, report: Report) -> list[str]:
    return [_comment(text) for text in (title, report.longest_flap) if text]


def _unknown(report: Report) -> list[str]:
    return [
        _comment(f"not known: {one.subject}: {one.lacks}; give it: {one.give}")
        for one in report.gaps
    ]


def _command(one: Advice, facts: Facts) -> str:
    if one.scope == "host":
        return _comment(f"{one.setting}: {one.value}")
    if one.scope == "sysctl":
        return _comment(f"sysctl -w {one.setting}={shlex.quote(one.value or '')}")
    if one.value is not None:
        line = f"export {one.setting}={shlex.quote(one.value)}"
    else:
        line = f"unset {one.setting}"
        where = next((s.where for s in facts.settings if s.name == one.setting), None)
        if where not in (None, "environment"):
            return _comment(f"{line}: it stands in {where}, take it out there")
    return _comment(line) if one.level == "try" else line


def _kind(
    before: str | None, after: str | None
) -> Literal["added", "changed", "removed", "unchanged"]:
    if before == after:
        return "unchanged"
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


def _comment(text: str) -> str:
    return f"# {_one_line(text)}"


def _one_line(text: str) -> str:
    """Returns a text without line ends of any kind, which would end a comment."""
    return " ".join(text.split()) if "\n" in text or "\r" in text else text
