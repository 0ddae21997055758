"""Random schedules: a training that is killed, signalled, starved of storage, damaged, again
and again, and what it must find each time that it starts.

`python -m faults.schedules --number 1800 --rows FILE [--fresh] [--resume]` tries many.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from drivetrain_checkpoint import list_checkpoints
from faults.shim import Action, build
from faults.stage import Stage, await_true, is_alive
from faults.state import LARGE, SMALL, problems_of, restored
from faults.trainers import ANSWER_S, DeadError

ENDS = (
    "kill trainers",
    "kill a rank",
    "kill daemon",
    "kill both",
    "terminate trainers",
    "terminate daemon",
    "terminate both",
    "interrupt",
    "leave",
)
OUTAGES = {"none": 0, "outage": 5, "full disk": 28, "hang": 0}  # EIO, ENOSPC
DAMAGES = ("none", "manifest", "rank manifest", "tensors", "a file is gone")
KEEP = 3
_STEPS_OF_A_LIFE = 100
_STORAGE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Life:
    """One start of a training, and how it ends.

    Args:
        world_size: The number of ranks.
        num_saves: How often it saves.
        preempts: Whether SIGTERM brings what is in memory to storage first.
        end: One of `ENDS`.
        after_s: How long after its first save that happens, in seconds.
        outage: One of `OUTAGES`.
        from_call: The call of storage from which that lasts.
        outage_s: For how long, in seconds.
        daemon_dies: Whether the daemon is killed too, when the trainers have ended.
        damage: One of `DAMAGES`: of the newest checkpoint, when all has ended.
    """

    world_size: int
    num_saves: int
    preempts: bool
    end: str
    after_s: float
    outage: str
    from_call: int
    outage_s: float
    daemon_dies: bool
    damage: str


def schedule_of(seed):
    """Returns the lives of a training, and the elements of its tensors."""
    choose = random.Random(seed)
    lives = []
    for _ in range(choose.randint(1, 3)):
        world_size = choose.choice([1, 1, 1, 2, 2, 3, 4])
        ends = [end for end in ENDS if world_size == 1 or end != "interrupt"]
        outage = choose.choice(["none", "none", "none", "none", *OUTAGES])
        life = Life(
            world_size=world_size,
            num_saves=choose.randint(1, 6),
            preempts=choose.random() < 0.5,
            end=choose.choice(ends),
            after_s=choose.choice([0, choose.uniform(0, 0.05), choose.uniform(0, 0.3)]),
            outage=outage,
            from_call=choose.randint(1, 60),
            outage_s=choose.uniform(0.05, 1.0),
            daemon_dies=choose.random() < 0.5,
            damage=choose.choice(["none", "none", *DAMAGES]),
        )
        lives.append(life)
    return lives, choose.choice([SMALL, SMALL, LARGE])


class Training:
    """A training on a stage: what it was told is safe, and what it was given.

    Args:
        stage: Where it runs.
        sizes: The elements of its tensors.
        fresh: Whether each rank is a new process.

    Attributes:
        problems: What went wrong so far.
    """

    def __init__(self, stage, sizes, *, fresh=False):
        self._stage = stage
        self._sizes = sizes
        self._fresh = fresh
        # What must come back: from storage whatever happens, and as long as memory lives.
        self._sure = self._floor = 0
        self._damaged = set()
        self._number = 0
        self.problems = []

    def live(self, life):
        """Starts the training, and lets happen to it what is to happen."""
        self._number += 1
        self._life = life
        control = self._stage.control
        control.disarm()
        self._trainers = self._stage.start(
            life.world_size,
            keep=KEEP,
            sizes=self._sizes,
            preempts=life.preempts,
            fresh=self._fresh,
        )
        self._saved = [0] * life.world_size
        self._durable, self._outage_ends, self._outage_is_over = 0, 0.0, False
        self._begin()
        if life.outage != "none":
            action = Action.HANG if life.outage == "hang" else Action.FAIL
            error = OUTAGES[life.outage]
            control.arm(action, life.from_call, error=error, lasts=True)
        first = _STEPS_OF_A_LIFE * self._number
        self._trainers.tell("run", first, first + life.num_saves - 1)
        self._silent, self._is_interrupted = set(), False
        self._listen(lambda: min(self._saved))
        until = time.monotonic() + life.after_s
        self._listen(lambda: time.monotonic() > until)
        self._end()
        self._end_outage()
        self._trainers.kill()
        self._let_daemon_end()

    def finish(self):
        """Starts it once more, without a fault, and looks at what is left."""
        self._number += 1
        self._trainers = self._stage.start(
            1, keep=KEEP, sizes=self._sizes, spoiled=False, fresh=self._fresh
        )
        self._begin()
        step = _STEPS_OF_A_LIFE * self._number
        fine = [[("saved", step)], [("durable", step)]]
        for command, wanted in zip(
            [("save", step), ("wait", step, _STORAGE_S)], fine, strict=True
        ):
            if (said := self._trainers.ask(*command)) != wanted:
                self._wrong(f"{command[0]} at the end: {said}")
        self._trainers.kill()
        self._stage.kill_daemon()
        found, wrong = restored(self._stage.folder, sizes=self._sizes)
        if found != step or wrong:
            self._wrong(f"at the end step {found} comes back, of {step}: {wrong}")
        if not self._damaged:
            self.problems += problems_of(self._stage.folder, {step}, self._sizes)

    def _begin(self):
        """Restores, which must give what is safe, or a later step."""
        answers = self._trainers.ask("resume")
        if any(answer != answers[0] for answer in answers):
            self._wrong(f"ranks restore differently: {answers}")
        word, step, *differs = answers[0] or ("dead", 0)
        if word == "restored":
            if step < self._floor:
                self._wrong(f"step {step} comes back, and {self._floor} was safe")
            if differs != [[]]:
                self._wrong(f"step {step} is not what was saved: {differs}")
            self._floor = step
        elif word != "nothing" or self._floor:
            self._wrong(f"{answers[0]}, and step {self._floor} was safe")

    def _end(self):
        """Lets happen what ends this life, or only its daemon."""
        action, _, whom = self._life.end.partition(" ")
        number = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM}.get(action)
        pids = self._trainers.pids
        daemons = self._stage.daemons() if whom in {"daemon", "both"} else []
        if whom == "a rank":
            pids = pids[-1:]
        for pid in ([] if whom == "daemon" else pids) + daemons:
            if number is not None:
                _send(pid, number)
        if action == "interrupt":
            _send(pids[0], signal.SIGINT)
        if whom == "daemon" or action in {"interrupt", "leave"}:
            self._go_on()
            return
        if whom == "a rank":
            until = time.monotonic() + 1
            self._listen(lambda: time.monotonic() > until)
            self._trainers.kill()
        elif number == signal.SIGTERM:
            self._await_statuses()
        self._listen(lambda: False)
        self._sure = max(self._sure, self._durable)
        if self._life.end == "kill both":
            self._floor = self._sure
        else:
            self._floor = max(self._floor, self._sure, min(self._saved))
        if action == "terminate" and whom == "both":
            self._end_outage()
            with contextlib.suppress(AssertionError):
                await_true(lambda: not any(map(is_alive, daemons)), 2 * _STORAGE_S)
            if any(map(is_alive, daemons)):
                self._wrong("the daemon does not end")

    def _await_statuses(self):
        """Waits until ranks that were told to end have ended; believes what they say."""
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            self._listen(lambda: True)
            if not any(map(is_alive, self._trainers.pids)):
                break
        self._listen(lambda: False)
        statuses = self._trainers.statuses()
        if None in statuses:
            self._wrong(f"told to end, and statuses are {statuses}")
        if not self._life.preempts:
            return
        for rank, status in enumerate(statuses):
            if status == 128 + signal.SIGTERM:
                self._durable = max(self._durable, self._saved[rank])
            # A save that only some ranks have begun never becomes a checkpoint, nor does
            # one that storage has refused and memory holds no more.
            elif status != 1 or (
                self._life.world_size == 1 and self._life.outage == "none"
            ):
                self._wrong(f"rank {rank} ends with status {status}")

    def _go_on(self):
        """The trainers live: what they have saved gets to storage, and so does the next."""
        was_interrupted = self._life.end == "interrupt"
        self._listen(lambda: False)
        self._end_outage()
        if was_interrupted:
            self._await_interrupt()
            step = _STEPS_OF_A_LIFE * self._number + 50
            said = [answer for answer in self._ask("save", step) if answer]
            if said != [("saved", step)]:
                self._wrong(f"the save after an interrupt: {said}")
            self._saved = [step]
        for _ in range(self._life.num_saves + 1):
            said = self._ask("flush", _STORAGE_S)
            # It tells of each save that storage had refused, and memory holds no more.
            if {word for word, _ in said} != {"failed"}:
                break
        if {word for word, _ in said} != {"flushed"}:
            self._wrong(f"flush: {said}")
            return
        self._sure = max(self._sure, self._durable, min(self._saved))
        self._floor = max(self._floor, self._sure)

    def _await_interrupt(self):
        """Waits until the rank has been interrupted, be it in a save or after them."""
        while not self._is_interrupted:
            try:
                word, what = self._trainers.hear()
            except (DeadError, TimeoutError) as error:
                self._wrong(f"interrupted: {error!r}")
                return
            self._note(0, word, what)

    def _ask(self, *command):
        try:
            return [answer or ("dead", "") for answer in self._trainers.ask(*command)]
        except TimeoutError as error:
            return [("silent", str(error))]

    def _let_daemon_end(self):
        """Ends the daemon, if it is to end; damages the newest checkpoint, if it is to be."""
        if not self._life.daemon_dies:
            return
        if self._life.end not in {"kill both", "terminate both"} and self._floor:
            # It brings to storage what nobody waits for any more.
            with contextlib.suppress(AssertionError):
                await_true(self._has_committed, _STORAGE_S)
            if not self._has_committed():
                self._wrong(f"step {self._floor} never reaches the storage")
        self._sure = self._floor
        self._stage.kill_daemon()
        there = self._whole()
        if self._life.damage == "none" or len(there) < 2:
            return
        newest = max(there)
        _damage(there.pop(newest), self._life.damage)
        self._damaged.add(newest)
        self._sure = self._floor = min(self._floor, max(there))

    def _whole(self):
        """Returns the committed checkpoints that were not damaged, by step."""
        return {
            found.step: Path(found.url)
            for found in list_checkpoints(self._stage.folder)
            if found.step not in self._damaged
        }

    def _has_committed(self):
        return max(self._whole(), default=0) >= self._floor

    def _listen(self, until):
        """Takes note of what ranks say, until a condition holds or all are silent."""
        deadline = time.monotonic() + ANSWER_S
        while len(self._silent) < self._life.world_size:
            for rank in range(self._life.world_size):
                if rank not in self._silent:
                    self._hear(rank)
            self._watch_outage()
            if until():
                return
            if time.monotonic() > deadline:
                self._wrong(f"ranks say nothing for {ANSWER_S:g} s")
                self._silent = set(range(self._life.world_size))

    def _hear(self, rank):
        try:
            word, what = self._trainers.hear(rank, 0.001)
        except TimeoutError:
            return
        except DeadError:
            self._silent.add(rank)
            return
        self._note(rank, word, what)

    def _note(self, rank, word, what):
        if word == "saved":
            self._saved[rank] = what
        elif word == "durable":
            self._durable = max([self._durable, *what])
        else:
            self._silent.add(rank)
            self._is_interrupted |= word == "interrupted"
            is_alone = self._life.world_size == 1
            if word == "error" and (
                is_alone or self._life.end in {"leave", "interrupt"}
            ):
                self._wrong(f"rank {rank}: {what}")

    def _watch_outage(self):
        """Notices that storage has failed, and gives it back when the time has come."""
        if self._life.outage == "none" or self._outage_is_over:
            return
        now = time.monotonic()
        if not self._outage_ends and self._stage.control["hits"]:
            self._outage_ends = now + self._life.outage_s
        elif self._outage_ends and now > self._outage_ends:
            self._end_outage()

    def _end_outage(self):
        self._outage_is_over = True
        self._stage.control.disarm()

    def _wrong(self, what):
        self.problems.append(f"life {self._number}: {what}")


def _send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _damage(folder, how):
    """Spoils a file of a checkpoint."""
    names = {
        "manifest": "manifest.json",
        "rank manifest": "rank-00000.json",
        "tensors": "rank-00000.safetensors",
        "a file is gone": "rank-00000.safetensors",
    }
    file = folder / names[how]
    if how == "a file is gone":
        file.unlink()
        return
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(content)


def try_schedule(seed, library, *, fresh=False):
    """Lives through a schedule; returns what it was, and what went wrong."""
    lives, sizes = schedule_of(seed)
    with (
        tempfile.TemporaryDirectory(prefix="schedule-") as base,
        Stage(Path(base) / "stage", library) as stage,
    ):
        training = Training(stage, sizes, fresh=fresh)
        try:
            for life in lives:
                training.live(life)
            training.finish()
        # What nobody has thought of is a finding too.
        except Exception as error:  # noqa: BLE001
            training.problems.append(f"{type(error).__name__}: {error}")
    return lives, training.problems


def main():
    """Tries many schedules, and keeps a row of each."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--number", type=int, default=1800)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="ranks are new processes")
    parser.add_argument("--rows", type=Path, help="a file that rows are appended to")
    parser.add_argument(
        "--resume", action="store_true", help="leave out what has a row"
    )
    options = parser.parse_args()
    kind = "fresh" if options.fresh else "forked"
    done = set()
    if options.resume and options.rows and options.rows.exists():
        rows = map(json.loads, options.rows.read_text().splitlines())
        done = {row["seed"] for row in rows if row["kind"] == kind}
    wrong = tried = 0
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for seed in range(options.first, options.first + options.number):
            if seed in done:
                continue
            start = time.monotonic()
            lives, problems = try_schedule(seed, library, fresh=options.fresh)
            tried, wrong = tried + 1, wrong + bool(problems)
            row = {"seed": seed, "kind": kind, "problems": problems}
            row |= {"seconds": round(time.monotonic() - start, 1)}
            row |= {"lives": [asdict(life) for life in lives]}
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            if problems:
                print(f"seed {seed}: {problems}", flush=True)
    print(f"{tried} schedules tried ({kind}), {wrong} wrong; {len(done)} had a row")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
