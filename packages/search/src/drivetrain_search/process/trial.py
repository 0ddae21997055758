"""Runs one plan in its own processes, and says what came of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import drivetrain_core
from drivetrain_core import (
    Code,
    DrivetrainError,
    Measurement,
    Plan,
    ProgramError,
    machine_limits,
)
from drivetrain_core.extending import describe
from drivetrain_core.numerics.observation import FIRST_STEPS
from drivetrain_search.process.observation_message import read_observation
from drivetrain_search.process.payload import import_path
from drivetrain_search.process.spawn import Processes, RankFailure, meeting_place
from drivetrain_search.stopping import USUAL_NOISE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from drivetrain_core import Choice

_WORKER = "drivetrain_search.process.worker"

# What answers pass after pass lives: it may take so many times its longest one to answer
# again, whatever a trial may take.
_PATIENCE = 8.0


class Failure(Exception):  # noqa: N818
    """A trial that gave no measurement.

    Args:
        code: The class of the reason.
        because: What happened, with the rank that it started on.
        log: The end of what that rank printed, for the report.
        program: The user's own mistake as the error to raise, if it is one.
    """

    def __init__(
        self,
        code: Code,
        because: str,
        log: str = "",
        program: DrivetrainError | None = None,
    ) -> None:
        """Keeps the parts."""
        super().__init__(f"{code.value}: {because}")
        self.code = code
        self.because = because
        self.log = log
        self.program = program


class Outrun(Exception):  # noqa: N818
    """A plan whose first steps are slower than those of the best one for sure.

    Args:
        step_times_s: The steps that were seen, but for the first.
        peak_memory_bytes: The peak of memory until then.
    """

    def __init__(self, step_times_s: Sequence[float], peak_memory_bytes: int) -> None:
        """Keeps both."""
        super().__init__(f"its steps took {step_times_s} s")
        self.step_times_s = tuple(step_times_s)
        self.peak_memory_bytes = peak_memory_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """How a trial's process observes the program.

    Args:
        steps: Steps of the trajectory; of the baseline as many as there is time for.
        until_s: When it shall be done, in `time.monotonic` seconds; None for all passes.
        outrun_above_s: The step of the best plan, at the slow end of its interval: one
            that is slower for sure is looked at no further. None to look at any.
        noise: By what part the steps of the best plan differ.
        nudges: Whether the weights are first moved by some of their last bits.
    """

    steps: int = FIRST_STEPS
    until_s: float | None = None
    outrun_above_s: float | None = None
    noise: float = USUAL_NOISE
    nudges: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRunner:
    """Starts trials of one program.

    Args:
        payload: The path of the shipped program.
        folder: A private folder.
        world_size: Ranks of a trial.
        on_cpu: Whether to bound the memory of each rank.
        timeout_s: Seconds that a trial may take to its first pass, and from one to the
            next if these are short.
        is_strict: Whether it may take no longer to get ready, and again to measure,
            however long its passes are.
        warm_steps: Steps before those that are timed, of a plan that is not observed.
    """

    payload: Path
    folder: Path
    world_size: int
    on_cpu: bool
    timeout_s: float
    is_strict: bool = False
    warm_steps: int = 3

    @contextlib.contextmanager
    def open(
        self,
        choices: tuple[Choice, ...],
        *,
        baseline: bool = False,
        look: Look | None = Look(),
        deadline: float | None = None,
    ) -> Iterator[Session]:
        """Builds the program under a plan, and keeps it ready to be measured.

        Args:
            choices: The plan.
            baseline: Whether this is the reference: its noise and FLOPs are taken.
            look: How to observe it; None for a plan that was, which then warms up.
            deadline: The end of the whole search, in `time.monotonic` seconds.

        Raises:
            Failure: It hung, crashed, ran out of memory, or raised.
            Outrun: Its first steps were slower than `look` allows.
        """
        folder = Path(tempfile.mkdtemp(prefix="trial-", dir=self.folder))
        spec = {
            "payload": str(self.payload),
            "plan": Plan(choices=choices).to_dict(),
            "world_size": self.world_size,
            "store": str(folder / "store"),
            "import_path": import_path(),
            "memory_limit_bytes": self._memory_limit(),
            "baseline": baseline,
            "look": None if look is None else dataclasses.asdict(look),
            "warm_steps": self.warm_steps,
            "timeout_s": self.timeout_s,
        }
        path = folder / "spec.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        limit = _Limit(self.timeout_s, deadline, grows=not self.is_strict)
        env = meeting_place() if self.world_size > 1 else {}
        with self._started(path, folder, env) as processes:
            answers = _receive(processes, limit, choices)
            if answers[0]["event"] == "outrun":
                raise Outrun(
                    max((a["step_times_s"] for a in answers), key=max),
                    max(a["peak_memory_bytes"] for a in answers),
                )
            yield Session(processes, answers[0], choices, limit)

    def _started(self, spec: Path, folder: Path, env: dict[str, str]) -> Processes:
        try:
            return Processes(_WORKER, spec, self.world_size, folder, env)
        except TimeoutError as error:
            raise Failure(Code.HANG, str(error)) from None

    def _memory_limit(self) -> int | None:
        if not self.on_cpu:
            return None
        return int(machine_limits.memory().available * 0.95 / self.world_size)


class Session:
    """A trial that is built and warm.

    Attributes:
        observation: How it behaved on the guard's batches; None if it was not observed.
        flops_per_step: Of the baseline, else None.
        setup_s: Seconds until it was ready, but for the passes of the observation.
        step_s: About what a step takes, its data apart.
    """

    def __init__(
        self,
        processes: Processes,
        ready: dict[str, Any],
        choices: tuple[Choice, ...],
        limit: _Limit,
    ) -> None:
        """Keeps the processes; `TrialRunner.open` ends them."""
        seen = ready["observation"]
        self.observation = None if seen is None else read_observation(seen)
        self.flops_per_step: int | None = ready["flops"]
        self.setup_s = float(ready["setup_s"])
        self.step_s = float(ready["step_s"])
        self._processes = processes
        self._choices = choices
        self._limit = limit

    def measure(self, min_steps: int, min_seconds: float) -> Measurement:
        """Runs steps and returns their measurement; of the slowest rank, if several.

        Raises:
            Failure: It hung, crashed, ran out of memory, or raised.
        """
        command = {
            "min_steps": min_steps,
            "min_seconds": min_seconds,
            "max_steps": max(min_steps, 200),
        }
        self._processes.send(command)
        limit = self._limit.again(min_steps)
        answers = _receive(self._processes, limit, self._choices)
        measured = [Measurement.from_dict(a["measurement"]) for a in answers]
        slowest = max(measured, key=lambda m: m.step_time_s)
        return dataclasses.replace(
            slowest, flops_per_step=self.flops_per_step, setup_s=self.setup_s
        )


class _Limit:
    """When an answer is late, and whose fault that is.

    Args:
        timeout_s: What an answer may take.
        deadline: The end of the whole search, if there is one.
        grows: Whether each pass that is told of gives the next one time.
    """

    def __init__(
        self, timeout_s: float, deadline: float | None, *, grows: bool
    ) -> None:
        self._timeout_s, self._deadline, self._grows = timeout_s, deadline, grows
        self._longest_s = 0.0
        self._end = time.monotonic() + timeout_s

    @property
    def end(self) -> float:
        """When to give up, in `time.monotonic` seconds."""
        return self._end if self._deadline is None else min(self._end, self._deadline)

    @property
    def code(self) -> Code:
        """Why: the trial's own time was over, or that of the whole search."""
        late = self._deadline is not None and self._deadline < self._end
        return Code.BUDGET if late else Code.HANG

    def saw(self, message: Mapping[str, Any]) -> None:
        """Learns from what a rank tells between its answers."""
        self._longest_s = max(self._longest_s, float(message["seconds"]))
        if self._grows:
            self._end = max(self._end, time.monotonic() + self._patience_s(1))

    def again(self, steps: int) -> _Limit:
        """Returns the limit of an answer that so many steps come before."""
        limit = _Limit(self._timeout_s, self._deadline, grows=self._grows)
        limit._longest_s = self._longest_s
        if self._grows:
            limit._end = time.monotonic() + self._patience_s(steps)
        return limit

    def _patience_s(self, steps: int) -> float:
        return max(self._timeout_s, _PATIENCE * steps * self._longest_s)


