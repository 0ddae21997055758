"""What the network ports of this node carry, a hundred times a second."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import tomllib
from collections import deque
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from drivetrain_core import ProgramError
from drivetrain_health.diagnosis._baseline import Baseline
from drivetrain_health.failures import NicReading

if TYPE_CHECKING:
    from collections.abc import Callable


# InfiniBand counts its data in units of four bytes.
_WORD_BYTES = 4
_REOPEN_S = 1.0
_FILES = tomllib.loads(files(__package__).joinpath("network_counters.toml").read_text())


class _Port(NamedTuple):
    """A port, and where the system tells of it."""

    name: str
    kind: str
    folder: Path


class _Counts(NamedTuple):
    """What the slow counters of a port said."""

    is_up: bool | None
    num_link_downs: int
    num_errors: int
    num_retransmits: int
    missing: str


class NetworkSampler:
    """Reads counters of network ports from a thread of its own, between start and close.

    Sent and received bytes are read at each tick and kept for a while; links and errors,
    which are slower to read, a few times a minute and when they are asked for.

    Args:
        ports: Which ones, as `eth0` or `mlx5_0/1`; None for all that have hardware, or
            all but the loopback if none says that it has.
        root: Where the system tells of them.
        interval_s: How long to wait between two ticks.
        keep_s: How long samples are kept for `take`.
        within_s: How far back `readings` looks: what happened before explains nothing that
            happens now.
        clock: Tells the time in seconds, and does not go back.

    Raises:
        ProgramError: A time is not one, or there is no such port.

    Example:
        >>> with NetworkSampler(root="/no/such/folder") as sampler:
        ...     sampler.take(), sampler.why_missing
        ({}, 'no network port in /no/such/folder')
    """

    def __init__(
        self,
        ports: tuple[str, ...] | None = None,
        *,
        root: str | Path = "/sys/class",
        interval_s: float = 0.008,
        keep_s: float = 30.0,
        within_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not (0 < interval_s <= keep_s < math.inf):
            message = (
                "0 < interval_s <= keep_s must hold, in seconds, got "
                f"{interval_s} and {keep_s}"
            )
            raise ProgramError(message)
        found = {port.name: port for port in _find_ports(Path(root))}
        if missing := set(ports or ()) - set(found):
            message = (
                f"there is no port {', '.join(sorted(missing))} in {root}; there are "
                f"{', '.join(sorted(found)) or 'none'}"
            )
            raise ProgramError(message)
        names = ports if ports is not None else _with_hardware(list(found.values()))
        self._ports = [found[name] for name in names]
        self.why_missing = "" if self._ports else f"no network port in {root}"
        self._interval_s = interval_s
        self._samples: dict[str, deque[tuple[float, float | None]]] = {
            port.name: deque(maxlen=math.ceil(keep_s / interval_s))
            for port in self._ports
        }
        self._clock = clock
        self._before = Baseline[dict[str, _Counts]](within_s)
        self._before_lock = threading.Lock()
        self._before.add(clock(), self._count())
        # Held while it runs: waiting for a lock takes less of a core than for an event.
        self._running = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Begins to read; without any port there is nothing to do."""
        if self._thread is None and self._ports:
            self._running.acquire()
            self._thread = threading.Thread(
                target=self._run, name="drivetrain-network", daemon=True
            )
            self._thread.start()
        return self

    def close(self) -> None:
        """Ends the reading; may be called again."""
        if self._thread is not None:
            self._running.release()
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        """Starts it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def take(self) -> dict[str, list[tuple[float, float | None]]]:
        """Returns the samples since the last time, by port; called from one thread.

        Each is when it was read, on the monotonic clock, and how many bytes were sent and
        received until then; None if that could not be read. They are what
        `TrafficState.add` takes.
        """
        # One thread appends and one takes, which a deque allows without a lock.
        return {
            name: [samples.popleft() for _ in range(len(samples))]
            for name, samples in self._samples.items()
        }

    def readings(self) -> tuple[NicReading, ...]:
        """Returns the links and errors of all ports, now and since `within_s` ago."""
        found = []
        counts, now_s = self._count(), self._clock()
        with self._before_lock:
            before = self._before.at(now_s)
            self._before.add(now_s, counts)
        for port in self._ports:
            first, now = before[port.name], counts[port.name]
            found.append(
                NicReading(
                    name=port.name,
                    missing=now.missing,
                    was_up=first.is_up is True,
                    is_up=now.is_up,
                    num_link_downs=_since(first.num_link_downs, now.num_link_downs),
                    num_errors=_since(first.num_errors, now.num_errors),
                    num_retransmits=_since(first.num_retransmits, now.num_retransmits),
                )
            )
        return tuple(found)

    def _count(self) -> dict[str, _Counts]:
        return {port.name: _counts(port) for port in self._ports}

    def _remember(self) -> None:
        """Keeps what the slow counters say, if it is time for it."""
        now_s = self._clock()
        with self._before_lock:
            is_due = self._before.is_due(now_s)
        if is_due:
            counts = self._count()
            with self._before_lock:
                self._before.add(now_s, counts)

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            readers = [(_Data(port), self._samples[port.name]) for port in self._ports]
            for reader, _ in readers:
                stack.callback(reader.close)
            due_s = time.monotonic()
            while True:
                for reader, samples in readers:
                    samples.append((time.monotonic(), reader.read()))
                self._remember()
                # Ticks that a busy machine has missed are not made up for.
                now_s = time.monotonic()
                due_s = max(due_s + self._interval_s, now_s)
                if self._running.acquire(timeout=due_s - now_s):
                    self._running.release()
                    return


class _Data:
    """The open counters of bytes of a port: opening them each time takes most of a tick."""

    def __init__(self, port: _Port) -> None:
        self._paths = [port.folder / name for name in _FILES[port.kind]["data"]]
        self._unit = _WORD_BYTES if port.kind == "infiniband" else 1
        self._descriptors: list[int] = []
        self._tried_s = -math.inf

    def read(self) -> float | None:
        """Returns bytes sent and received; None if the port is gone for now."""
        if not self._descriptors and not self._open():
            return None
        try:
            words = [int(os.pread(one, 32, 0)) for one in self._descriptors]
        except (OSError, ValueError):
            self.close()
            return None
        return float(sum(words) * self._unit)

    def _open(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._tried_s < _REOPEN_S:
            return False
        self._tried_s = now_s
        try:
            for path in self._paths:
                self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            self.close()
            return False
        return True

    def close(self) -> None:
        for one in self._descriptors:
            os.close(one)
        self._descriptors = []


def _find_ports(root: Path) -> list[_Port]:
    ports = [
        _Port(folder.name, "net", folder)
        for folder in _children(root / "net")
        if folder.name != "lo" and (folder / "statistics").is_dir()
    ]
    for device in _children(root / "infiniband"):
        ports += [
            _Port(f"{device.name}/{folder.name}", "infiniband", folder)
            for folder in _children(device / "ports")
        ]
    return ports


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _with_hardware(ports: list[_Port]) -> tuple[str, ...]:
    """Returns which ports are not made of software alone, as bridges are."""
    real = [
        p for p in ports if p.kind == "infiniband" or (p.folder / "device").exists()
    ]
    return tuple(port.name for port in real or ports)


def _counts(port: _Port) -> _Counts:
    numbers, missing = [], ""
    for kind in ("downs", "errors", "retransmits"):
        total = 0
        for name in _FILES[port.kind][kind]:
            try:
                total += int((port.folder / name).read_text())
            except (OSError, ValueError) as error:
                # Not each driver has each counter.
                missing = missing or f"{name}: {error}"
        numbers.append(total)
    return _Counts(_is_up(port), numbers[0], numbers[1], numbers[2], missing)


def _is_up(port: _Port) -> bool | None:
    name = "carrier" if port.kind == "net" else "state"
    try:
        text = (port.folder / name).read_text().strip()
    except FileNotFoundError:
        return None if port.folder.is_dir() else False
    except OSError:
        # The carrier of a port that was shut down cannot be read.
        return False
    return text == "1" if port.kind == "net" else text.startswith("4")


def _since(first: int, now: int) -> int:
    """Returns by how much a counter has grown; one that is less has begun anew."""
    return now - first if now >= first else now
