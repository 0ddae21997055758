"""Storage that fails or hangs under a save, and what must come of it."""

import contextlib
import os

from faults.disk import Disk, Nothing
from faults.oplog import Log
from faults.power_loss import problems_after
from faults.shim import Action
from faults.stage import await_true
from faults.state import listed, problems_of

LONG_S = 30.0


class Storage:
    """A job that saves again and again, onto storage that is spoiled at will.

    Args:
        stage: Where it runs.
        left: A folder, for what a power cut would leave.
        world_size: The number of ranks.
    """

    def __init__(self, stage, left, world_size=1):
        self._stage = stage
        self._left = left
        self._disk = Disk(str(stage.root))
        self._leftover = set()
        self._step = 0
        self.control = stage.control
        self._log = Log(self.control.log)
        self.control["record"] = 1
        self.trainers = stage.start(world_size, keep=1)
        self.save_well()
        # The second deletes the first: from here on each save does the same calls.
        before = self.control["count"]
        self.save_well()
        self.num_calls = self.control["count"] - before

    def save_well(self):
        """Saves when nothing is spoiled, and returns what is wrong."""
        self._step += 1
        step = self._step
        answers = self.trainers.ask("save", step)
        answers += self.trainers.ask("wait", step, LONG_S)
        fine = {("saved", step), ("durable", step)}
        problems = [f"the next save: {a}" for a in answers if a not in fine]
        if not problems:
            await_true(self._has_settled, LONG_S)
        return problems

    def save_spoiled(self, at, action, *, error=0, lasts=False, reads=False):
        """Saves while storage fails.

        Args:
            at: The number of the call, from 1.
            action: How it fails.
            error: The number of the error.
            lasts: Whether all later calls fail too.
            reads: Whether files that are opened to be read fail too.

        Returns:
            What is wrong, or None if there are not so many calls.
        """
        old, self._step = self._step, self._step + 1
        self.control["reads"] = reads
        self.control.arm(action, at, error=error, lasts=lasts)
        self.trainers.ask("save", self._step)
        answers = self.trainers.ask("wait", self._step, LONG_S)
        words = {word for word, _ in answers}
        if words == {"durable"}:
            # The error was of no account, or comes when old checkpoints go.
            with contextlib.suppress(AssertionError):
                await_true(lambda: self.control["hits"] or self._has_settled(), 1.0)
        has_failed = self.control["hits"] > 0
        self.control.disarm()
        self.control["reads"] = 0
        if words == {"durable"}:
            self._leftover.add(old)
            problems = self._problems_of_durable(self._step)
        elif words == {"failed"}:
            self._leftover.add(self._step)
            cause = os.strerror(error)
            problems = [f"no cause in {a}" for a in answers if cause not in a[1]]
            problems += self._problems_of_failed(old, may_be_there=lasts)
        else:
            problems = [f"handles say {answers}"]
        problems += self.save_well()
        return problems if has_failed or problems else None

    def save_hung(self, at):
        """Saves while a call hangs, and then no longer; returns as `save_spoiled`."""
        old, self._step = self._step, self._step + 1
        self.control.arm(Action.HANG, at)
        said = self.trainers.ask("save", self._step)
        assert {word for word, _ in said} == {"saved"}, said
        with contextlib.suppress(AssertionError):
            await_true(lambda: self.control["hits"], 2.0)
        has_hung = self.control["hits"] > 0
        problems = []
        if has_hung:
            words = {w for w, _ in self.trainers.ask("wait", self._step, 0.02)}
            if words == {"durable"}:
                problems += self._problems_of_durable(self._step)
            elif words != {"pending"}:
                problems.append(f"handles of a hung save say {words}")
            if words != {"durable"}:
                problems += problems_of(self._stage.folder, {old})
        self.control.disarm()
        answers = self.trainers.ask("wait", self._step, LONG_S)
        problems += [str(a) for a in answers if a != ("durable", self._step)]
        problems += self.save_well()
        return problems if has_hung or problems else None

    def _problems_of_failed(self, old, *, may_be_there):
        """Returns what is wrong with the folder after a save that failed."""
        if self._step in listed(self._stage.folder):
            # Storage that fails for good does not let it be taken back.
            there = f"step {self._step} failed, and is there"
            return [] if may_be_there else [there]
        return problems_of(self._stage.folder, {old})

    def _problems_of_durable(self, step):
        """Returns what a power cut now would take from what is said to be durable."""
        for op in self._log.read():
            self._disk.apply(op)
        left = problems_after(self._disk.survivor(Nothing()), {step}, self._left)
        return [f"after a power cut: {problem}" for problem in left]

    def _has_settled(self):
        """Whether nothing is written any more, and what is old has gone."""
        names = [path.name for path in self._stage.folder.iterdir()]
        steps = {int(name.split("-")[1]) for name in names}
        # What is left of a save that failed stays; so may what could not be deleted.
        gone = steps - {self._step} <= self._leftover
        return gone and list(listed(self._stage.folder)) == [self._step]
