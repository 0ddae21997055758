"""Writes down what a process is doing, when another one asks."""

from __future__ import annotations

import faulthandler
import signal
import sys

__all__ = ["DUMP_SIGNAL", "answer_with_stacks"]

DUMP_SIGNAL = signal.SIGRTMAX - 1
"""What asks a worker for the stacks of its threads."""


def answer_with_stacks() -> None:
    """Lets this process answer `DUMP_SIGNAL` with its stacks, on standard error.

    It answers also while some C code keeps the interpreter to itself.
    """
    # A process without one, such as a service, has nowhere to write them.
    if sys.__stderr__ is not None:
        faulthandler.register(DUMP_SIGNAL, file=sys.__stderr__, all_threads=True)
