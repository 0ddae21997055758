"""Finds settings that do not do what whoever set them may believe; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Problem
from drivetrain_fabric.adviser._versions import (
    instead_of,
    is_foreign,
    nearest_name,
    parse_version,
    release_of,
    settings_of,
    span_of,
    version_text,
    wrong_value,
)

if TYPE_CHECKING:
    from drivetrain_fabric.adviser._facts import Assignment, Facts


def check_settings(facts: Facts) -> tuple[Problem, ...]:
    """Returns what is wrong with the variables and files of NCCL, torch and Gloo.

    Args:
        facts: What is set, and the version of NCCL that reads it.

    Example:
        >>> from drivetrain_fabric.adviser import Assignment, Facts
        >>> line = Assignment(name="NCCL_IB_TIMEOT", value="22", where="nccl.conf:1")
        >>> found, = check_settings(Facts(settings=(line,)))
        >>> found.where, found.fix
        ('nccl.conf:1', 'did you mean NCCL_IB_TIMEOUT?')
    """
    found = [_bad_line(where, text) for where, text in facts.bad_lines]
    first: dict[str, Assignment] = {}
    for one in facts.settings:
        problem = _check_one(one, facts)
        if problem is not None:
            found.append(problem)
        before = first.setdefault(one.name, one)
        if before is not one and before.value != one.value:
            because = f"{before.where} says {before.value}, which comes first"
            found.append(_problem(one, because, "leave one of them"))
    return tuple(found)


def _bad_line(where: str, text: str) -> Problem:
    name, because = (
        "NCCL_CONF_FILE",
        "it cannot be read, and NCCL goes on without a word",
    )
    fix = "correct the path"
    if text:
        name, because = text, "NCCL skips what is not NAME=value, without a word"
        fix = "write NAME=value without spaces around it, or # before a comment"
    return Problem(name=name, where=where, because=because, fix=fix)


def _check_one(one: Assignment, facts: Facts) -> Problem | None:
    known = settings_of(facts.nccl).get(one.name)
    if known is None:
        return None if is_foreign(one.name) else _unknown(one, facts)
    wrong = wrong_value(one.name, one.value, facts.nccl)
    because = f"{wrong} ({version_text(release_of(facts.nccl))}, {known.line})"
    return None if wrong is None else _problem(one, because, "correct it")


def _unknown(one: Assignment, facts: Facts) -> Problem | None:
    reader = one.name.split("_", maxsplit=1)[0]
    span, instead = span_of(one.name), instead_of(one.name)
    whose = {"TORCH": "torch 2.13", "GLOO": "Gloo"}.get(reader)
    because = f"not known to {whose or f'NCCL {version_text(facts.nccl)}'}"
    if span is not None and span[1] and facts.nccl >= parse_version(span[1]):
        because += f": its source has it no more since {span[1]}"
    elif span is not None:
        because += f": its source has it since {span[0]}"
    elif instead and instead.startswith("TORCH"):
        because += ": torch calls it so since torch 2.2"
    near = None if span or instead else nearest_name(one.name, facts.nccl)
    is_theirs = reader not in ("NCCL", "TORCH", "GLOO") and one.where == "environment"
    if is_theirs and near is None:
        return None
    whom = "; if another library reads it, leave it as it is" if is_theirs else ""
    fix = (
        f"did you mean {near}?{whom}" if near else "leave it out, unless a plug-in asks"
    )
    return _problem(one, because, f"set {instead}" if instead else fix)


def _problem(one: Assignment, because: str, fix: str) -> Problem:
    return Problem(name=one.name, where=one.where, because=because, fix=fix)
