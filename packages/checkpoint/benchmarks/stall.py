"""How long `save` holds the trainer, in copies into memory that is present."""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
from unittest import mock

import torch
from limits import Alternated, Area, copies
from workload import (
    MIB,
    NUM_THREADS,
    make_state,
    milliseconds,
    new_place,
    ratio,
    settle,
    sized,
    timed,
)

from drivetrain_checkpoint import Checkpointer, _native
from drivetrain_testing import Row


def steady(size_mib, most, *, native=True, num_busy=0):
    """A save like the one before it, beside the fastest copy of the same run.

    Args:
        size_mib: The size of the state; a quick form takes an eighth.
        most: The bound.
        native: Whether the package has its library.
        num_busy: How many busy processes compete with `save`. They stand still while
            the limit is measured.
    """

    def measure(quick):
        size = sized(size_mib, quick)
        state = make_state(size)
        limit = Alternated(copies(state, Area(size)))
        without = mock.patch.object(_native, "_extension", None)
        stalls = []
        with new_place() as place, _busy(num_busy) as competitors:
            checkpointer = Checkpointer(
                place.folder, job="stall", keep=1, num_threads=NUM_THREADS
            )
            for step in range(2):
                checkpointer.save(step, {"state": state}).wait()
            for step in range(2, 7 if quick else 11):
                settle()
                limit.take()
                with competitors(), contextlib.nullcontext() if native else without:
                    handle = checkpointer.save(step, {"state": state})
                stalls.append(handle.stall_s)
                handle.wait()
        name, times = limit.fastest()
        found = ratio(stalls, times)
        others = ", ".join(f"{k} {milliseconds(v)}" for k, v in limit.times.items())
        return Row(
            figure=f"{found:.2f} x {name} ({milliseconds(stalls)}; {others})",
            holds=found <= most,
            details={"size_bytes": size, "stalls_s": stalls, "limits_s": limit.times},
        )

    return measure


def first(most):
    """The first save of a run, after its memory was prepared, beside the next ones."""

    def measure(quick):
        torch.set_num_threads(NUM_THREADS)
        size = (256 if quick else 2048) * MIB
        state = make_state(size)
        firsts, nexts, prepared = [], [], []
        for _ in range(2 if quick else 3):
            with new_place() as place:
                checkpointer = Checkpointer(
                    place.folder, job="first", keep=1, num_threads=NUM_THREADS
                )
                prepared.append(
                    timed(lambda c=checkpointer: c.prewarm({"state": state}, wait=True))
                )
                times = []
                for step in range(4):
                    handle = checkpointer.save(step, {"state": state})
                    times.append(handle.stall_s)
                    handle.wait()
                    settle()
                firsts.append(times[0])
                nexts.append(statistics.median(times[1:]))
        found = ratio(firsts, nexts)
        return Row(
            figure=f"{found:.2f} x ({milliseconds(firsts)}; {milliseconds(nexts)})",
            holds=found <= most,
            details={"first_s": firsts, "next_s": nexts, "prewarm_s": prepared},
        )

    return measure


@contextlib.contextmanager
def _busy(num_processes):
    """Processes that stand still, but within the context that is given."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(num_processes)]

    def tell(number):
        for process in processes:
            os.kill(process.pid, number)

    @contextlib.contextmanager
    def running():
        tell(signal.SIGCONT)
        try:
            yield
        finally:
            tell(signal.SIGSTOP)

    tell(signal.SIGSTOP)
    try:
        yield running
    finally:
        for process in processes:
            process.kill()
            process.wait()
