"""Compiles a candidate by running it, and records what happens instead of raising."""

from __future__ import annotations

import logging
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch._dynamo.utils import counters

from drivetrain_kernels.selector._compiled import OutOfTimeError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_kernels.selector._candidates import Installed
    from drivetrain_kernels.selector._workload import Workload

_MAX_PASSES = 4
_LOGGERS = ("torch._dynamo", "torch._inductor")


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """How the first steps of a candidate went.

    Args:
        status: "ok", "failed", "unstable" or "skipped".
        why: What went wrong.
        compile_s: Seconds beyond the usual time of the steps.
        num_graphs: Graphs compiled.
        num_breaks: Graph breaks met.
        break_reason: Why the graph broke first.
    """

    status: str
    why: str = ""
    compile_s: float = 0.0
    num_graphs: int = 0
    num_breaks: int = 0
    break_reason: str = ""


def probe(installed: Installed, workload: Workload, *, deadline: float) -> Probe:
    """Runs passes over the batches until one compiles nothing any more.

    Args:
        installed: The candidate.
        workload: What it runs.
        deadline: No graph begins to compile after it, by `time.monotonic`. One that
            has begun is not interrupted.
    """
    breaks = counters["graph_break"].copy()
    started = time.perf_counter()
    why, status, usual_s, num_passes = "", "ok", 0.0, 0
    if installed.compilation is not None:
        installed.compilation.log.deadline = deadline
    installed.on()
    try:
        with _quiet():
            for num_passes in range(1, _MAX_PASSES + 1):
                before, begun = installed.num_graphs, time.perf_counter()
                _one_pass(installed, workload)
                usual_s = time.perf_counter() - begun
                if num_passes > 1 and installed.num_graphs == before:
                    break
            else:
                status = "unstable"
                why = f"still compiles after {_MAX_PASSES} passes over the batches"
    except Exception as error:  # noqa: BLE001
        # A compiler may fail in any way; that costs the candidate, not the job.
        out_of_time = _is_out_of_time(error)
        status = "skipped" if out_of_time else "failed"
        why = "the time to decide ended as it compiled"
        why = why if out_of_time else first_line(error)
    finally:
        installed.off()
        if installed.compilation is not None:
            installed.compilation.log.deadline = None
    met = counters["graph_break"] - breaks
    return Probe(
        status=status,
        why=why,
        compile_s=max(time.perf_counter() - started - num_passes * usual_s, 0.0),
        num_graphs=installed.num_graphs,
        num_breaks=sum(met.values()),
        break_reason=next(iter(met), "").splitlines()[0] if met else "",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences compilers inside: what they warn of stands in the table."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def synchronize(device: torch.device) -> None:
    """Waits until a device has done what was asked of it."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _one_pass(installed: Installed, workload: Workload) -> None:
    for batch in workload.batches:
        workload.run(installed.call, batch)
    synchronize(workload.device)


def _is_out_of_time(error: BaseException | None) -> bool:
    while error is not None:
        inner = getattr(error, "inner_exception", None)
        if isinstance(error, OutOfTimeError) or isinstance(inner, OutOfTimeError):
            return True
        error = error.__cause__
    return False
