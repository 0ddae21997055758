"""Measures on this machine what drivetrain-checkpoint claims, against stated bounds.

The limits are measured in the same run, in turns: torch's own copy into memory that is
present already, and direct writes of the same bytes from memory.
"""

from __future__ import annotations

import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import torch

from drivetrain_checkpoint import Checkpointer, _native
from drivetrain_core.testing import Bar, Row, run_bars

MIB = 1 << 20


def make_state(size_bytes):
    """Tensors of 4 KiB to 32 MiB."""
    sizes, left = [], size_bytes
    while left > 0:
        for size in (32 * MIB, 8 * MIB, 16 * MIB, 4096, 256 * 1024):
            sizes.append(min(size, left))
            left -= sizes[-1]
            if left <= 0:
                break
    return {f"t{i}": torch.ones(size // 4) for i, size in enumerate(sizes)}


def num_bytes(quick):
    return (256 if quick else 2048) * MIB


def present_copies(state):
    """Tensors like those of a state, in shared memory that is present."""
    return [torch.zeros_like(t).share_memory_() for t in state.values()]


def timed(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def stall(quick):
    """How long `save` holds the trainer, in copies by torch into present memory."""
    state = make_state(num_bytes(quick))
    targets = present_copies(state)

    def copy():
        for target, source in zip(targets, state.values(), strict=True):
            target.copy_(source)

    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        checkpointer = Checkpointer(folder, job="bars", keep=1)
        first = timed(lambda: checkpointer.save(0, {"state": state}).wait())
        checkpointer.save(0, {"state": state}).wait()
        copies, stalls = [], []
        for step in range(1, 6 if quick else 9):
            copies.append(timed(copy))
            handle = checkpointer.save(step, {"state": state})
            stalls.append(handle.stall_s)
            handle.wait()
        checkpointer.stop_daemon()
    found = statistics.median(a / b for a, b in zip(stalls, copies, strict=True))
    return Row(
        figure=f"{found:.2f} x ({statistics.median(stalls) * 1e3:.0f} ms)",
        holds=found <= 1.15,
        details={"stalls_s": stalls, "copies_s": copies, "first_durable_s": first},
    )


def durable(quick):
    """The time until a save is on the disk, in direct writes of as many bytes."""
    size = num_bytes(quick)
    state = make_state(size)
    area = mmap.mmap(-1, size)
    _native.populate(_native.address_of(area), size)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        checkpointer = Checkpointer(Path(folder, "run"), job="bars", keep=1)
        for step in range(2):
            checkpointer.save(step, {"state": state}).wait()

        def write():
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT
            fd = os.open(Path(folder, "raw"), flags)
            _native.write_file(fd, _native.address_of(area), size, 4)
            os.fsync(fd)
            os.close(fd)

        ratios = []
        for step in range(2, 5 if quick else 8):
            raw = timed(write)
            Path(folder, "raw").unlink()
            took = timed(lambda step=step: checkpointer.save(step, {"s": state}).wait())
            ratios.append(took / raw)
        checkpointer.stop_daemon()
    found = statistics.median(ratios)
    return Row(figure=f"{found:.2f} x", holds=found <= 1.15, details={"all": ratios})


def recovery(quick):
    """The time to restore from memory after kill -9, in copies by torch."""
    size = num_bytes(quick)
    state = make_state(size)
    script = textwrap.dedent(
        """
        import os, signal, sys
        sys.path.insert(0, sys.argv[3])
        from bars import make_state
        from drivetrain_checkpoint import Checkpointer
        state = make_state(int(sys.argv[2]))
        Checkpointer(sys.argv[1], job="bars").save(1, {"state": state})
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        here = str(Path(__file__).parent)
        command = [sys.executable, "-c", script, folder, str(size), here]
        subprocess.run(command, check=False)
        checkpointer = Checkpointer(folder, job="bars")
        targets = present_copies(state)
        times, copies = [], []
        for _ in range(5):
            copies.append(
                timed(
                    lambda: [
                        t.copy_(s) for t, s in zip(targets, state.values(), strict=True)
                    ]
                )
            )
            times.append(timed(lambda: checkpointer.restore({"state": state})))
        checkpointer.flush()
        checkpointer.stop_daemon()
    found = statistics.median(a / b for a, b in zip(times, copies, strict=True))
    return Row(
        figure=f"{found:.2f} x ({statistics.median(times) * 1e3:.0f} ms)",
        holds=found <= 2.0,
    )


def many_tensors(quick):
    """What a save costs beside its bytes: 10,000 tensors of one element."""
    state = {f"layers.{i}.weight": torch.zeros(1) for i in range(10_000)}
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = Checkpointer(folder, job="bars", keep=1)
        stalls = []
        for step in range(6):
            handle = checkpointer.save(step, {"state": state})
            handle.wait()
            stalls.append(handle.stall_s)
        checkpointer.stop_daemon()
    found = statistics.median(stalls[1:]) * 1e3
    return Row(figure=f"{found:.0f} ms", holds=found <= 20)


TABLE = [
    ("stall", "<= 1.15 x torch's copy into present memory", stall),
    ("durable", "<= 1.15 x direct writes of the same bytes", durable),
    ("recovery-after-kill", "<= 2 x torch's copy", recovery),
    ("overhead-10000-tensors", "<= 20 ms", many_tensors),
]
BARS = [Bar(name=name, bound=bound, measure=run) for name, bound, run in TABLE]

if __name__ == "__main__":
    sys.exit(run_bars(BARS, description=__doc__))
