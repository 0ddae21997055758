"""Runs the training in which a worker is killed, and kills it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from drivetrain.quickstart._kill_report import Kill
from drivetrain.quickstart._steps_log import Line, StepsReader
from drivetrain_checkpoint import Checkpointer

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain.quickstart._elastic_spec import ElasticSpec

_POLL_S = 0.02
# One that takes so many times as long as it may is ended.
_PATIENCE = 3.0


class Outcome(NamedTuple):
    """What the training came to.

    Attributes:
        exit_code: Of the command.
        lines: What its processes wrote.
        kill: Of the worker; None if it did not come to that.
        checkpoint: The step of the last checkpoint on disk; None without one.
        reserve_ready_s: How long before the kill the worker in reserve had compiled.
        first_step_s: How long the start took, to the end of the first step.
    """

    exit_code: int
    lines: list[Line]
    kill: Kill | None
    checkpoint: int | None
    reserve_ready_s: float | None
    first_step_s: float | None


def run_elastic_job(
    spec: ElasticSpec,
    *,
    num_threads: int,
    limit_s: float,
    on_step: Callable[[int], None],
    on_note: Callable[[str], None],
) -> Outcome:
    """Trains under `drivetrain elastic run`, and kills a worker when it stands.

    Args:
        spec: What is trained; its folder is empty.
        num_threads: Of each worker.
        limit_s: How long it may take; after some times that it is ended.
        on_step: Told of each step that counts.
        on_note: Told what happens to workers.
    """
    spec.save(path := spec.folder / "spec.json")
    agent = ["drivetrain.quickstart._agent", str(os.getpid()), str(path)]
    command = [sys.executable, "-P", "-m", *agent]
    began_s = time.monotonic()
    with (spec.folder / "output.log").open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(num_threads)},
            start_new_session=True,
        )
    try:
        lines, kill = _watch(
            process, spec, began_s + limit_s * _PATIENCE, on_step, on_note
        )
    finally:
        _end(process)
        checkpoint = _close_checkpoints(spec)
    counted = [line.at_s for line in lines if line.what == "counted"]
    return Outcome(
        exit_code=process.returncode,
        lines=lines,
        kill=kill,
        checkpoint=checkpoint,
        reserve_ready_s=_reserve_ready_s(spec, kill),
        first_step_s=min(counted) - began_s if counted else None,
    )


def _watch(
    process: subprocess.Popen[bytes],
    spec: ElasticSpec,
    end_s: float,
    on_step: Callable[[int], None],
    on_note: Callable[[str], None],
) -> tuple[list[Line], Kill | None]:
    """Reads what the processes write until the training ends, and kills one of them."""
    reader = StepsReader(spec.folder)
    lines: list[Line] = []
    kill, is_over, has_recovered = None, False, False
    while not is_over:
        # Before the last look, so that it sees all that was written.
        is_over = process.poll() is not None or time.monotonic() > end_s
        for line in reader.news():
            if not lines:
                on_note(f"{spec.num_ready} processes are ready, and training begins")
            lines.append(line)
            if line.what == "stands" and kill is None:
                kill = _kill(line, spec)
                on_note(f"step {line.step}: kill -9 of rank {line.rank} ({line.pid})")
            if line.what != "counted":
                continue
            on_step(line.step)
            if kill is not None and line.step >= kill.step and not has_recovered:
                has_recovered = True
                pause_s = line.at_s - kill.at_s
                on_note(f"step {line.step} counts {pause_s:.2f} s after it")
        if not is_over:
            time.sleep(_POLL_S)
    return lines, kill


def _kill(line: Line, spec: ElasticSpec) -> Kill | None:
    at_s = time.monotonic()
    try:
        os.kill(line.pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    kill = Kill(line.pid, line.rank, line.step, at_s)
    # Only now: the one that takes its place must not stand as well.
    spec.killed.write_text(json.dumps(kill._asdict()))
    return kill


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the agent, which ends its workers, if it still runs."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(20.0)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _close_checkpoints(spec: ElasticSpec) -> int | None:
    """Ends the daemon of the checkpoints; returns the step of the last one on disk."""
    checkpointer = Checkpointer(spec.folder / "checkpoints", job=spec.job)
    checkpointer.stop_daemon()
    return checkpointer.latest()


def _reserve_ready_s(spec: ElasticSpec, kill: Kill | None) -> float | None:
    """Returns how long all had compiled when the worker was killed."""
    files = [file.stat().st_mtime for file in spec.folder.glob("compiled-*")]
    if kill is None or len(files) < spec.num_ready:
        return None
    ready_s = sorted(files)[spec.num_ready - 1]
    return spec.killed.stat().st_mtime - ready_s
