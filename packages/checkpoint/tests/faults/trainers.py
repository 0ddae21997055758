"""Ranks that save, each in a process of its own that starts quickly: torch is there."""

import contextlib
import functools
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from drivetrain_checkpoint import Checkpointer
from drivetrain_core import CheckpointError
from faults.state import JOB, SMALL, blank, differences, state_of

ANSWER_S = 90.0
"""Far longer than any answer takes; who waits so long fails."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What ranks are told when they start.

    Args:
        folder: Where checkpoints go.
        meeting: A file that is not there yet, through which ranks meet.
        world_size: The number of ranks.
        keep: How many checkpoints stay.
        sizes: The elements of the tensors that are saved.
        environment: What the environment says, of the rank and its daemon.
        preempts: Whether SIGTERM brings what is in memory to storage first.
        fresh: Whether each rank is a new process, and not forked from one that has
            imported torch.
        under: The folder in that of the job that they save to.
    """

    folder: Path
    meeting: Path
    world_size: int = 1
    keep: int = 2
    sizes: tuple = SMALL
    environment: dict = field(default_factory=dict)
    preempts: bool = False
    fresh: bool = False
    under: str = ""


class DeadError(Exception):
    """A rank has died."""


class Trainers:
    """The ranks of one job.

    Args:
        settings: What they are told.
    """

    def __init__(self, settings):
        context = _fresh_context() if settings.fresh else _context()
        self._pipes, self.processes = [], []
        for rank in range(settings.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, settings), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    @property
    def pids(self):
        """The processes, by rank."""
        return [process.pid for process in self.processes]

    def tell(self, *command):
        """Sends a command to every rank that lives."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(command)

    def hear(self, rank=0, timeout_s=ANSWER_S):
        """Returns the next thing that a rank says.

        Raises:
            DeadError: It is dead, and has said all that it will.
            TimeoutError: It says nothing.
        """
        pipe = self._pipes[rank]
        try:
            if pipe.poll(timeout_s):
                return pipe.recv()
        except (EOFError, OSError) as error:
            raise DeadError(rank) from error
        message = f"rank {rank} says nothing for {timeout_s} s"
        raise TimeoutError(message)

    def has_said(self, rank=0):
        """Whether `hear` would return at once."""
        return self._pipes[rank].poll(0)

    def ask(self, *command):
        """Sends a command to every rank and returns the answers, None for the dead."""
        self.tell(*command)
        answers = []
        for rank in range(len(self._pipes)):
            try:
                answers.append(self.hear(rank))
            except DeadError:
                answers.append(None)
        return answers

    def statuses(self, timeout_s=ANSWER_S):
        """Returns how the ranks have ended, as exit statuses; None for who lives."""
        for process in self.processes:
            process.join(timeout_s)
        return [process.exitcode for process in self.processes]

    def kill(self):
        """Ends all ranks that live."""
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()


@functools.cache
def _context():
    """Starts the server that ranks are forked from; it has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    outside = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    multiprocessing.forkserver.ensure_running()
    del os.environ["PYTHONPATH"]
    if outside is not None:
        os.environ["PYTHONPATH"] = outside
    return context


def _fresh_context():
    return multiprocessing.get_context("spawn")


def _serve(pipe, rank, settings):
    """Does what it is told until nobody tells it any more."""
    os.environ.update(settings.environment)
    # A shell lets what it starts in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    if settings.world_size > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo",
            init_method=f"file://{settings.meeting}",
            rank=rank,
            world_size=settings.world_size,
        )
    trainer = _Trainer(pipe, settings)
    answer = None
    with trainer.watching():
        while True:
            try:
                if answer is not None:
                    said, answer = answer, None
                    _send(pipe, said)
                try:
                    name, *arguments = pipe.recv()
                except (EOFError, OSError):
                    return
                answer = getattr(trainer, name)(*arguments)
            except KeyboardInterrupt:
                answer = ("interrupted", "")
            except BrokenPipeError:
                return
            # Whatever goes wrong is told, and judged by the test.
            except Exception as error:  # noqa: BLE001
                answer = ("error", f"{type(error).__name__}: {error}")


def _send(pipe, answer):
    """Says something whole: an interrupt waits until it is said."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pipe.send(answer)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Trainer:
    """One rank: each method is a command, and returns the answer."""

    def __init__(self, pipe, settings):
        self._pipe = pipe
        self._sizes = settings.sizes
        self._preempts = settings.preempts
        self._under = settings.under
        self._checkpointer = Checkpointer(settings.folder, job=JOB, keep=settings.keep)
        self._handles = {}

    def watching(self):
        """Returns a context in which SIGTERM is a notice, if it is to be one."""
        if not self._preempts:
            return contextlib.nullcontext()
        return self._checkpointer.on_preempt(grace_s=20)

    def save(self, step):
        state = state_of(step, self._sizes)
        self._handles[step] = self._checkpointer.save(step, state, under=self._under)
        return ("saved", step)

    def wait(self, step, timeout_s):
        try:
            done = self._handles[step].wait(timeout_s)
        except CheckpointError as error:
            return ("failed", str(error))
        return ("durable" if done else "pending", step)

    def durable(self):
        """The steps whose handles say that they are durable."""
        return ("durable", [s for s, h in self._handles.items() if h.durable])

    def restore(self):
        state = blank(self._sizes)
        step = self._checkpointer.restore(state)
        return ("restored", step, differences(state, step, self._sizes))

    def resume(self):
        """Restores the newest step if there is one at all."""
        try:
            return self.restore()
        except CheckpointError as error:
            return ("nothing", str(error))

    def flush(self, timeout_s):
        """Waits until all saves are durable; says whether they are."""
        try:
            done = self._checkpointer.flush(time.monotonic() + timeout_s)
        except CheckpointError as error:
            return ("failed", str(error))
        return ("flushed" if done else "pending", "")

    def run(self, first, last):
        """Saves again and again, and tells of each save."""
        told = set()
        for step in range(first, last + 1):
            _send(self._pipe, self.save(step))
            _, durable = self.durable()
            for old in set(durable) - told:
                _send(self._pipe, ("durable", [old]))
            told |= set(durable)
        return ("ran", last)
