"""Trains a program by an elastic loop on several ranks, kills one, and compares.

Every process is forked from one that has loaded torch, and started nothing: a case takes
less than a second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import model_programs
import state_programs
import step_programs
import torch
import torch._dynamo  # The first step of an optimizer loads it.
import torch.distributed as dist
from step_programs import NUM_STEPS, OnePass

from drivetrain_core.services import TorchProcessGroupFactory
from drivetrain_elastic import ElasticLoop, Schedule
from drivetrain_elastic._membership._connection import Connection
from drivetrain_elastic._membership._world_group import RankLostError
from drivetrain_elastic._training._gradient_reducer import GradientReducer
from drivetrain_elastic.testing import ScriptedWorlds

PROGRAMS = {
    name: one
    for module in (step_programs, model_programs, state_programs)
    for name, one in vars(module).items()
    if isinstance(one, type) and issubclass(one, OnePass)
}
# In which step the last rank is killed: within a part, or when all are done.
KILL_STEP = 3
_LIMIT_S = 60.0
_POLL_S = 0.01


def make(name):
    """Returns a program as each process has it at first, and its data."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    data = torch.rand(NUM_STEPS * PROGRAMS[name].batch, 4)
    return PROGRAMS[name](), data


def train_plainly(name):
    """Returns the parameters that a plain loop ends with."""
    program, data = make(name)
    optimizers = program.optimizer
    optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
    for k in range(NUM_STEPS):
        program.before(k)
        for one in program.parameters():
            one.grad = None
        rows = list(range(len(data)))[k * program.batch :][: program.batch]
        with suppress(LookupError):
            program.part(data[rows], rows, k, 1.0)
        program.update(k)
        if not program.steps_itself:
            for one in optimizers:
                one.step()
        program.after(k)
    program.before(NUM_STEPS)
    return [one.detach() for one in program.parameters()]


def train_elastically(name, connection, *, bucket_bytes=100, dies=None, breaks=False):
    """Returns the parameters that an elastic loop ends with.

    Args:
        name: Of the program.
        connection: To what assigns the ranks; None for a rank that is alone.
        bucket_bytes: So few, that even small models have several buckets, which travel
            during backward; or so many that all have one.
        dies: Called in the middle of a step, with its number and "part" or "update".
        breaks: Whether the loop is left after each step, and entered again.
    """
    GradientReducer.__init__.__kwdefaults__["bucket_bytes"] = bucket_bytes
    program, data = make(name)
    loop = ElasticLoop(
        program.model,
        program.optimizer,
        schedule=Schedule(
            num_samples=len(data), global_batch=program.batch, shuffle=False
        ),
        num_steps=NUM_STEPS,
        num_micro_batches=program.num_micro_batches,
        state=program.state,
        connection=connection,
        timeout=timedelta(seconds=20),
        patience_s=20,
    )
    while not loop.is_done:
        for step in loop:
            k = step.number - 1
            program.before(loop.step)
            with suppress(LookupError), step:
                part = None
                for part in step.parts():
                    x = data[part.indices]
                    program.part(x, part.indices, k, part.weight)
                    if dies is not None:
                        dies(step, "part")
                if dies is not None and part is None:
                    dies(step, "part")
                program.update(k)
                if dies is not None:
                    dies(step, "update")
            program.after(k)
            if breaks:
                break
    program.before(loop.step)
    return [one.detach() for one in program.parameters()]


