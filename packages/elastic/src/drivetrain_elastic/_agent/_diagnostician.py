"""Finds out why workers of a node have failed, from all that the node knows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_elastic.protocol import messages as pb
from drivetrain_health.diagnosis import (
    GpuWatch,
    KernelLog,
    NetworkSampler,
    count_oom_kills,
    read_error_record,
)
from drivetrain_health.failures import (
    Diagnosis,
    Evidence,
    FailureClass,
    Finding,
    diagnose,
    root_cause,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_elastic._agent._output import Output
    from drivetrain_elastic._agent._worker import LocalWorker
    from drivetrain_health.failures import ErrorRecord, GpuReading

logger = logging.getLogger(__name__)

# What the kernel and the driver say of a failure may come after it.
_LATE_S = 0.1
_KERNEL_S = 60.0
# The others of a copy may be about to write down what has ended them.
_SIBLINGS_S = 0.2
_SHARED_S = 0.5
_MOST_EVIDENCE, _MOST_TRACEBACK = 2_000, 20_000
_SAYS_NOTHING = frozenset(
    {FailureClass.UNKNOWN, FailureClass.KILLED, FailureClass.HANG}
)
# What ends the work of a node even if no worker has died of it yet.
_FATAL = frozenset({FailureClass.GPU_HARDWARE, FailureClass.NODE_HARDWARE})


class Diagnostician:
    """Reads what a node knows of failures; used from one event loop.

    Args:
        node: Its name.
        folder: Where workers write the errors that end them.
        output: What else they have written.
    """

    def __init__(self, node: str, folder: str, output: Output) -> None:
        self._node = node
        self._folder = folder
        self._output = output
        self._kernel = KernelLog()
        self._gpus = GpuWatch()
        self.network = NetworkSampler()
        self._known: set[str] = set()
        self._reading = asyncio.Lock()
        self._last_gpus: tuple[GpuReading, ...] = ()
        self._last_read_s = -_SHARED_S
        self.missing: list[str] = []

    def start(self) -> None:
        """Begins to read; what cannot be read is told once.

        Raises:
            ProgramError: The user's own file of signs is none.
        """
        diagnose(Evidence(worker=self._node, node=self._node))
        self.network.start()
        for source in (self._kernel, self._gpus, self.network):
            if source.why_missing:
                self.missing.append(source.why_missing)

    def close(self) -> None:
        """Ends all reading."""
        self.network.close()
        self._gpus.close()
        self._kernel.close()

    def error_path(self, worker: str) -> str:
        """Returns where a worker is to write the error that ends it."""
        return f"{self._folder}/error-{worker.rsplit('/', 1)[-1]}"

    async def read_gpus(self) -> tuple[GpuReading, ...]:
        """Returns what the driver says, or said a moment ago."""
        async with self._reading:
            if time.monotonic() - self._last_read_s >= _SHARED_S:
                self._last_gpus = tuple(await asyncio.to_thread(self._gpus.read))
                self._last_read_s = time.monotonic()
            return self._last_gpus

    def forget(self, worker: LocalWorker) -> None:
        """Removes what a worker that has ended has left, once that is not needed.

        Args:
            worker: It has ended, or is about to.
        """
        self._output.forget(worker.name)
        paths = [Path(self.error_path(worker.name))]
        if worker.process is not None:
            pid = worker.process.pid
            paths += [
                Path(self._folder, f"{kind}-{pid}") for kind in ("flight", "stacks")
            ]
        for path in paths:
            # The folder goes at the end in any case.
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    async def examine(
        self, worker: LocalWorker, exit_code: int, siblings: Sequence[LocalWorker] = ()
    ) -> tuple[LocalWorker, pb.Failure]:
        """Returns who of a copy has failed first, as far as can be told, and why.

        Args:
            worker: It has ended.
            exit_code: Of its process.
            siblings: The others of its copy, which were killed because it has ended.
        """
        await asyncio.sleep(_LATE_S)
        error = read_error_record(self.error_path(worker.name))
        now_oom_kills = count_oom_kills() or 0
        evidence = Evidence(
            worker=worker.name,
            node=self._node,
            exit_code=exit_code,
            error=error,
            output=await asyncio.to_thread(self._output.tail, worker.name),
            kernel=self._recent(),
            gpus=await self.read_gpus(),
            network=tuple(self.network.readings()),
            oom_kills=max(0, now_oom_kills - worker.num_oom_kills),
            phase=worker.phase,
            health=worker.health,
            why_killed=worker.why_killed,
        )
        found = diagnose(evidence)
        if found.is_echo and siblings:
            worker, error, found = await self._hear_siblings(
                (worker, error, found), siblings
            )
        logger.warning(
            "worker %s: %s, %s: %s",
            *(worker.name, found.failure_class, found.cause, first_line(found.reason)),
        )
        return worker, failure_message(found, error.traceback if error else "")

    async def _hear_siblings(
        self,
        first: tuple[LocalWorker, ErrorRecord | None, Diagnosis],
        siblings: Sequence[LocalWorker],
    ) -> tuple[LocalWorker, ErrorRecord | None, Diagnosis]:
        """Returns whose failure has made the others', if one has said so in time."""
        await asyncio.sleep(_SIBLINGS_S)
        heard = [first]
        for one in siblings:
            error = read_error_record(self.error_path(one.name))
            # That it was killed says nothing; only what it said before does.
            evidence = Evidence(
                worker=one.name,
                node=self._node,
                exit_code=1,
                error=error,
                output=await asyncio.to_thread(self._output.tail, one.name),
                phase=one.phase,
            )
            found = diagnose(evidence)
            if error is not None or found.failure_class not in _SAYS_NOTHING:
                heard.append((one, error, found))
        root = root_cause([Finding(float(at), one[2]) for at, one in enumerate(heard)])
        return next(one for one in heard if one[2] is root)

    async def look(self) -> list[tuple[str, pb.Failure]]:
        """Returns what is broken on this node that was not before, as kinds and failures."""
        gpus = await self.read_gpus()
        evidence = Evidence(
            worker=self._node,
            node=self._node,
            kernel=self._recent(),
            gpus=gpus,
            network=tuple(self.network.readings()),
        )
        found = diagnose(evidence)
        if found.failure_class not in _FATAL or found.cause in self._known:
            return []
        self._known.add(found.cause)
        return [(found.failure_class.value, failure_message(found, ""))]

    def _recent(self) -> tuple[str, ...]:
        return self._kernel.recent(_KERNEL_S)


