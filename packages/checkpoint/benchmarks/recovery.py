"""The time to restore from memory after the trainer was killed, in copies."""

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

from limits import Alternated, Area, copies
from programs import command_of
from workload import (
    make_state,
    milliseconds,
    new_place,
    ratio,
    settle,
    sized,
    timed,
)

from drivetrain_checkpoint import Checkpointer
from drivetrain_testing import Row


def recovery(size_mib, most):
    """Each restoration attaches to the memory anew, and copies it out.

    Args:
        size_mib: The size of the state; a quick form takes an eighth.
        most: The bound in copies.
    """

    def measure(quick):
        size = sized(size_mib, quick)
        with new_place() as place:
            command = command_of("recovery.py", place.folder, size)
            done = subprocess.run(command, check=False, env=place.environment())
            assert done.returncode == -signal.SIGKILL, done.returncode
            # A new trainer takes longer to start than the daemon to write.
            while Checkpointer(place.folder, job="recovery").latest() is None:
                settle()
            state = make_state(size, value=0.0)
            limit = Alternated(copies(state, Area(size)))
            times = []
            for _ in range(5):
                limit.take()
                # Without what is attached already, as in a new trainer.
                checkpointer = Checkpointer(place.folder, job="recovery")
                into = {"state": state}
                times.append(timed(functools.partial(checkpointer.restore, into)))
            assert all(bool((t == 7.0).all()) for t in state.values())
        name, copied = limit.fastest()
        found = ratio(times, copied)
        return Row(
            figure=f"{found:.2f} x {name} ({milliseconds(times)})",
            holds=found <= most,
            details={"size_bytes": size, "times_s": times, "limits_s": limit.times},
        )

    return measure


def _trainer(folder, size_bytes):
    """A trainer that is killed as soon as `save` returns."""
    state = make_state(size_bytes, value=7.0)
    Checkpointer(folder, job="recovery").save(1, {"state": state})
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _trainer(Path(sys.argv[1]), int(sys.argv[2]))