class Case:
    """One program on so many ranks; the last one is killed, and another one comes.

    Args:
        name: Of the program.
        num_ranks: How many train.
        phase: When one is killed: "part", "update" or "" for never.
    """

    def __init__(self, name, num_ranks, phase):
        self._name, self._num_ranks, self._phase = name, num_ranks, phase
        self._folder = Path(tempfile.mkdtemp(prefix="step-table-"))
        self._pids = {}
        self._ended = {}

    def outcome(self):
        """Returns "equal", "refused", "wrong" or "hangs", and what was said."""
        try:
            return self._run()
        finally:
            for pid in self._pids.values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            for path in self._folder.iterdir():
                path.unlink()
            self._folder.rmdir()

    def _run(self):
        program = PROGRAMS[self._name]
        is_alone = not self._num_ranks
        wanted_words = program.refusal(self._num_ranks)
        if not wanted_words:
            self._fork("plain", self._plain)
        if is_alone:
            self._fork("w0", self._alone)
            self._wait({"w0", "plain"} & {*self._pids})
        else:
            self._fork("keeper", self._keep)
            victim, joiner = f"w{self._num_ranks - 1}", f"w{self._num_ranks}"
            for rank in range(self._num_ranks):
                self._fork(f"w{rank}", partial(self._work, f"w{rank}"))
            if not self._wait({*self._pids} - {"keeper"}, until=victim):
                return "hangs", ""
            if self._ended.get(victim) == -signal.SIGKILL:
                (self._folder / "dead").touch()
                self._fork(joiner, partial(self._work, joiner))
        if not self._wait({*self._pids} - {"keeper"}):
            return "hangs", ""
        return self._judge(wanted_words, program.most_apart)

    def _judge(self, wanted_words, most_apart):
        said = [path.read_text() for path in self._folder.glob("said-*")]
        if wanted_words:
            is_right = bool(said) and all(wanted_words in one for one in said)
            return ("refused" if is_right else "wrong"), "\n".join(said)
        if said:
            return "wrong", "\n".join(said)
        plain = torch.load(self._folder / "plain")
        found = [torch.load(path) for path in self._folder.glob("w*.pt")]
        if len(found) != max(self._num_ranks, 1):
            return "wrong", f"{len(found)} ranks came to the end: {self._ended}"
        rows = [zip(mine, plain, strict=True) for mine in found]
        if any(one.shape != other.shape for row in rows for one, other in row):
            return "wrong", "shapes differ"
        far = max(
            (one - other).abs().max().item() if one.numel() else 0.0
            for mine in found
            for one, other in zip(mine, plain, strict=True)
        )
        apart = any(
            not torch.equal(one, other)
            for mine in found
            for one, other in zip(mine, found[0], strict=True)
        )
        if self._phase and self._num_ranks and not self._was_killed():
            return "wrong", "no rank was killed"
        is_right = far <= most_apart and not apart
        return ("equal" if is_right else "wrong"), f"far {far}, ranks apart: {apart}"

    def _was_killed(self):
        return -signal.SIGKILL in self._ended.values()

    # ---- processes ----

    def _fork(self, name, run):
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            self._pids[name] = pid
            return
        code = 1
        try:
            warnings.simplefilter("ignore")
            run()
            code = 0
        except Exception as error:  # noqa: BLE001 - the parent judges what it says
            kind = "said" if not isinstance(error, RuntimeError) else "failed"
            text = "".join(traceback.format_exception(error))
            (self._folder / f"said-{name}").write_text(f"{kind}: {error}\n{text}")
        finally:
            os._exit(code)

    def _wait(self, names, until=None):
        """Waits for processes, or for one of them; returns whether they have ended."""
        end_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < end_s:
            for name in names & {*self._pids}:
                pid, status = os.waitpid(self._pids[name], os.WNOHANG)
                if pid:
                    del self._pids[name]
                    self._ended[name] = os.waitstatus_to_exitcode(status)
            if until in self._ended or not names & {*self._pids}:
                return True
            time.sleep(_POLL_S)
        return False

    def _plain(self):
        torch.save(train_plainly(self._name), self._folder / "plain")

    def _alone(self):
        found = train_elastically(self._name, None, breaks=bool(self._phase))
        torch.save(found, self._folder / "w0.pt")

    def _keep(self):
        """Has the store where ranks meet, and plays the master."""
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (self._folder / "port-").write_text(str(server.port))
        (self._folder / "port-").rename(self._folder / "port")
        members = [f"w{rank}" for rank in range(self._num_ranks)]
        server.set("seats/1", f"{' '.join(members)}|")
        while not (self._folder / "dead").exists():
            time.sleep(_POLL_S)
        victim, joiner = members[-1], f"w{self._num_ranks}"
        server.set("seats/2", f"{' '.join([*members[:-1], joiner])}|{victim}")
        time.sleep(_LIMIT_S)

    def _store(self):
        path = self._folder / "port"
        while not path.exists():
            time.sleep(_POLL_S)
        return dist.TCPStore("127.0.0.1", int(path.read_text()), is_master=False)

    def _work(self, name):
        store = self._store()
        worlds = ScriptedWorlds(name, self._store)
        make_factory = partial(TorchProcessGroupFactory, "gloo")
        connection = Connection(worlds, dist.PrefixStore("job", store), make_factory)
        is_victim = name == f"w{self._num_ranks - 1}" and self._phase

        def die(step, phase):
            if step.number == KILL_STEP and phase == self._phase:
                os.kill(os.getpid(), signal.SIGKILL)

        dies = die if is_victim else None
        if self._phase == "update" and name == f"w{self._num_ranks - 2}" != "w0":
            fall_behind()
        bucket_bytes = bucket_bytes_of(self._name, self._num_ranks)
        found = train_elastically(
            self._name, connection, bucket_bytes=bucket_bytes, dies=dies
        )
        torch.save(found, self._folder / f"{name}.pt")


def fall_behind():
    """Loses the connection to the rank that is killed before its sums are here.

    Another rank has its own, and makes the update.
    """
    finish, num = GradientReducer.finish, itertools.count(1)

    def finish_behind(self, group):
        finish(self, group)
        if next(num) == KILL_STEP:
            raise RankLostError("the connection was closed")

    GradientReducer.finish = finish_behind


def phase_of(name, num_ranks):
    """Returns when a rank of a case is killed: each program has both, in some world."""
    at = list(PROGRAMS).index(name) + num_ranks
    return ("part", "update")[at % 2]


def bucket_bytes_of(name, num_ranks):
    """Returns how large the buckets of a case are: each program has both, on some ranks."""
    at = list(PROGRAMS).index(name) // 2 + num_ranks
    return (100, 1 << 20)[at % 2]


def main():
    """Writes a line of JSON for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ranks", nargs="+", type=int, default=[0, 1, 2, 3], help="0: without a job"
    )
    parser.add_argument("--every", type=int, default=1, help="which programs")
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.programs[:: arguments.every]:
        for num_ranks in arguments.ranks:
            if num_ranks and PROGRAMS[name].only_alone:
                continue
            found, says = Case(name, num_ranks, phase_of(name, num_ranks)).outcome()
            row = {"name": name, "ranks": num_ranks, "found": found, "says": says}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
