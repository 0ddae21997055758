"""What the kernel of this node says, from now on."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

# A record is given out whole, and is never longer.
_RECORD_BYTES = 8192
# What a flood of messages may take of one look, and of memory.
_MOST_RECORDS, _KEPT = 10_000, 1_000
_MOST_CHARACTERS = 1_000
_RECORD = re.compile(r"^(\d+),\d+,\d+,[^;]*;(.*)$")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_LEVELS = 8


class KernelMessage(NamedTuple):
    """One message of the kernel.

    Attributes:
        seen_s: When it was read, on this process's monotonic clock.
        level: From 0, an emergency, to 7.
        text: What it says.
    """

    seen_s: float
    level: int
    text: str


class KernelLog:
    """Reads `/dev/kmsg`, without ever waiting; used from one thread at a time.

    Args:
        path: Where the messages are.

    Attributes:
        why_missing: Why there are none to be read; empty if there are.

    Example:
        >>> with KernelLog("/no/such/device") as log:
        ...     log.read(), log.why_missing
        ([], '/no/such/device: No such file or directory')
    """

    def __init__(self, path: str | Path = "/dev/kmsg") -> None:
        self.why_missing = ""
        self._path = path
        self._descriptor = -1
        self._kept: deque[KernelMessage] = deque(maxlen=_KEPT)
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # a pipe has no end to go to
                os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.why_missing = f"{self._path}: {error.strerror}"
        logger.info("messages of the kernel are not read: %s", self.why_missing)
        self.close()

    def read(self) -> list[KernelMessage]:
        """Returns the messages since the last time."""
        found: list[KernelMessage] = []
        for _ in range(_MOST_RECORDS):
            if self._descriptor < 0:
                break
            try:
                data = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # Some were written over before they were read; the next ones are there.
                continue
            except OSError as error:
                self._give_up(error)
                break
            if not data:
                break
            found += _parsed(data.decode(errors="replace"))
        self._kept += found
        return found

    def recent(self, within_s: float = 60.0) -> tuple[str, ...]:
        """Returns the texts of messages that were seen not long ago, after a `read`.

        Args:
            within_s: How long ago at most.
        """
        self.read()
        since_s = time.monotonic() - within_s
        return tuple(one.text for one in self._kept if one.seen_s >= since_s)

    def close(self) -> None:
        """Ends the reading; may be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()


def _parsed(text: str) -> list[KernelMessage]:
    """Returns the messages of records; lines of further fields are left out."""
    now_s = time.monotonic()
    found = []
    for line in text.split("\n"):
        if (record := _RECORD.match(line)) is None:
            continue
        level = int(record[1][-6:]) % _LEVELS
        said = _ESCAPE.sub(lambda m: chr(int(m[1], 16)), record[2][:_MOST_CHARACTERS])
        found.append(KernelMessage(now_s, level, said))
    return found
