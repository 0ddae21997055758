"""Looks settings up by the version of NCCL: are they known, what may they be.

The folder `nccl` has a file for each release with what its source reads, and where.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from drivetrain_fabric.adviser._errors import AdviserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What `strtoll` reads with base 0: hexadecimal, octal or decimal digits.
_C_NUMBER = re.compile(
    r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]+)|(0[0-7]*)|([1-9][0-9]*))", re.ASCII
)
_VERSION = re.compile(r"(2(?:\.[0-9]{1,9}){1,2})(?:[+-].*)?")
_C_LIMITS = -(2**63), 2**63 - 1
_MOST_SHOWN = 60
_FOLDER = files("drivetrain_fabric.adviser")
_HAND: dict[str, Any] = json.loads(_FOLDER.joinpath("settings.json").read_text("utf-8"))

SYSCTLS: list[str] = _HAND["sysctls"]
"""What the kernel is asked for."""

ACCELERATION: list[dict[str, Any]] = _HAND["acceleration"]
"""Fields of the register ROCE_ACCL: what they should be, why, and who says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A variable that NCCL, torch or Gloo reads.

    Args:
        kind: `number`, `flag`, `level`, `list`, `words`, or `text` if anything will do.
        line: Where the source reads it: the file and the line.
        default: What it is if it is not set; None where that is not written down.
        range: The least and the largest number that it may be.
        words: What it, or what is in its list, may be; empty if it may be anything.
        exact: Whether the case of a word counts.
        functions: Which functions may have lists of their own; NCCL does not start with
            what it does not know then, and passes over it if there are none.
    """

    kind: str
    line: str
    default: str | None = None
    range: Sequence[int] = _C_LIMITS
    words: Sequence[str] = ()
    exact: bool = False
    functions: Sequence[str] = ()


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
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        message = (
            f"a version of NCCL 2 is three numbers such as 2.29.7, got {_shown(text)}"
        )
        raise AdviserError(message)
    return _parts(match[1])


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
    # What the CUDA build of each torch release asks for, the oldest first.
    pinned: dict[str, str] = _HAND["pinned"]
    release = ".".join((torch or "").split(".")[:2])
    if release in pinned:
        return parse_version(pinned[release]), f"torch {release} for CUDA asks for it"
    oldest = next(iter(pinned.values()))
    return parse_version(oldest), "the oldest torch that is supported asks for it"


@functools.cache
def _releases() -> tuple[tuple[int, ...], ...]:
    """Returns the versions with a file, the oldest first."""
    names = (file.name for file in _FOLDER.joinpath("nccl").iterdir())
    return tuple(sorted(_parts(n[:-5]) for n in names if n.endswith(".json")))


@functools.cache
def _read(release: tuple[int, ...]) -> dict[str, Setting]:
    """Returns what the file of a release says."""
    file = _FOLDER.joinpath("nccl", f"{version_text(release)}.json")
    said = json.loads(file.read_text("utf-8"))
    base = _read(_parts(said["base"])) if "base" in said else {}
    return base | {name: Setting(**row) for name, row in said["variables"].items()}


def release_of(version: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the release to go by: the version, or the nearest older one with a file.

    Args:
        version: Of NCCL; two numbers stand for the last release that begins so.

    Example:
        >>> release_of((2, 29, 7)), release_of((2, 29, 6)), release_of((2, 29))
        ((2, 29, 7), (2, 29, 3), (2, 29, 7))
    """
    older = [one for one in _releases() if one[: len(version)] <= version]
    return older[-1] if older else _releases()[0]


@functools.cache
def settings_of(version: tuple[int, ...]) -> Mapping[str, Setting]:
    """Returns the variables that a version of NCCL, torch and Gloo read.

    Args:
        version: Of NCCL.

    Example:
        >>> one = settings_of((2, 29, 7))["NCCL_IB_TIMEOUT"]
        >>> one.default, one.line
        ('20', 'src/transport/net_ib/connect.cc:15')
    """
    torch = {name: Setting(**row) for name, row in _HAND["torch"].items()}
    return _read(release_of(version)) | torch


@functools.cache
def span_of(name: str) -> tuple[str, str] | None:
    """Returns the first release of NCCL with a variable, and the first without it.

    Args:
        name: The variable.

    Returns:
        None if no release has it; an empty text for what is older than all files, or
        has no end.

    Example:
        >>> span_of("NCCL_IB_SPLIT_DATA_ON_QPS"), span_of("NCCL_PROXY_PROFILE")
        (('2.18.1', ''), ('2.12.7', '2.23.4'))
    """
    every = _releases()
    having = [at for at, one in enumerate(every) if name in _read(one)]
    if not having:
        return None
    since = version_text(every[having[0]]) if having[0] else ""
    until = every[having[-1] + 1 : having[-1] + 2]
    return since, version_text(until[0]) if until else ""


def instead_of(name: str) -> str | None:
    """Returns what took the place of a variable, or None."""
    instead: dict[str, str] = _HAND["instead"]
    return instead.get(name)


