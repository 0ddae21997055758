"""Finds settings that do not do what whoever set them may believe; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drivetrain_fabric.adviser._advice import Problem
from drivetrain_fabric.adviser._versions import (
    find_setting,
    is_foreign,
    is_known,
    nearest_name,
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
    if not text:
        return Problem(
            name="NCCL_CONF_FILE",
            where=where,
            because="it cannot be read, and NCCL goes on without a word",
            fix="correct the path",
        )
    return Problem(
        name=text,
        where=where,
        because="NCCL skips what is not NAME=value, without a word",
        fix="write NAME=value without spaces around it, or # before a comment",
    )


def _check_one(one: Assignment, facts: Facts) -> Problem | None:
    version = version_text(facts.nccl)
    known = find_setting(one.name)
    if known is None:
        return None if is_foreign(one.name) else _unknown(one, facts)
    if not is_known(one.name, facts.nccl):
        if known.until.startswith("torch"):
            because = f"torch calls it {known.instead} since {known.until}"
        elif known.until and facts.nccl >= _numbers(known.until):
            because = f"NCCL dropped it in {known.until}, and this is {version}"
        else:
            because = f"NCCL has it since {known.since}, and this is {version}"
        fix = f"set {known.instead}" if known.instead else "leave it out"
        return _problem(one, because, fix)
    wrong = wrong_value(one.name, one.value, facts.nccl)
    return None if wrong is None else _problem(one, wrong, "correct it")


def _unknown(one: Assignment, facts: Facts) -> Problem:
    near = nearest_name(one.name, facts.nccl)
    reader = one.name.split("_", maxsplit=1)[0]
    who = {"NCCL": "no manual of NCCL to 2.32", "GLOO": "no source of Gloo"}
    because = f"{who.get(reader, 'no source of torch 2.13')} knows it"
    fix = f"did you mean {near}?" if near else "leave it out, unless a plug-in asks"
    return _problem(one, because, fix)


def _problem(one: Assignment, because: str, fix: str) -> Problem:
    return Problem(name=one.name, where=one.where, because=because, fix=fix)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split("."))
