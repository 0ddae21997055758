"""What the command of a launcher says: the program, and the numbers of its processes."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drivetrain_core import ProgramError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHELLS = re.compile(r"(/bin/|/usr/bin/)?(sh|bash)")
_PYTHON = re.compile(r"(\S*/)?python[0-9.]*")
_SETTING = re.compile(r"[A-Za-z_]\w*=")
# What the shell would put something else for, or do more than one thing by.
_EXPANDED = re.compile(r"[$`*?]")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")
_GOES_ON = re.compile(r"\s*(-|python)")
_SUM = re.compile(r"\$\(\(\s*(\d+)\s*([-+*])\s*(\d+)\s*\)\)")
_NUMBERS = {
    "-np": "num_processes",
    "--num-proc": "num_processes",
    "--min-np": "min_processes",
    "--min-num-proc": "min_processes",
    "--max-np": "max_processes",
    "--max-num-proc": "max_processes",
    "--slots": "slots",
    "--slots-per-host": "slots",
    "--elastic-timeout": "elastic_timeout_s",
    "--reset-limit": "reset_limit",
}
# They say how the launcher finds hosts, logs in to them, and how long that may take: here
# agents come to the master by themselves.
_IDLE = {
    "--host-discovery-script",
    "--log-level",
    "--ssh-identity-file",
    "--ssh-port",
    "--start-timeout",
    "-i",
    "-p",
}
_IDLE_FLAGS = {"--disable-cache", "--gloo", "--verbose"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherCommand:
    """A call of `horovodrun`, taken apart.

    Args:
        python: The interpreter.
        program: The script, or `-m` and a module, with its arguments.
        env: What is set for the program.
        num_processes: At first; None if that is not said.
        min_processes: Fewer do not train.
        max_processes: More do not.
        slots: Processes of a host.
        elastic_timeout_s: How long processes wait for others.
        reset_limit: How often the world may change.
    """

    python: str
    program: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    num_processes: int | None = None
    min_processes: int | None = None
    max_processes: int | None = None
    slots: int | None = None
    elastic_timeout_s: int | None = None
    reset_limit: int | None = None


def parse_launcher_command(container: Mapping[str, Any]) -> LauncherCommand | None:
    """Returns what a launcher's container runs; None if it names no command.

    Args:
        container: Of the launcher's pod.

    Raises:
        ProgramError: It is something else than one call of `horovodrun`, or has options
            that mean nothing here.

    Example:
        >>> found = parse_launcher_command({"command": ["sh", "-c",
        ...     "horovodrun -np 2 --min-np 1 python train.py --lr 0.1"]})
        >>> found.program, found.min_processes
        (('train.py', '--lr', '0.1'), 1)
    """
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if not words:
        return None
    env: dict[str, str] = {}
    if _SHELLS.fullmatch(words[0]) and len(words) > 1:
        if words[1] != "-c" or len(words) != 3:
            message = (
                f"a shell is given {words[1]!r} where -c and one command may stand"
            )
            raise _not_known(message)
        words = _words(words[2], container)
        if words and words[0] == "exec":
            del words[0]
        while words and _SETTING.match(words[0]):
            name, _, env[name] = words.pop(0).partition("=")
    if not words or words[0].rpartition("/")[2] != "horovodrun":
        first = words[0] if words else ""
        why = f"it runs {first!r}"
        raise _not_known(why)
    numbers, rest = _options(words[1:])
    python, program = _program(rest, env)
    return LauncherCommand(python=python, program=program, env=env, **numbers)


def _not_known(why: str) -> ProgramError:
    message = (
        f"the launcher's command must be one call of horovodrun: {why}. Leave the "
        "launcher away where workers run the agent by themselves"
    )
    return ProgramError(message)


def _filled(line: str, container: Mapping[str, Any]) -> str:
    """Puts in what a shell would: variables that the container sets, and sums of two."""
    known = {one["name"]: one.get("value") for one in container.get("env") or ()}

    def value(found: re.Match[str]) -> str:
        # What comes from elsewhere is not known here.
        return str(known.get(found[1] or found[2]) or found[0])

    def reckon(found: re.Match[str]) -> str:
        one, other = int(found[1]), int(found[3])
        return str({"+": one + other, "-": one - other, "*": one * other}[found[2]])

    return _SUM.sub(reckon, _VARIABLE.sub(value, line))


def _words(line: str, container: Mapping[str, Any]) -> list[str]:
    """Returns the words of a line that a shell takes for one command."""
    line = _filled(line.replace("\\\n", " ").strip(), container)
    # Clients break one command into lines: options, and at last the program.
    *before, last = line.splitlines() or [""]
    is_one = all(map(_GOES_ON.match, [*before[1:], last]))
    if is_one and not any(map(_PYTHON.fullmatch, " ".join(before).split())):
        line = " ".join([*before, last])
    if found := _EXPANDED.search(line):
        why = f"{found[0]!r} is for a shell, and none reads it"
        raise _not_known(why)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise _not_known(str(error).lower()) from error
    if "\n" in line:
        why = "it has several lines"
        raise _not_known(why)
    if more := next((word for word in words if set(word) <= set("();<>|&")), ""):
        why = f"{more!r} is for a shell, and none reads it"
        raise _not_known(why)
    return words


def _options(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    numbers: dict[str, Any] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option, has_value, value = rest.pop(0).partition("=")
        if option in _IDLE_FLAGS and not has_value:
            continue
        if option not in _NUMBERS and option not in _IDLE:
            message = f"horovodrun's option {option} is not known here: take it out"
            raise ProgramError(message)
        if not has_value:
            if not rest:
                message = f"horovodrun's option {option} has no value"
                raise ProgramError(message)
            value = rest.pop(0)
        if option in _NUMBERS:
            if not value.isdecimal() or int(value) < 1:
                message = (
                    f"horovodrun's option {option} must be 1 or more, got {value!r}"
                )
                raise ProgramError(message)
            numbers[_NUMBERS[option]] = int(value)
    return numbers, rest


def _program(words: Sequence[str], env: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    rest = list(words)
    if not rest or not _PYTHON.fullmatch(rest[0]):
        first = rest[0] if rest else ""
        why = f"what it starts must be python and a script, got {first!r}"
        raise _not_known(why)
    python = rest.pop(0)
    if rest and rest[0] == "-u":
        env["PYTHONUNBUFFERED"] = "1"
        del rest[0]
    is_module = bool(rest) and rest[0] == "-m"
    target = rest[1:] if is_module else rest
    if not target or target[0].startswith("-"):
        given = rest[0] if rest else ""
        why = f"after python a script or -m may stand, got {given!r}"
        raise _not_known(why)
    return python, tuple(rest)
