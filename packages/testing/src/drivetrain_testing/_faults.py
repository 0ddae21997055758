"""An optimization that breaks on purpose, to see what a search makes of it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from drivetrain_core import BaseOptimization, Config, Option, Phase, Slot
from drivetrain_core.extending import Forward, wrap_forward

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drivetrain_core import Context, TrainingState

FAULTS = (
    "hang",
    "kill",
    "memory",
    "segfault",
    "exit",
    "raise",
    "nan",
    "wrong_gradient",
    "stale_optimizer",
    "daemon",
)
"""The ways in which `FaultyOptimization` breaks."""


class FaultyOptimization(BaseOptimization):
    """Breaks the program that it is applied to; each fault is a configuration.

    `hang` sleeps in the first forward; `daemon` starts a process that leaves the
    session, and then hangs; `kill`, `segfault` and `exit` end the process; `memory`
    asks for more than there is; `raise` raises; `nan` makes the loss NaN;
    `wrong_gradient` scales one gradient; `stale_optimizer` replaces the parameters
    after the optimizer was built, so that nothing trains.

    Args:
        faults: What `configs` proposes.
    """

    name = "faulty"
    slot = Slot.KERNELS
    phase = Phase.RUNTIME
    options = {"fault": Option("raise", choices=FAULTS)}
    shorthand = "fault"

    def __init__(self, faults: Iterable[str] = FAULTS) -> None:
        """Keeps the faults to propose."""
        self.faults = tuple(faults)

    def configs(self, context: Context) -> Iterable[Config]:
        """Returns one configuration for each fault."""
        del context
        return [{"fault": fault} for fault in self.faults]

    def apply(self, state: TrainingState, config: Config) -> None:
        """Breaks the program."""
        fault = str(config["fault"])
        if fault == "wrong_gradient":
            parameter = next(iter(state.module.parameters()))
            parameter.register_hook(lambda g: g * 1.5)  # type: ignore[no-untyped-call]
        elif fault == "stale_optimizer":
            _replace_parameters(state)
        else:
            wrap_forward(state.module, _breaking(fault))


def _replace_parameters(state: TrainingState) -> None:
    import torch

    for module in state.module.modules():
        for key, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, key, torch.nn.Parameter(parameter.detach().clone()))


def _breaking(fault: str) -> Any:
    def around(forward: Forward) -> Forward:
        def run(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            _break(fault)
            output = forward(self, *args, **kwargs)
            return output * float("nan") if fault == "nan" else output

        return run

    return around


def _break(fault: str) -> None:
    if fault == "daemon":
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            start_new_session=True,
        )
    if fault in ("hang", "daemon"):
        time.sleep(600)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "exit":
        os._exit(7)
    if fault == "raise":
        message = "this fault is on purpose"
        raise RuntimeError(message)
    if fault == "memory":
        import torch

        torch.empty(1 << 46, dtype=torch.uint8)
