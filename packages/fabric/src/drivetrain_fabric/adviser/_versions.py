"""Looks settings up by the version of NCCL: are they known, what may they be."""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drivetrain_fabric.adviser import _table
from drivetrain_fabric.adviser._errors import AdviserError

if TYPE_CHECKING:
    from collections.abc import Sequence

# A decimal number, or an octal one; hexadecimal ones are right or not there at all.
_C_NUMBER = re.compile(r"[+-]?(0[0-7]*|[1-9][0-9]*)")
# Larger ones are out of every range; int() refuses those with thousands of digits.
_LONG = re.compile(r"[+-]?[1-9][0-9]{30,}")
_MOST_OF_C = 2**63 - 1
_MOST_SHOWN = 60
# What the CUDA build of a torch release asks for, and the oldest that we support.
_PINNED = {
    (2, 11): (2, 28, 9),
    (2, 12): (2, 29, 7),
    (2, 13): (2, 29, 7),
    (2, 14): (2, 30, 7),
    (2, 15): (2, 30, 7),
}
# Of NCCL's plug-ins, containers and forks: theirs to explain.
_FOREIGN = (
    "NCCL_FASTRAK_",
    "NCCL_GIN_",
    "NCCL_GPUDIRECTTCPX_",
    "NCCL_INSPECTOR_",
    "NCCL_PROFILE_",
    "NCCL_TUNER_CONFIG_",
    "NCCL_VERSION",
)
_RENAMED_BY_TORCH = (
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A variable that NCCL, torch or Gloo reads.

    Args:
        name: The variable.
        since: The first version of NCCL with it; empty if it is older than the marks of
            the manual, or not NCCL's.
        until: The first version without it; empty if there is none.
        instead: What took its place.
        least: The least number it may be; None if it is no number.
        most: The largest one.
        choices: The words it may be; empty if it may be any.
        is_in_manual: Whether the manual describes it.
    """

    name: str
    since: str = ""
    until: str = ""
    instead: str | None = None
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    is_in_manual: bool = True


@functools.cache
def _settings() -> dict[str, Setting]:
    found = [
        Setting(name=name, since=since, least=least, most=most)
        for name, since, least, most in _table.NUMBERS
    ]
    found += [
        Setting(name=name, since=since, choices=tuple(choices))
        for name, since, choices in _table.CHOICES
    ]
    found += [Setting(name=name, since=since) for name, since in _table.TEXTS]
    found += [
        Setting(name=name, since=since, until=until, is_in_manual=False)
        for name, since, until in _table.SOURCE_ONLY
    ]
    found += [
        Setting(name=name, since=since, until=until, instead=instead)
        for name, (since, until, instead) in _table.REMOVED.items()
    ]
    found += [
        Setting(name=name, least=least, most=most) for name, least, most in _table.TORCH
    ]
    found += [
        Setting(name=name, until="torch 2.2", instead=f"TORCH_{name}")
        for name in _RENAMED_BY_TORCH
    ]
    return {one.name: one for one in found}


def parse_version(text: str) -> tuple[int, ...]:
    """Returns a version as numbers.

    Args:
        text: Such as `2.29.7`, with or without a suffix after `+` or `-`.

    Raises:
        AdviserError: It is no version of NCCL 2.

    Example:
        >>> parse_version("2.29.7+cuda13.0")
        (2, 29, 7)
    """
    words = text.strip().split("+")[0].split("-")[0].split(".")
    if not 2 <= len(words) <= 3 or not all(map(_is_part, words)):
        message = (
            f"a version of NCCL is three numbers such as 2.29.7, got {_shown(text)}"
        )
        raise AdviserError(message)
    version = tuple(int(word) for word in words)
    if version[0] != 2:
        message = f"NCCL 2 is known here, got the version {_shown(text)}"
        raise AdviserError(message)
    return version


def version_text(version: tuple[int, ...]) -> str:
    """Returns a version as people write it.

    Example:
        >>> version_text((2, 29, 7))
        '2.29.7'
    """
    return ".".join(str(number) for number in version)


def assumed_version(torch: str | None) -> tuple[tuple[int, ...], str]:
    """Returns the version to go by where none is found, and why it is that one.

    Args:
        torch: The version of torch; None if there is none.

    Example:
        >>> assumed_version("2.13.0+cpu")
        ((2, 29, 7), 'torch 2.13 for CUDA asks for it')
    """
    words = (torch or "").split(".")
    if len(words) >= 2 and _is_part(words[0]) and _is_part(words[1]):
        release = int(words[0]), int(words[1])
        if release in _PINNED:
            return _PINNED[release], f"torch {words[0]}.{words[1]} for CUDA asks for it"
    return _PINNED[2, 11], "the oldest torch that is supported asks for it"


def find_setting(name: str) -> Setting | None:
    """Returns what is known of a variable, of whatever version; None if nothing is.

    Args:
        name: The variable.

    Example:
        >>> find_setting("NCCL_IB_SPLIT_DATA_ON_QPS").since
        '2.18'
    """
    return _settings().get(name)


def is_known(name: str, version: tuple[int, ...]) -> bool:
    """Returns whether a version of NCCL reads a variable.

    Args:
        name: The variable; those of torch and Gloo are known to all versions.
        version: Of NCCL.

    Example:
        >>> is_known("NCCL_IB_SPLIT_DATA_ON_QPS", (2, 17, 1))
        False
    """
    one = find_setting(name)
    if one is None or one.until.startswith("torch"):
        return False
    if one.since and version < _parse(one.since):
        return False
    return not one.until or version < _parse(one.until)


def default_of(name: str, version: tuple[int, ...]) -> str | None:
    """Returns what a variable is if it is not set; None where that is not written down.

    Args:
        name: The variable.
        version: Of NCCL.

    Example:
        >>> [default_of("NCCL_IB_TIMEOUT", (2, minor, 0)) for minor in (13, 14, 23)]
        ['14', '18', '20']
    """
    known = [
        value
        for since, value in _table.DEFAULTS.get(name, ())
        if not since or version >= _parse(since)
    ]
    return known[-1] if known else None


def nearest_name(name: str, version: tuple[int, ...]) -> str | None:
    """Returns the variable that somebody may have meant; None if none is near.

    Args:
        name: What was written.
        version: Of NCCL; only what it knows is proposed.

    Example:
        >>> nearest_name("NCCL_SOCKET_NSOCKS_PERTHREAD", (2, 29, 7))
        'NCCL_NSOCKS_PERTHREAD'
    """
    known = [other for other in _settings() if is_known(other, version)]
    near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.8)
    return near[0] if near else None


def is_foreign(name: str) -> bool:
    """Returns whether a variable is read by plug-ins or containers, not NCCL itself."""
    return name not in _settings() and name.startswith(_FOREIGN)


def most_ctas(version: tuple[int, ...]) -> int:
    """Returns the largest number of blocks that NCCL takes.

    Args:
        version: Of NCCL.

    Example:
        >>> most_ctas((2, 24, 3)), most_ctas((2, 25, 1))
        (32, 64)
    """
    return 64 if version >= (2, 25) else 32


def wrong_value(name: str, value: str, version: tuple[int, ...]) -> str | None:
    """Returns what is wrong with a value, or None.

    Args:
        name: The variable.
        value: What it is set to.
        version: Of NCCL.

    Example:
        >>> wrong_value("NCCL_IB_RETRY_CNT", "12", (2, 29, 7))
        'it must be 0 to 7, got 12'
        >>> wrong_value("NCCL_BUFFSIZE", "8M", (2, 29, 7))
        "it must be a number, got '8M': NCCL reads that as 8"
    """
    one = find_setting(name)
    # Scripts undo a setting so: the default holds.
    if one is None or not value:
        return None
    if name in _table.LISTS:
        return _wrong_list(value, _table.LISTS[name])
    # Numbers of levels are cut to what there is.
    is_level = name.endswith("_LEVEL")
    said = value if is_level or name.endswith("_FAMILY") else value.upper()
    if is_level and value[0].isdecimal():
        return None
    if one.choices and said not in one.choices:
        hint = ": in upper case" if value.upper() in one.choices else ""
        return f"it must be one of {', '.join(one.choices)}, got {_shown(value)}{hint}"
    if one.least is None or one.most is None:
        return None
    try:
        number = _whole(value)
    except ValueError:
        reader = "NCCL" if name.startswith("NCCL_") else "torch"
        read = _as_c_reads(value)
        seen = f": NCCL reads that as {read}" if reader == "NCCL" else ""
        return f"it must be a number, got {_shown(value)}{seen}"
    most = one.most
    if name in ("NCCL_MAX_CTAS", "NCCL_MIN_CTAS"):
        most = most_ctas(version)
    if not one.least <= number <= most:
        return f"it must be {one.least} to {most}, got {_cut(value)}"
    digits = value.strip().lstrip("+-").lstrip("0")
    if _is_octal(value) and digits and digits != str(abs(number)):
        return f"it begins with 0, so that NCCL reads {_shown(value)} as {number}"
    return None


def _wrong_list(value: str, words: Sequence[str]) -> str | None:
    """Returns the word that NCCL does not know, as in `allreduce:ring;broadcast:^tree`."""
    for part in value.split(";"):
        for word in part.rpartition(":")[2].removeprefix("^").split(","):
            if word and word.lower() not in map(str.lower, words):
                known = ", ".join(words)
                return f"NCCL does not start with {_shown(word)}: it knows {known}"
    return None


def _is_part(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= 9


def _whole(text: str) -> int:
    """Returns the number that a text is as a whole; ValueError if it is none."""
    if "_" in text or not text.isascii():
        # Python's ways to write numbers, not those of C.
        raise ValueError(text)
    if _is_octal(text):
        return int(text, 8)
    if _LONG.fullmatch(text.strip()):
        return -_MOST_OF_C if text.strip().startswith("-") else _MOST_OF_C
    return int(text, 0)


def _shown(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    return f"{text[:_MOST_SHOWN]}..." if len(text) > _MOST_SHOWN else text


def _is_octal(text: str) -> bool:
    digits = text.strip().lstrip("+-")
    return len(digits) > 1 and digits[0] == "0" and set(digits) <= set("01234567")


def _as_c_reads(text: str) -> int:
    """Returns what `strtoll` makes of a text that is no number as a whole."""
    match = _C_NUMBER.match(text.strip())
    digits = match[0] if match is not None else "0"
    # What is too large is the largest number of C, not an error.
    return max(-_MOST_OF_C - 1, min(_MOST_OF_C, _whole(digits)))


@functools.cache
def _parse(text: str) -> tuple[int, ...]:
    return parse_version(text)