def default_of(name: str, version: tuple[int, ...]) -> str | None:
    """Returns what a variable is if it is not set; None where that is not written down.

    Args:
        name: The variable.
        version: Of NCCL.

    Example:
        >>> [default_of("NCCL_IB_TIMEOUT", (2, minor)) for minor in (13, 14, 23)]
        ['14', '18', '20']
    """
    one = settings_of(version).get(name)
    return one.default if one is not None else None


def nearest_name(name: str, version: tuple[int, ...]) -> str | None:
    """Returns the variable that somebody may have meant; None if none is near.

    Args:
        name: What was written.
        version: Of NCCL; only what it knows is proposed.

    Example:
        >>> nearest_name("NCCL_SOCKET_NSOCKS_PERTHREAD", (2, 29, 7))
        'NCCL_NSOCKS_PERTHREAD'
    """
    known = list(settings_of(version))
    near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.8)
    return near[0] if near else None


def is_slip(name: str) -> bool:
    """Returns whether a name that is not known is one edit from a variable of NCCL.

    Args:
        name: Of any variable; those of other libraries may look like that too.

    Example:
        >>> is_slip("CCL_NET_GDR_LEVEL"), is_slip("NCLC_DEBUG"), is_slip("CCL_LOG_LEVEL")
        (True, True, False)
    """
    known = _read(_releases()[-1])
    return name not in known and not _one_shorter(name).isdisjoint(_all_one_shorter())


def _one_shorter(name: str) -> set[str]:
    """Returns a name with and without each letter: one edit away, some are the same."""
    return {name, *(name[:at] + name[at + 1 :] for at in range(len(name)))}


@functools.cache
def _all_one_shorter() -> set[str]:
    return set().union(*map(_one_shorter, _read(_releases()[-1])))


def is_foreign(name: str) -> bool:
    """Returns whether a variable is read by plug-ins or containers, not NCCL itself."""
    return span_of(name) is None and name.startswith(tuple(_HAND["foreign"]))


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
    one = settings_of(version).get(name)
    # Scripts undo a setting so: the default holds.
    if one is None or not value:
        return None
    if one.kind == "list":
        return _wrong_list(value, one)
    if one.kind == "number":
        return _wrong_number(
            value, one, "NCCL" if name.startswith("NCCL_") else "torch"
        )
    # Numbers of levels are cut to what there is.
    is_number = one.kind == "level" and value[0].isdecimal()
    said = value if one.exact else value.upper()
    if is_number or not one.words or said in one.words:
        return None
    hint = ": in upper case" if value.upper() in one.words else ""
    return f"it must be one of {', '.join(one.words)}, got {_shown(value)}{hint}"


def _wrong_number(value: str, one: Setting, reader: str) -> str | None:
    number, rest = strtoll(value)
    if rest:
        # NCCL looks at errno: what 64 bits do not hold is as if it were not set.
        is_held = _C_LIMITS[0] <= number <= _C_LIMITS[1]
        seen = f": NCCL reads that as {number if is_held else 'its default'}"
        said = f"it must be a number, got {_shown(value)}"
        return f"{said}{seen if reader == 'NCCL' else ''}"
    least, most = one.range
    if not least <= number <= most:
        return f"it must be {least} to {most}, got {_cut(value)}"
    octal = re.fullmatch(r"[+-]?0+([1-9][0-9]*)", value.strip())
    if octal is not None and octal[1] != str(abs(number)):
        return f"it begins with 0, so that NCCL reads {_shown(value)} as {number}"
    return None


def _wrong_list(value: str, one: Setting) -> str | None:
    """Returns the word that NCCL does not know, as in `allreduce:ring;broadcast:^tree`."""
    does = "does not start with" if one.functions else "passes over"
    parts = [part for part in value.split(";") if part] if one.functions else [value]
    for at, part in enumerate(parts):
        first, *rest = part.split(":") if one.functions else [part]
        # Only the first list may be one for all functions.
        asked = [(first, one.functions)] if rest or at else []
        listed = (rest[0] if rest else first).removeprefix("^").split(",")
        asked += [(word, one.words) for word in listed if word]
        for word, known in asked:
            if word.lower() not in map(str.lower, known):
                return f"NCCL {does} {_shown(word)}: it knows {', '.join(known)}"
    return None


def strtoll(text: str) -> tuple[int, str]:
    """Returns the number at the beginning of a text, as C reads it, and what follows.

    Args:
        text: The text; without a number it is 0.

    Example:
        >>> strtoll("0x10"), strtoll("22 s"), strtoll("long")
        ((16, ''), (22, 's'), (0, 'long'))
    """
    match = _C_NUMBER.match(text)
    if match is None:
        return 0, text
    base = 16 if match[2] else 8 if match[3] else 10
    # Some digits more than 64 bits hold are enough, and int() refuses thousands.
    digits = (match[2] or match[3] or match[4]).lstrip("0")[:40]
    return int(f"{match[1]}{digits or 0}", base), text[match.end() :].strip()


def _parts(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split("."))


def _shown(text: str) -> str:
    return repr(_cut(text))


def _cut(text: str) -> str:
    return f"{text[:_MOST_SHOWN]}..." if len(text) > _MOST_SHOWN else text
