"""Process of one rank of a trial: limits it, runs it, and sends what it answers.

Run as `python -m drivetrain_search.process.worker SPEC RANK FD PARENT`. It answers on the
socket FD: first what it observed, then a measurement for every command. Whatever
fails is sent as `{"event": "failed", ...}`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import resource
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivetrain_core.processes import end_with_parent
from drivetrain_search.process.channel import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drivetrain_core.extending import Program
    from drivetrain_search.process.payload import Payload


def main(argv: list[str]) -> int:
    """Runs one rank; returns the exit code."""
    started = time.perf_counter()
    spec_path, rank, descriptor, parent = argv[0], int(argv[1]), int(argv[2]), argv[3]
    end_with_parent(int(parent))
    be_taken_first()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    channel = socket.socket(fileno=descriptor)
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    sys.path[:] = spec["import_path"]
    # Workers of a loader leave sockets where they are killed: in the trial's own folder.
    own = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    own["tempdir"] = str(Path(spec_path).parent)

    def run() -> Iterator[dict[str, Any]]:
        _limit_memory(spec["memory_limit_bytes"])
        # Under the limit, and so that a failure to import torch is told like any other.
        from drivetrain_search.process.payload import read_payload, with_program
        from drivetrain_search.process.rank import run_rank

        def serve(payload: Payload, program: Program) -> int:
            return _reported(
                lambda: run_rank(spec, payload, program, rank, started, channel),
                rank,
                channel,
            )

        code = with_program(read_payload(spec["payload"]), serve)
        if code:
            sys.exit(code)
        yield from ()

    return _reported(run, rank, channel)


def _reported(
    run: Callable[[], Iterator[dict[str, Any]]], rank: int, channel: socket.socket
) -> int:
    """Sends what a run yields, or what it raises; returns the exit code."""
    try:
        for answer in run():
            tell(channel, answer)
    except SystemExit as left:
        # The user's script may end in a word, which Python prints.
        if isinstance(left.code, str):
            sys.stderr.write(f"{left.code}\n")
            return 1
        return left.code or 0
    except BaseException as error:  # noqa: BLE001
        # Whatever the user's program raises is reported.
        with contextlib.suppress(OSError):
            tell(channel, _failure(error, rank))
        traceback.print_exc()
        return 1
    return 0


def be_taken_first() -> None:
    """Makes the kernel take this process, and not the user's, when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _limit_memory(limit_bytes: int | None) -> None:
    if limit_bytes:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))


def _failure(error: BaseException, rank: int) -> dict[str, Any]:
    # To tell what happened takes memory as well.
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    text = str(error)
    # The CPU allocator raises a plain RuntimeError; an import may wrap what it met.
    kinds = ("MemoryError", "OutOfMemoryError")
    memory = any(type(cause).__name__ in kinds for cause in causes)
    memory = memory or "can't allocate memory" in text or "out of memory" in text
    return {
        "event": "failed",
        "rank": rank,
        "kind": "memory" if memory else "error",
        "type": type(error).__name__,
        "message": text[:2000],
        "traceback": traceback.format_exc()[-4000:],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
