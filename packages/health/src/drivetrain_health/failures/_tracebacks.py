"""Python's tracebacks in the output of a process, and what a traceback says of its place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from drivetrain_health.failures._evidence import ErrorRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Launchers write before the lines of a worker: "[rank3]: ", "[worker/0] ".
_BEGIN = re.compile(
    r"^((?:\[[^\]\n]{1,60}\]:? ?)?)(?:Original )?Traceback \(most recent call last\):$"
)
_LAST = re.compile(r"^([A-Za-z_][\w.]{0,200})(?:: (.*))?$")
_FRAME = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9}),? in ([^\n]{1,200})')
_CHAINS = ("The above exception was", "During handling of the above")
# Where code is that is not the user's.
_LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python", "<frozen", "<string>")
# They sum up what other processes have raised.
_SUMMARIES = ("ChildFailedError", "ProcessRaisedException", "ProcessExitedException")
_MOST_LINES = 2_000


def find_tracebacks(lines: Sequence[str]) -> list[ErrorRecord]:
    """Returns the exceptions whose tracebacks are in some output, in their order.

    An exception with the one that caused it is one. What a launcher says of the exceptions
    of others is left out.

    Args:
        lines: As `clean_lines` returns them.

    Example:
        >>> [error] = find_tracebacks([
        ...     "[rank0]: Traceback (most recent call last):",
        ...     '[rank0]:   File "train.py", line 3, in <module>',
        ...     "[rank0]: KeyError: 'lr'"])
        >>> error.type, error.message
        ('KeyError', "'lr'")
    """
    found, causes = [], ""
    for at, line in enumerate(lines):
        if (begin := _BEGIN.match(line)) is None:
            continue
        prefix = begin[1]
        end = _end_of(lines, at, prefix)
        if end is None:
            continue
        own = [one.removeprefix(prefix) for one in lines[at : end + 4]]
        size = end + 1 - at
        last = _LAST.match(own[size - 1])
        assert last is not None
        text = "\n".join([causes, *own[:size]]).lstrip("\n")
        chain = next((t for t in own[size:] if t.startswith(_CHAINS)), "")
        causes = f"{text}\n{chain}" if chain else ""
        if not chain and last[1].rpartition(".")[2] not in _SUMMARIES:
            found.append(ErrorRecord(last[1], last[2] or "", text))
    return found


def _end_of(lines: Sequence[str], begin: int, prefix: str) -> int | None:
    """Returns which line says what was raised; None if the traceback is cut off."""
    for at in range(begin + 1, min(len(lines), begin + _MOST_LINES)):
        line = lines[at].removeprefix(prefix)
        if _BEGIN.match(line):
            return None
        if line and not line[0].isspace() and _LAST.match(line):
            return at
    return None


def headlines(error: ErrorRecord) -> Iterator[str]:
    """Yields what an exception says, then what those say that have caused it.

    Lines of code are left out: they may name any error.

    Args:
        error: The exception.
    """
    yield from f"{error.type}: {error.message}".splitlines()
    for line in error.traceback.splitlines():
        if not line.startswith((" ", "\t", "Traceback", "Original Traceback")):
            yield line


def find_place(text: str, *, is_newest_first: bool = False) -> str:
    """Returns where a traceback ends in the user's own code; empty if it has no place.

    Args:
        text: The traceback, of Python or of its `faulthandler`.
        is_newest_first: Whether the innermost call comes first, as in the latter.

    Example:
        >>> find_place('''
        ...   File "/job/train.py", line 12, in step
        ...     loss = model(x)
        ...   File "/v/lib/python3.11/site-packages/torch/nn/module.py", line 9, in call
        ... ''')
        'train.py:12 in step'
    """
    frames = _FRAME.findall(text)
    if not is_newest_first:
        frames.reverse()
    own = [one for one in frames if not any(part in one[0] for part in _LIBRARIES)]
    if not (own or frames):
        return ""
    path, line, function = (own or frames)[0]
    return f"{path.rpartition('/')[2]}:{line} in {function.strip()}"
