"""The child process of a `Forecaster`: fake runs and probes, on request.

Run as `python -m drivetrain_search.prediction.estimator SPEC RANK FD PARENT`. It answers each
line on the socket FD with one line. A fake run may abort the process: that is why it is
one of its own.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from drivetrain_core.processes import end_with_parent
from drivetrain_search.process.worker import be_taken_first

if TYPE_CHECKING:
    from drivetrain_search.prediction.fake_run import FakeRuns


def main(argv: list[str]) -> int:
    """Answers until the parent closes the socket; returns the exit code."""
    spec_path, _, descriptor, parent = argv
    end_with_parent(int(parent))
    be_taken_first()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    sys.path[:] = spec["import_path"]
    channel = socket.socket(fileno=int(descriptor))
    runs: FakeRuns | None = None
    for line in channel.makefile("rb"):
        request = json.loads(line)
        try:
            # The user's import path is set by now, and what fails is told.
            from drivetrain_search.prediction import answers

            if request["ask"] == "rates":  # Whatever the program is.
                answer = answers.rates_of(request)
            else:
                runs = runs or answers.prepared(spec)
                answer = answers.structure_of(request, runs)
        except Exception as error:  # noqa: BLE001
            # The user's program may raise anything; the parent is told.
            answer = {"because": f"{type(error).__name__}: {str(error)[:500]}"}
        channel.sendall(json.dumps(answer).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
