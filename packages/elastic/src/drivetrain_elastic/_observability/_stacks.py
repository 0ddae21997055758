"""Stack dumps of a process, which another one asks for by a signal."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

DUMP_SIGNAL = signal.SIGRTMAX - 1
"""What asks a worker for the stacks of its threads."""


def answer_with_stacks(agent: str) -> None:
    """Lets this process answer `DUMP_SIGNAL` with its stacks, for the agent to read.

    It answers also while some C code keeps the interpreter to itself.

    Args:
        agent: Where the agent listens; the file lies beside it.
    """
    # Held open for as long as the process lives.
    file = _file_of(agent, os.getpid()).open("a")
    faulthandler.register(DUMP_SIGNAL, file=file, all_threads=True)
    _FILES.append(file)


_FILES: list[object] = []


def take_stacks(agent: str, pid: int) -> str:
    """Returns what a process has answered since the last time; empty if it has not.

    Args:
        agent: Where the agent listens.
        pid: The process.
    """
    path = _file_of(agent, pid)
    try:
        text = path.read_text(errors="replace")
        os.truncate(path, 0)
    except FileNotFoundError:
        return ""
    return text


def _file_of(agent: str, pid: int) -> Path:
    return Path(agent).with_name(f"stacks-{pid}")
