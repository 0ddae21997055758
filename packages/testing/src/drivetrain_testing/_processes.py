"""Runs a function on several ranks, each in a process of its own, and brings back results.

The processes meet through a store that the caller's process holds, so no port is
guessed. None outlives the call: they are killed when one fails, when the time is up and
when the caller dies.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle
import psutil
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from drivetrain_core import DistributedError
from drivetrain_core.extending import ForkedProcess, NewProcess, by_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from drivetrain_core.extending import ChildProcess

_Result = TypeVar("_Result")
_Ended = queue.SimpleQueue[tuple[int, int]]
_LOG_TAIL_CHARS = 4000
_RANK_MAIN = "drivetrain_testing._rank_main"
_NUM_HASH_SEEDS = 2
# What takes seconds to import, and most functions need: DDP and optimizers import the
# second of them when they are first used.
_IMPORTED = ("torch.distributed.fsdp", "torch._dynamo", "drivetrain_core.services")
# The modules of these packages that ranks have imported: the next ones have them.
_learned: set[str] = set()
# A run of tests has pauses between those that need ranks.
_IDLE_S = 600.0


class RankError(DistributedError, AssertionError):
    """A rank failed; the message holds its traceback, or the end of its output.

    Args:
        rank: The rank that failed first.
        message: What it said.
    """

    def __init__(self, rank: int, message: str) -> None:
        """Keeps the rank beside the message."""
        self.rank = rank
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class _Child:
    """A rank's process, and the thread that waits for its end."""

    rank: int
    process: ChildProcess
    watcher: threading.Thread


def is_alive(pid: int) -> bool:
    """Whether a process runs, and is no zombie.

    Example:
        >>> is_alive(os.getpid())
        True
    """
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def run_ranks(
    function: Callable[..., _Result],
    world_size: int,
    *args: object,
    timeout_s: float = 60.0,
    process_group: bool = True,
    env: Mapping[str, str] | None = None,
) -> list[_Result]:
    """Returns what a function returns on each rank of a world of processes.

    They are forked from a process that has imported torch and this package's services, so
    that they are there at once; it starts with the first call, and ends with the caller.
    What ranks have imported of packages named `drivetrain_*`, the next ones have as well.

    Args:
        function: Called in each process with `args`. It and they cross by pickle;
            what is defined in a test file or `__main__` crosses by value.
        world_size: The number of processes.
        *args: What the function is called with.
        timeout_s: How long all of it may take, in seconds.
        process_group: Whether a default process group on Gloo stands when the function
            is called. Either way the environment is the one that `torchrun` sets.
        env: Further environment variables. With any, the processes start anew: what
            they import may read them.

    Returns:
        The results, by rank.

    Raises:
        RankError: A rank raised, died, or the time was up. The error is that of the
            rank that failed first; the others have been killed.

    Example:
        >>> run_ranks(pow, 2, 3, 4, process_group=False)
        [81, 81]
    """
    deadline = time.monotonic() + timeout_s
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory(prefix="drivetrain-ranks-") as name:
        folder = Path(name)  # private: `tempfile` makes it with mode 0700
        call = (function, args, process_group, timeout_s)
        (folder / "call").write_bytes(_dumps(call, (function, *args)))
        children: list[_Child] = []
        ended: _Ended = queue.SimpleQueue()
        try:
            for rank in range(world_size):
                variables = _environment(rank, world_size, store.port)
                with (folder / f"log-{rank}").open("wb") as log:
                    process = _start(folder, variables, env, log.fileno())
                children.append(_watch(rank, process, ended))
            _wait_for_all(children, folder, ended, deadline)
            _learned.update((folder / "modules").read_text(encoding="utf-8").split())
            return [_result(folder, rank) for rank in range(world_size)]
        finally:
            for child in children:
                _kill(child)


def _dumps(call: object, parts: Iterable[object]) -> bytes:
    homes = (
        getattr(part, "__module__", None) or type(part).__module__ for part in parts
    )
    with by_value(*homes):
        return bytes(cloudpickle.dumps(call))


def _start(
    folder: Path,
    variables: Mapping[str, str],
    further: Mapping[str, str] | None,
    output: int,
) -> ChildProcess:
    arguments = [str(folder)]
    if further:
        env = {**variables, **further}
        return NewProcess(_RANK_MAIN, arguments, env=env, output=output)
    # Sets are walked in another order in ranks of odd numbers, as between fresh processes.
    seed = int(variables["RANK"]) % _NUM_HASH_SEEDS + 1
    env = {"PYTHONHASHSEED": str(seed), **variables}
    return ForkedProcess(
        _RANK_MAIN,
        arguments,
        env=env,
        output=output,
        imported=_IMPORTED,
        more=sorted(_learned),
        idle_s=_IDLE_S,
    )


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # Every rank is a client of the store in the caller's process.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


def _watch(rank: int, process: ChildProcess, ended: _Ended) -> _Child:
    def watch() -> None:
        ended.put((rank, process.wait()))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    return _Child(rank, process, watcher)


def _wait_for_all(
    children: list[_Child], folder: Path, ended: _Ended, deadline: float
) -> None:
    waiting = {child.rank for child in children}
    while waiting:
        try:
            rank, code = ended.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            rank = min(waiting)
            names = ", ".join(map(str, sorted(waiting)))
            message = (
                f"the time was up while rank {names} of {len(children)} still ran; "
                f"the output of rank {rank} ends with:\n{_log(folder, rank)}"
            )
            raise RankError(rank, message) from None
        waiting.discard(rank)
        if code != 0 or not (folder / f"result-{rank}").exists():
            raise _first_failure(len(children), folder, rank, code)


def _first_failure(world_size: int, folder: Path, rank: int, code: int) -> RankError:
    """Returns the error of the rank that raised first: the others may follow from it."""
    reports = []
    for other in range(world_size):
        report = folder / f"error-{other}"
        if report.exists():
            when, _, text = report.read_text(encoding="utf-8").partition("\n")
            reports.append((float(when), other, text))
    if reports:
        _, first, text = min(reports)
        return RankError(first, f"rank {first} of {world_size} failed:\n{text}")
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    message = (
        f"rank {rank} of {world_size} ended {how} and no result; its output "
        f"ends with:\n{_log(folder, rank)}"
    )
    return RankError(rank, message)


def _result(folder: Path, rank: int) -> Any:
    return pickle.loads((folder / f"result-{rank}").read_bytes())


def _log(folder: Path, rank: int) -> str:
    text = (folder / f"log-{rank}").read_text(encoding="utf-8", errors="replace")
    return text[-_LOG_TAIL_CHARS:].strip() or "(nothing)"


def _kill(child: _Child) -> None:
    """Ends a child and whatever it has started, and reaps it."""
    child.process.kill()
    child.watcher.join()
    child.process.reap()
