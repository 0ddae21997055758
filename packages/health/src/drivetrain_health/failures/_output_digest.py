"""What an output of any length says of a failure, in bounded memory."""

from __future__ import annotations

import functools
import re

from drivetrain_health.failures._clue import RULES, signs

_TRACEBACK = b"Traceback (most recent call last)"
_WORDS = RULES["telling"].encode()
_PROGRESS = re.compile(
    rb"\b(?:step|epoch|iter\w*|batch|it)\b\W{1,3}\d|\d/\d+ \[", re.IGNORECASE
)
# How many lines after the heading belong to a traceback, and how many steps after it show
# that it was survived.
_FOLLOWING, _STEPS = 150, 20
_MOST_LINE = 4_000
_TABLES = ("sign", "certain", "explaining", "out_of_memory")


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
        self._end_bytes, self._most_bytes = end_bytes, most_bytes
        self._end = b""
        self._kept: list[bytes] = []
        self._size = self._num_left_out = self._following = self._steps = 0

    def write(self, data: bytes) -> None:
        """Takes the next bytes of it."""
        self._end += data
        if len(self._end) <= 2 * self._end_bytes:
            return
        most = len(self._end) - self._end_bytes
        cut = self._end.rfind(b"\n", 0, most) + 1 or most
        old, self._end = self._end[:cut], self._end[cut:]
        for line in old.replace(b"\r", b"\n").splitlines():
            if self._is_kept(line[:_MOST_LINE]):
                self._kept.append(line[:_MOST_LINE])
                self._size += len(self._kept[-1])
        while self._size > self._most_bytes:
            # The first quarter stays what it is.
            first = len(self._kept) // 4
            gone = self._kept[first : 2 * first + 1]
            del self._kept[first : 2 * first + 1]
            self._size -= sum(map(len, gone))
            self._num_left_out += len(gone)

    def _is_kept(self, line: bytes) -> bool:
        if _telling().search(line):
            self._steps = _STEPS
            self._following = max(self._following, _FOLLOWING * (_TRACEBACK in line))
        elif self._following:
            self._following -= 1
        elif self._steps and _PROGRESS.search(line):
            self._steps -= 1
        else:
            return False
        return True

    def data(self) -> bytes:
        """Returns what is kept."""
        first = len(self._kept) // 3
        said = b"[%d lines were left out here]" % self._num_left_out
        gap = [said] if self._num_left_out else []
        lines = [*self._kept[:first], *gap, *self._kept[first:]]
        return b"".join(b"%s\n" % one for one in lines) + self._end

    def text(self) -> str:
        """Returns what is kept, as text."""
        return self.data().decode(errors="replace")


@functools.cache
def _telling() -> re.Pattern[bytes]:
    """Returns what finds the lines that any sign may be found in, a user's own too."""
    words = re.compile(_WORDS, re.IGNORECASE)
    every = [one for table in _TABLES for one in signs(table)]
    others = [one for one in every if not words.search(one.example.encode())]
    patterns = {one.pattern.pattern.encode() for one in others}
    return re.compile(b"|".join([_WORDS, *patterns, b"xid"]), re.IGNORECASE)
