"""What each process of the training says of its steps, in a file of its own.

The training function writes it, so that samples are counted by what was computed and
not by what the launcher tells. A line is written whole; of a process that was killed the
last one may be torn, and is passed over.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from drivetrain_elastic import Step

What = Literal["part", "stands", "counted"]
"""A part of a step was computed; a rank waits to be killed; a step counts."""


class Line(NamedTuple):
    """What a process has done.

    Attributes:
        what: Which of the three.
        step: In which step, from 1.
        world: Which of the worlds of ranks made it, from 1.
        rank: In that world.
        pid: Of the process.
        at_s: When, by the clock that all processes of a machine share.
        samples: The places in the global order that were computed.
        loss: What they add to the mean loss of the global batch.
    """

    what: What
    step: int
    world: int
    rank: int
    pid: int
    at_s: float
    samples: tuple[int, ...] = ()
    loss: float = 0.0


class StepsLog:
    """Writes what this process does; a file for each rank that it has been.

    Args:
        folder: Of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(
        self,
        what: What,
        step: Step,
        *,
        samples: Sequence[int] = (),
        loss: float = 0.0,
    ) -> None:
        """Adds a line."""
        pid, at_s = os.getpid(), time.monotonic()
        where = (step.number, step.epoch, step.rank)
        line = Line(what, *where, pid, at_s, tuple(samples), loss)
        with (self._folder / f"rank{step.rank}-{pid}.jsonl").open("a") as file:
            file.write(json.dumps(line._asdict()) + "\n")


class StepsReader:
    """Reads the lines of all processes, each once.

    Args:
        folder: Of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[Path, int] = {}

    def news(self) -> Iterator[Line]:
        """Yields what was written since the last call."""
        for path in sorted(self._folder.glob("rank*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._places.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._places[path] = self._places.get(path, 0) + len(whole)
            for line in whole.splitlines():
                found = json.loads(line)
                yield Line(**{**found, "samples": tuple(found["samples"])})
