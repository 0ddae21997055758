"""Finds out why workers of a node have failed, from all that the node knows."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from drivetrain_elastic.decisions.failures import (
    Diagnosis,
    Evidence,
    FailureClass,
    diagnose,
)
from drivetrain_elastic.diagnosis import (
    GpuWatch,
    KernelLog,
    NetworkSampler,
    count_oom_kills,
    read_error_record,
)
from drivetrain_elastic.protocol import _messages as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drivetrain_elastic._agent._output import Output
    from drivetrain_elastic._agent._worker import LocalWorker
    from drivetrain_elastic.decisions.failures import GpuReading

__all__ = ["Diagnostician", "failure_message"]

logger = logging.getLogger(__name__)

# What the kernel and the driver say of a failure may come after it.
_LATE_S = 0.1
_KERNEL_S = 60.0
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
        self.missing: list[str] = []

    def start(self) -> None:
        """Begins to read; what cannot be read is told once."""
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

    def gpus(self) -> Sequence[GpuReading]:
        """Returns what the driver says; it may take a while, in a thread."""
        return self._gpus.read()

    async def examine(
        self, worker: LocalWorker, exit_code: int, *, is_asked: bool
    ) -> pb.Failure:
        """Returns why a worker has failed.

        Args:
            worker: It has ended.
            exit_code: Of its process.
            is_asked: Whether somebody wanted it to end.
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
            gpus=tuple(await asyncio.to_thread(self._gpus.read)),
            network=tuple(self.network.readings()),
            oom_kills=max(0, now_oom_kills - worker.num_oom_kills),
            phase=worker.phase,
            health=worker.health,
            why_killed=worker.why_killed,
            is_asked=is_asked,
        )
        self._output.forget(worker.name)
        found = diagnose(evidence)
        logger.warning(
            "worker %s: %s, %s: %s",
            *(worker.name, found.failure_class, found.cause, found.reason),
        )
        return failure_message(found, error.traceback if error is not None else "")

    async def look(self) -> list[tuple[str, pb.Failure]]:
        """Returns what is broken on this node that was not before, as kinds and failures."""
        gpus = tuple(await asyncio.to_thread(self._gpus.read))
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
    return pb.Failure(
        failure_class=found.failure_class.value,
        cause=found.cause,
        evidence=found.reason,
        blames_node=bool(found.node),
        traceback=traceback if found.failure_class == FailureClass.PROGRAM else "",
        place=found.place,
        is_echo=found.is_echo,
    )