def _receive(
    processes: Processes, limit: _Limit, choices: tuple[Choice, ...]
) -> list[dict[str, Any]]:
    try:
        answers = processes.receive(lambda: limit.end, limit.saw)
    except RankFailure as failure:
        raise _from_rank(failure, describe(choices), limit.code) from None
    if answers[0]["event"] == "failed":
        raise _from_message(answers[0])
    return answers


def _from_rank(failure: RankFailure, plan: str, late: Code) -> Failure:
    if failure.kind == "timeout" and late is Code.BUDGET:
        because = f"the budget of the search had no more time for {plan}"
        return Failure(Code.BUDGET, because)
    if failure.kind == "timeout":
        because = f"{plan} did not answer in time; rank {failure.rank} was in "
        return Failure(late, because + _deepest_frame(failure.log), failure.log)
    return Failure(
        Code.CRASH,
        f"rank {failure.rank} {explain_exit(failure.exit_code)}",
        failure.log,
    )


def explain_exit(code: int | None) -> str:
    """Says in words how a process ended.

    Example:
        >>> explain_exit(-11)
        'was killed by SIGSEGV'
        >>> explain_exit(3)
        'exited with code 3'
    """
    if code is None:
        return "closed its connection"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        return "was killed by SIGKILL, as the kernel does when memory runs out"
    return f"was killed by {name}"


def _from_message(message: dict[str, Any]) -> Failure:
    text, kind = str(message["message"]), str(message["type"])
    where = f"rank {message['rank']}: {kind}: {text}"
    if message["kind"] == "memory":
        return Failure(Code.MEMORY, f"out of memory: {text[:300]}", where)
    error = getattr(drivetrain_core, kind, None)
    program = None
    if isinstance(error, type) and issubclass(error, ProgramError):
        program = error(text)
    log = str(message["traceback"])
    return Failure(Code.ERROR, f"{kind}: {text[:300]}", log, program)


def _deepest_frame(log: str) -> str:
    """Returns the innermost Python frame of the main thread in a stack dump."""
    lines = log.splitlines()
    threads = [i for i, line in enumerate(lines) if "(most recent call first)" in line]
    for start in reversed(threads):
        if start + 1 < len(lines) and lines[start].startswith("Current thread"):
            return lines[start + 1].strip()
    if threads and threads[-1] + 1 < len(lines):
        return lines[threads[-1] + 1].strip()
    return f"no Python code (pid {os.getpid()} saw no stack)"
