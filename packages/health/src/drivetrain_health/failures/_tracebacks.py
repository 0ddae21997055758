"""Python's tracebacks in the output of a process, and what a traceback says of its place."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from drivetrain_health.failures._evidence import ErrorRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HEAD = "Traceback (most recent call last)"
# What stands before the words of a heading, and belongs to them.
_OWN = re.compile(r"(?:Original |Exception Group |[─╭+]+ ?)+$")
_LAST = re.compile(r"^([A-Za-z_][\w.]{0,200})(?:: ?(.*))?$")
_FRAME = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9}),? in ([^\n]{1,200})')
_FRAME_LINE = re.compile(r'^(.{0,300}?)  File "[^"\n]{1,1000}", line \d')
_CUT_OFF = re.compile(r'^(.{0,300}?)  File "[^"\n]{1,1000}", line \d{1,9}, in ')
# The frames of `rich`, which have a box around them.
_BOXED = re.compile(r"│ +(\S{1,1000}):(\d{1,9}) in (\S{1,200})")
_CLOCK = re.compile(r"(?:\d{4}[-/]\d\d[-/]\d\d|\d{1,2}:\d\d:\d\d(?:[.,]\d+)?)")
_CHAINS = ("The above exception was", "During handling of the above")
# What Python or a logger tells of and goes on.
_SURVIVED = re.compile(
    r"Exception ignored (?:in|while)|--- Logging error|Error in atexit|never retrieved"
)
# What a logger, a launcher or another rank writes behind it.
_LOGGED = re.compile(
    r"\[|-{9}|={9}|\d{4}[-/]|\d\d:\d\d|[IWEF]\d{4} |[A-Z]{4,}:|(?:srun|slurmstepd|wandb|\w+:\d+:\d+)\b"
)
_NAMES = re.compile(r"Error|Exception|Interrupt|Exit|^[a-z_][\w.]*\.[A-Z]\w+(?::|$)")
# Where code is that is not the user's.
_LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python", "<frozen", "<string>")
# They sum up what other processes have raised.
_SUMMARIES = re.compile(
    r"(?:ChildFailedError|Process(?:Raised|Exited)Exception|CalledProcessError"
    r"|ExceptionGroup)$"
)
_SUMMED_UP = re.compile(r"with non-zero status|^Caught \w+ in (?:Data|replica|pin)")
_MOST_LINES, _MOST_MESSAGE, _NEAR = 2_000, 30, 60


class Raised(NamedTuple):
    """An exception whose traceback is in some output.

    Attributes:
        error: The exception.
        at: In which line its traceback begins.
        lines: Which lines are the traceback's.
    """

    error: ErrorRecord
    at: int
    lines: frozenset[int]


def find_tracebacks(lines: Sequence[str]) -> list[Raised]:
    """Returns the exceptions whose tracebacks are in some output, in their order.

    Launchers and loggers write something before each line, or only before the first: what
    stands before the first frame is what they write, but for the time, and lines with
    something else there are another rank's. An exception with the one that caused it is
    one. What a launcher says of the exceptions of others is left out, and so is what
    Python has ignored; of these the error has no type.

    Args:
        lines: As `clean_lines` returns them.

    Example:
        >>> [found] = find_tracebacks([
        ...     "0: Traceback (most recent call last):",
        ...     "1: step 7",
        ...     '0:   File "train.py", line 3, in <module>',
        ...     "0: KeyError: 'lr'"])
        >>> found.error.type, found.error.message
        ('KeyError', "'lr'")
    """
    found: list[Raised] = []
    used: set[int] = set()
    causes: dict[str, Raised] = {}
    for at, line in enumerate(lines):
        is_headed = _HEAD in line
        if at in used or not (is_headed or _CUT_OFF.match(line)):
            continue
        own = dict(_own_lines(lines, at))
        end = next((n for n, text in own.items() if n > at and _LAST.match(text)), None)
        if end is None or not (is_headed or _NAMES.search(own[end])):
            continue
        rest = [text for n, text in own.items() if n > end][:_MOST_MESSAGE]
        body = {n: text for n, text in own.items() if n <= end}
        used.update(body)
        name, message = _LAST.match(body[end]).groups("")  # type: ignore[union-attr]
        prefix = _CLOCK.sub("", lines[end].removesuffix(body[end]))
        chain = next((t for t in rest[:3] if t.startswith(_CHAINS)), "")
        text, begin, parts = "\n".join([*body.values(), chain]).strip(), at, set(body)
        more: Iterator[str] = takewhile(
            lambda text: text.strip() and not _LOGGED.match(text), rest
        )
        # The heading of the last one may have been cut off.
        bare = (_LAST.match(t) for t in rest[:6] if t and not t.startswith(_CHAINS))
        last = next((m for m in bare if chain and m and _NAMES.search(m[1])), None)
        if last is not None:
            (name, message), chain, more = last.groups(""), "", iter(())
        is_summary = _SUMMARIES.search(name) or _SUMMED_UP.search(message)
        message = "\n".join([message, *more])
        if not is_summary and (cause := causes.pop(prefix, None)) is not None:
            found.remove(cause)
            text, begin = f"{cause.error.traceback}\n{text}", cause.at
            parts |= cause.lines
        if is_summary or any(map(_SURVIVED.search, lines[max(0, at - 3) : at])):
            name = ""
        found.append(Raised(ErrorRecord(name, message, text), begin, frozenset(parts)))
        if chain:
            causes[prefix] = found[-1]
    return found


def _own_lines(lines: Sequence[str], at: int) -> Iterator[tuple[int, str]]:
    """Yields the lines of the stream in which a traceback begins, without their prefix."""
    before, is_headed, _ = lines[at].partition(_HEAD)
    if not is_headed:
        before = _CUT_OFF.match(lines[at])[1]  # type: ignore[index]
    boxed = "╭" in before
    before = _OWN.sub("", before)
    first, last = at + bool(is_headed), min(len(lines), at + _MOST_LINES)
    yield at, _HEAD + ":"
    if boxed:
        for n in range(first, last):
            text = lines[n].removeprefix(before)
            box = _BOXED.match(text)
            yield n, f'  File "{box[1]}", line {box[2]}, in {box[3]}' if box else text
        return
    frames = (_FRAME_LINE.match(line) for line in lines[first : first + _NEAR])
    prefixes = [frame[1] for frame in frames if frame]
    pattern = _prefix(before)
    if prefixes and not any(pattern.fullmatch(one) for one in prefixes):
        pattern = _prefix(prefixes[0])
    for n in range(first, last):
        if (start := pattern.match(lines[n])) is not None:
            text = lines[n][start.end() :]
            if _HEAD in text:
                return
            yield n, text


def _prefix(text: str) -> re.Pattern[str]:
    """Returns what finds a prefix again, at any time of the day."""
    return re.compile(_CLOCK.pattern.join(map(re.escape, _CLOCK.split(text))))


def headlines(error: ErrorRecord) -> Iterator[str]:
    """Yields what an exception says, then what those say that have caused it.

    Lines of code are left out: they may name any error.

    Args:
        error: The exception.
    """
    yield from f"{error.type}: {error.message.lstrip()}".splitlines()[:1]
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
