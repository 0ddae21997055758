"""What an output of any length says of a failure, in bounded memory."""

from __future__ import annotations

import functools
import re
from collections import deque

from drivetrain_health.failures._clue import signs

_TRACEBACK = b"Traceback (most recent call last)"
_WORDS = (
    rb"error|exception|traceback|fail|fatal|kill|signal|abort|oom|memory|tim(?:ed|er) ?|"
    rb"time.?out|refused|reset|broken|unreach|denied|corrupt|no space|stale|lost|evict|"
    rb"preempt|cancel|warn|invalid|unavailable|terminat|fault|cannot|unable|could ?n.?t|"
    rb"closed|mismatch|usage:|not "
)
_PROGRESS = re.compile(
    rb"\b(?:step|epoch|iter\w*|batch|it)\b\W{1,3}\d|\d/\d+ \[", re.IGNORECASE
)
# How many lines after the heading belong to a traceback, and how many steps after it show
# that it was survived.
_FOLLOWING, _STEPS = 150, 20
_MOST_LINE = 4_000


class OutputDigest:
    """Keeps of an output what may say why a process has failed; used by one thread.

    The end is kept as it is. Of what came before, these are kept: lines that speak of
    failures, tracebacks, and the next steps after them, which show that they were survived.
    If even these do not fit, those in the middle are left out, and a line says so.

    Args:
        end_bytes: How much of the end is kept, at least; twice as much at most.
        most_bytes: How much of what came before is kept at most.

    Example:
        >>> digest = OutputDigest(end_bytes=20)
        >>> digest.write(b"KeyError: 'a'" + 9 * b" frame #9: c10d" + 9 * b"a frame" )
        >>> digest.write(3 * b"last words")
        >>> digest.text()[:12], digest.text()[-5:]
        ("KeyError: 'a", 'words')
    """

    def __init__(self, *, end_bytes: int = 1 << 16, most_bytes: int = 1 << 18) -> None:
        self._end_bytes, self._half = end_bytes, most_bytes // 2
        self._end = b""
        self._first: list[bytes] = []
        self._later: deque[bytes] = deque()
        self._room = [self._half, self._half]
        self._num_left_out = 0
        self._following = self._steps = 0

    def write(self, data: bytes) -> None:
        """Takes the next bytes of it."""
        self._end += data
        if len(self._end) <= 2 * self._end_bytes:
            return
        most = len(self._end) - self._end_bytes
        cut = self._end.rfind(b"\n", 0, most) + 1 or most
        old, self._end = self._end[:cut], self._end[cut:]
        for line in old.replace(b"\r", b"\n").splitlines():
            self._take(line[:_MOST_LINE])

    def _take(self, line: bytes) -> None:
        if _telling().search(line):
            self._steps = _STEPS
            if _TRACEBACK in line:
                self._following = _FOLLOWING
        elif self._following:
            self._following -= 1
        elif self._steps and _PROGRESS.search(line):
            self._steps -= 1
        else:
            return
        if self._room[0] > 0:
            self._first.append(line)
            self._room[0] -= len(line) + 1
            return
        self._later.append(line)
        self._room[1] -= len(line) + 1
        while self._room[1] < 0:
            self._room[1] += len(self._later.popleft()) + 1
            self._num_left_out += 1

    def data(self) -> bytes:
        """Returns what is kept."""
        said = f"[{self._num_left_out} lines were left out here]".encode()
        gap = [said] if self._num_left_out else []
        return b"".join(b"%s\n" % one for one in (*self._first, *gap, *self._later)) + (
            self._end
        )

    def text(self) -> str:
        """Returns what is kept, as text."""
        return self.data().decode(errors="replace")


@functools.cache
def _telling() -> re.Pattern[bytes]:
    """Returns what finds the lines that any sign may be found in, a user's own too."""
    words = re.compile(_WORDS, re.IGNORECASE)
    others = [one for one in signs("sign") if not words.search(one.example.encode())]
    patterns = [one.pattern.pattern.encode() for one in others]
    return re.compile(b"|".join([_WORDS, *patterns]), re.IGNORECASE)