def failure_message(found: Diagnosis, traceback: str) -> pb.Failure:
    """Returns a diagnosis as the master takes it.

    Args:
        found: The diagnosis.
        traceback: Of the program's error, if it was one.
    """
    is_raised = found.failure_class in (FailureClass.PROGRAM, FailureClass.UNKNOWN)
    return pb.Failure(
        failure_class=found.failure_class.value,
        cause=clean_text(found.cause, _MOST_EVIDENCE),
        evidence=clean_text(found.reason, _MOST_EVIDENCE),
        blames_node=bool(found.node),
        traceback=clean_text(traceback, _MOST_TRACEBACK) if is_raised else "",
        place=clean_text(found.place, _MOST_EVIDENCE),
        is_echo=found.is_echo,
    )


def clean_text(text: str, most: int = _MOST_EVIDENCE) -> str:
    r"""Returns a text as a message can carry it: valid, and of bounded length.

    Args:
        text: It may have lone surrogates, as names of files have.
        most: How many characters are kept; of a longer one, both ends are.

    Example:
        >>> clean_text("no file \udcff")
        'no file ?'
    """
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= most:
        return text
    gap = "\n...\n"
    head = (most - len(gap)) // 4
    return text[:head] + gap + text[head + len(gap) - most :]


def first_line(reason: str) -> str:
    r"""Returns the first line of a reason, for a log that has the rest elsewhere.

    Args:
        reason: It may go on with a traceback.

    Example:
        >>> first_line("ValueError: no rate\nTraceback")
        'ValueError: no rate'
    """
    return reason.strip().partition("\n")[0].rstrip()
