"""Kills trainers, their daemon, or both, and says what is lost that should not be."""

import contextlib
import os
import signal
import time

from faults.shim import Action
from faults.stage import await_true, is_alive
from faults.state import SMALL, listed, problems_of, restored
from faults.trainers import DeadError

VICTIMS = ("daemon", "trainers", "both")
NEXT = 1000
"""The step that is saved after all is over."""
LONG_S = 30.0


class Run:
    """Trainers that save until something kills them, and what is known of their saves.

    Args:
        stage: Where they run.
        victim: Who is killed: one of `VICTIMS`.
        world_size: The number of ranks.
        sizes: The elements of the tensors.
    """

    def __init__(self, stage, victim, world_size, sizes=SMALL):
        self._stage = stage
        self._victim = victim
        self._world_size = world_size
        self._sizes = sizes
        self._saved = [0] * world_size
        self.durable = 0
        self.trainers = stage.start(world_size, sizes=sizes)

    @property
    def saved(self):
        """The last step for which `save` returned on all ranks."""
        return min(self._saved)

    def arm(self, at):
        """Lets the shim kill right before a call, counted from now."""
        daemon = () if self._victim == "trainers" else (0,)
        trainers = () if self._victim == "daemon" else self.trainers.pids
        self._stage.control.arm(Action.KILL, at, kills=(*daemon, *trainers))

    def kill(self):
        """Kills from here, at once."""
        pids = [] if self._victim == "trainers" else self._stage.daemons()
        pids += [] if self._victim == "daemon" else self.trainers.pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def listen(self, until):
        """Takes note of what trainers say, until a condition holds or all are silent.

        Args:
            until: The condition, looked at whenever nothing is said for a moment.

        Returns:
            Whether all ranks live and have finished what they were told.
        """
        open_ranks, finished = set(range(self._world_size)), 0
        deadline = time.monotonic() + LONG_S
        while open_ranks and time.monotonic() < deadline:
            for rank in sorted(open_ranks):
                try:
                    word, what = self.trainers.hear(rank, 0.001)
                except TimeoutError:
                    continue
                except DeadError:
                    open_ranks.discard(rank)
                    continue
                if word == "saved":
                    self._saved[rank] = what
                elif word == "durable":
                    self.durable = max([self.durable, *what])
                else:
                    open_ranks.discard(rank)
                    finished += word == "ran"
            if until():
                return False
        return finished == self._world_size

    def aftermath(self):
        """Returns all that is wrong after the kill, and ends everything."""
        lives = self._victim == "daemon"
        problems = self._go_on() if lives else self._begin_again()
        self._stage.kill_daemon()
        return problems + problems_of(self._stage.folder, {NEXT}, self._sizes)

    def _go_on(self):
        """The daemon is dead, and the trainers are not."""
        wanted = ("restored", self.saved, [])
        answers = self.trainers.ask("restore")
        problems = [f"{a} instead of {wanted}" for a in answers if a != wanted]
        answers = self.trainers.ask("wait", self.saved, LONG_S)
        problems += [str(a) for a in answers if a != ("durable", self.saved)]
        return problems + self._save_next(self.trainers)

    def _begin_again(self):
        """The trainers are dead; so may be the daemon."""
        for pid in self.trainers.pids:
            await_true(lambda pid=pid: not is_alive(pid))
        problems = []
        floor = self.saved if self._victim == "trainers" else self.durable
        if floor:
            step, problems = restored(self._stage.folder, sizes=self._sizes)
            if step < floor:
                problems.append(f"step {step} comes back, and {floor} was safe")
        if self._victim == "trainers" and self.saved:
            # The daemon brings to storage what nobody waits for any more.
            with contextlib.suppress(AssertionError):
                await_true(self._has_committed, LONG_S)
            if not self._has_committed():
                problems.append(f"step {self.saved} never reaches the storage")
        return problems + self._save_next(
            self._stage.start(self._world_size, sizes=self._sizes, spoiled=False)
        )

    def _has_committed(self):
        return max(listed(self._stage.folder), default=0) >= self.saved

    def _save_next(self, trainers):
        try:
            answers = trainers.ask("save", NEXT) + trainers.ask("wait", NEXT, LONG_S)
        except TimeoutError as error:
            return [f"the next save: {error}"]
        fine = {("saved", NEXT), ("durable", NEXT)}
        return [f"the next save: {a}" for a in answers if a not in fine]


def kill_at(stage, index, victim, world_size, num_saves=3):
    """Kills right before a call of a run of a few saves.

    Args:
        stage: Where it runs.
        index: The number of the call, from 1.
        victim: One of `VICTIMS`.
        world_size: The number of ranks.
        num_saves: How often they save.

    Returns:
        What is wrong after it, or None if there are not so many calls.
    """
    run = Run(stage, victim, world_size)
    run.arm(index)
    for step in range(1, num_saves + 1):
        run.trainers.tell("run", step, step)
        lives = run.listen(lambda: False)
        while lives and run.durable < step and not stage.control["hits"]:
            _, steps = run.trainers.ask("durable")[0] or ("dead", [])
            run.durable = max([run.durable, *steps])
        if stage.control["hits"]:
            return run.aftermath()
    return None
