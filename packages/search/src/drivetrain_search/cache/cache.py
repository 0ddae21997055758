"""What earlier searches measured: one file of lines for each key, only ever added to.

A line holds one trial, the search that it belongs to, and the step time of that search's
own baseline. Times of another day are scaled by how fast the baseline is now. Which line
is the latest is told by its place; no clock is asked, since clocks jump.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import re
import stat
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_core import Code
from drivetrain_core.services import cache_folder
from drivetrain_search.cache.cache_key import CACHE_VERSION
from drivetrain_search.process.partial_libraries import inductor_folder
from drivetrain_search.report.record import TrialRecord, plain_choices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drivetrain_core import Choice

logger = logging.getLogger(__name__)

# Beyond this the machine, or what runs beside, is another one: nothing is comparable.
_MOST_CHANGE = 2.0
# Some thousand trials; what is older is not read.
_MOST_BYTES = 16 << 20
_LOCK_S = 2.0
_LONGEST_S = 1e9

# Files, connections and interrupts are another matter on another day.
_PASSING = re.compile(
    r"\w*(Connection\w*|Timeout|Permission|BrokenPipe|FileNotFound|OS|IO|BlockingIO"
    r"|Dist\w*)Error\b|KeyboardInterrupt\b"
)
# What a compiler left half-written is compiled anew once it is removed.
_LIBRARY = re.compile(r"\bImportError: (/\S+\.so)\b")


class TrialCache:
    """The trials of earlier searches with one key; a search goes on without it.

    Whatever is wrong with the folder or its file (no right to it, another owner, a full
    disk, lines that a crash tore) is logged once, and costs cached trials at most.

    Thread-safe. Several processes may use one folder at once: a line is appended by one
    write under a lock, and is seen by the others from then on.

    Attributes:
        path: The file.

    Example:
        >>> import tempfile
        >>> from drivetrain_core import Choice, Measurement
        >>> from drivetrain_search import TrialRecord
        >>> folder, plan = tempfile.mkdtemp(), (Choice("compile", {}),)
        >>> record = TrialRecord(name="t02", choices=plan, seconds=9.0,
        ...     measurement=Measurement(step_times_s=(0.5,), samples_per_step=8))
        >>> TrialCache.open(folder, "0" * 64).append(record, baseline_step_s=1.0)
        >>> later = TrialCache.open(folder, "0" * 64)
        >>> later.lookup(plan, baseline_step_s=1.5).measurement.step_time_s
        0.75
    """

    def __init__(self, path: Path) -> None:
        """Keeps the path; `open` finds it."""
        self.path = path
        self._session = uuid.uuid4().hex
        self._works = True
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._latest: dict[str, _Line] = {}
        self._told_of_garbage = False

    @classmethod
    def open(cls, folder: str | os.PathLike[str] | None, key: str) -> TrialCache:
        """Returns the cache of a key; nothing is created before the first `append`.

        Args:
            folder: Where the files are; when None, `DRIVETRAIN_CACHE_DIR`, else
                `drivetrain/search` in the user's cache.
            key: What `cache_key` returned.

        Raises:
            ValueError: The key is none.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", key):
            message = f"a key is 64 hexadecimal digits, got {key!r}"
            raise ValueError(message)
        place = cache_folder() / "search" if folder is None else Path(folder)
        return cls(place / f"{key}.jsonl")

    def lookup(
        self, choices: Iterable[Choice], baseline_step_s: float
    ) -> TrialRecord | None:
        """Returns the latest trial of a plan with the times of today, or None.

        None too where the latest is a failure that may pass, or where the baseline is
        now more than twice as fast or as slow as it was then.

        Args:
            choices: The plan.
            baseline_step_s: The quiet step time of this search's baseline.

        Returns:
            The record, marked as `cached`; its name and `started_s` are those of the
            search that ran it.
        """
        _require_time(baseline_step_s)
        with self._lock:
            self._refresh()
            line = self._latest.get(_name(choices))
        if line is None or not line.repeats:
            return None
        factor = baseline_step_s / line.baseline_step_s
        if not 1.0 / _MOST_CHANGE <= factor <= _MOST_CHANGE:
            return None
        return _scaled(line.record, factor)

    def append(self, record: TrialRecord, baseline_step_s: float) -> None:
        """Adds a trial; does nothing for one that came from the cache.

        Args:
            record: The trial.
            baseline_step_s: The quiet step time of this search's baseline.
        """
        _require_time(baseline_step_s)
        # A search that was cut short says nothing of the plan.
        if record.cached or record.code == Code.BUDGET:
            return
        line = {
            "version": CACHE_VERSION,
            "session": self._session,
            "baseline_step_s": baseline_step_s,
            "repeats": would_repeat(record),
            "record": record.to_dict(),
        }
        with self._lock:
            if not self._works:
                return
            try:
                text = json.dumps(line, separators=(",", ":"))
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._write(text.encode() + b"\n")
            except (OSError, TypeError, ValueError) as error:
                self._give_up("keeps no trials", error)

    def _write(self, line: bytes) -> None:
        with _opened(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as file:
            _acquire(file)
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                line = b"\n" + line  # Whoever wrote last did not get to the end.
            if os.write(file, line) < len(line):
                os.ftruncate(file, size)
                message = "there is no room for another trial"
                raise OSError(message)

    def _refresh(self) -> None:
        """Reads the file again if it changed."""
        if not self._works:
            return
        try:
            with _opened(self.path, os.O_RDONLY) as file:
                found = os.fstat(file)
                stamp = (found.st_dev, found.st_ino, found.st_size)
                if stamp != self._stamp:
                    start = max(0, found.st_size - _MOST_BYTES)
                    self._parse(_read(file, start, found.st_size), torn=start > 0)
                    self._stamp = stamp
        except FileNotFoundError:
            self._latest, self._stamp = {}, ()
        except OSError as error:
            self._latest = {}
            self._give_up("is not used", error)

    def _parse(self, content: bytes, *, torn: bool) -> None:
        """Takes in whole lines; another process may be writing the last one."""
        self._latest = {}
        lines = content.split(b"\n")[:-1]
        skipped = 0
        for text in lines[1:] if torn else lines:
            line = _Line.of(text) if text else None
            if line is not None:
                self._latest[_name(line.record.choices)] = line
            skipped += bool(text) and line is None
        if skipped and not self._told_of_garbage:
            self._told_of_garbage = True
            logger.info("%d lines of %s are no trials", skipped, self.path)

    def _give_up(self, what: str, error: Exception) -> None:
        self._works = False
        logger.warning("the cache of trials %s %s: %s", self.path, what, error)


class _Line(NamedTuple):
    """One line of the file."""

    record: TrialRecord
    baseline_step_s: float
    repeats: bool

    @classmethod
    def of(cls, text: bytes) -> _Line | None:
        """Returns what a line says, or None for garbage and other versions."""
        try:
            data = json.loads(text)
            if type(data) is not dict or data.get("version") != CACHE_VERSION:
                return None
            step_s = _require_time(data.get("baseline_step_s"))
            repeats = data.get("repeats")
            if type(repeats) is not bool or not isinstance(data.get("session"), str):
                return None
            return cls(TrialRecord.from_dict(data.get("record")), step_s, repeats)
        # Nesting without end is the one garbage that is no ValueError.
        except (ValueError, RecursionError):
            return None


def would_repeat(record: TrialRecord) -> bool:
    """Returns whether a trial would end the same way if it ran again.

    One that ran out of memory or crashed may have had a neighbour that is gone by then.
    """
    if not record.code:
        return record.measurement is not None
    if record.code == Code.ERROR:
        return not _is_passing(record.because)
    return record.code == Code.NUMERICS


def _is_passing(because: str) -> bool:
    """Returns whether an error may be gone on another day."""
    if _PASSING.match(because):
        return True
    library = _LIBRARY.search(because)
    folder = inductor_folder(os.environ)
    return library is not None and Path(library[1]).is_relative_to(folder)


def _require_time(seconds: Any) -> float:
    good = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not good or not 0 < seconds < _LONGEST_S:
        message = f"a step time must be a positive number of seconds, got {seconds!r}"
        raise ValueError(message)
    return float(seconds)


def _name(choices: Iterable[Choice]) -> str:
    return json.dumps(plain_choices(choices), sort_keys=True)


def _scaled(record: TrialRecord, factor: float) -> TrialRecord:
    measured = record.measurement
    if measured is not None:
        times = tuple(time_s * factor for time_s in measured.step_times_s)
        measured = dataclasses.replace(
            measured, step_times_s=times, setup_s=measured.setup_s * factor
        )
    return dataclasses.replace(
        record, measurement=measured, seconds=record.seconds * factor, cached=True
    )


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """Opens a file that is ours, in a folder that is."""
    owner = path.parent.stat().st_uid
    if owner != os.geteuid():
        message = f"the folder belongs to the user {owner}, not to {os.geteuid()}"
        raise PermissionError(message)
    # A pipe in its place must not block.
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(path, flags, 0o600)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            message = f"{path.name} is no file of the user {os.geteuid()}"
            raise PermissionError(message)
        yield file
    finally:
        os.close(file)


def _acquire(file: int) -> None:
    """Locks a file until it is closed; a holder that was stopped is not waited for."""
    end = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.01)
        else:
            return


def _read(file: int, start: int, end: int) -> bytes:
    """Returns the bytes of a file between two places, or those that are there."""
    parts = []
    while start < end and (part := os.pread(file, end - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)
