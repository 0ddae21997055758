"""The child process of a `Forecaster`: fake runs and probes, on request.

Run as `python -m drivetrain_core.search.foresight.estimator SPEC RANK FD PARENT`. It answers each
line on the socket FD with one line. A fake run may abort the process: that is why it is
one of its own.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core._fork_server import die_with
from drivetrain_core.search.process.worker import be_taken_first

if TYPE_CHECKING:
    from drivetrain_core.search.foresight.fake_run import FakeRuns

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Answers until the parent closes the socket; returns the exit code."""
    spec_path, _, descriptor, parent = argv
    die_with(int(parent))
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
            if runs is None:
                runs = _prepared(spec)
            answer = _answer(runs, request)
        except Exception as error:  # noqa: BLE001
            # The user's program may raise anything; the parent is told.
            answer = {"because": f"{type(error).__name__}: {str(error)[:500]}"}
        channel.sendall(json.dumps(answer).encode() + b"\n")
    return 0


def _prepared(spec: dict[str, Any]) -> FakeRuns:
    import torch

    from drivetrain_core._registry import register
    from drivetrain_core.search.foresight.fake_mode import read_fake
    from drivetrain_core.search.foresight.fake_run import FakeRuns

    torch.set_num_threads(spec["num_threads"])
    for optimization in read_fake(spec["payload"]).optimizations:
        register(optimization)
    return FakeRuns(spec["payload"])


def _answer(runs: FakeRuns, request: dict[str, Any]) -> dict[str, Any]:
    import torch

    from drivetrain_core._optimization import Choice
    from drivetrain_core.search.foresight.probes import measure_rates

    if request["ask"] == "rates":
        device = torch.device(request["device"])
        rates = measure_rates(device, request["num_threads"])
        return {"rates": dataclasses.asdict(rates)}
    choices = [Choice(name, config) for name, config in request["choices"]]
    structure = runs.structure(choices, request["sizes"], request["whole"])
    return {"structure": structure}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
