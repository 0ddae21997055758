"""Carries out random programs of collectives in one rank, and says what it saw."""

import ctypes
import datetime as dt
import hashlib
import os
import random
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from program_collectives import COLLECTIVES, Call

import drivetrain_comm

# How many elements of inexact sums are kept, to be compared with stock's.
_KEPT = 2000
_LIBC = ctypes.CDLL(None)
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes():
    """Returns the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


@dataclass(kw_only=True)
class Seen:
    """What one rank saw of a program.

    Args:
        results: Of each step a digest of the bits, and values of inexact reductions.
        error: Why it ended early, or None.
        error_at_s: When, on the clock of all processes.
        stored_bytes: By how much this rank grew at most while it was late.
        own_bytes: What its own tensors took then.
        usage: Resident bytes, threads and open files, after the program.
    """

    results: dict = field(default_factory=dict)
    error: str | None = None
    error_at_s: float = 0.0
    stored_bytes: int = 0
    own_bytes: int = 0
    usage: tuple = ()


class Run:
    """A program under way in one rank.

    Args:
        program: Of `program_plan`.
        rank: This one.
        timeout: Of its groups.
        say: Called with a word and the time before this rank is lost.
    """

    def __init__(self, program, rank, timeout, say):
        self.program, self.rank, self.timeout, self.say = program, rank, timeout, say
        self.groups = {0: None}
        self.ranks = {0: tuple(range(program.num_ranks))}
        self.pending, self.dropped = [], []
        self.own_bytes = 0
        self.is_over = False
        self.seen = Seen()

    def go(self):
        """Carries all steps out, and leaves the groups destroyed."""
        # Stock's ranks fail if one leaves a group that others still connect.
        dist.barrier()
        for number, step in enumerate(self.program.steps):
            self._may_be_lost(number)
            if step.late and step.late[0] == self.rank:
                self._be_late(step.late[1])
            if step.kind == "new_group":
                made = dist.new_group(list(step.ranks), timeout=self.timeout)
                self.groups[step.group], self.ranks[step.group] = made, step.ranks
                del made
                if self.rank in step.ranks:
                    dist.barrier(self.groups[step.group])
            elif step.kind == "destroy_group":
                self._wait(number)
                if self.rank in step.ranks:
                    dist.destroy_process_group(self.groups.pop(step.group))
            elif step.kind == "wait":
                self._wait(number)
            elif step.kind == "threads":
                self._threads(number, step)
            elif self.rank in self.ranks[step.group]:
                self._begin(number, step, self.groups[step.group])
        self._wait(len(self.program.steps))
        # Others could end well from here on.
        self.is_over = True
        self._end()

    def _end(self):
        if self.program.ends_with_barrier:
            for number in self.groups:
                if self.rank in self.ranks[number]:
                    dist.barrier(self.groups[number])
            self._look_at_dropped()
        # Stock carries out what is queued when the last reference goes.
        self.groups.clear()
        dist.destroy_process_group()
        self._look_at_dropped()

    def _look_at_dropped(self):
        for key, outputs, is_close in self.dropped:
            self.seen.results[key] = _digest(outputs, is_close)
        self.dropped = []

    def _begin(self, key, step, group):
        call = Call(self, step, key, group, self.ranks[step.group])
        work, outputs = COLLECTIVES[step.kind](call)
        is_inexact = not self.program.is_exact and step.operation in {"SUM", "PRODUCT"}
        # An average of three is rounded, by a division or by a product.
        is_close = step.kind.startswith("all_reduce") and (
            is_inexact or step.operation == "AVG"
        )
        if step.mode == "drop":
            self.dropped.append((key, outputs, is_close))
        elif step.mode == "sync" or work is None:
            self.seen.results[key] = _digest(outputs, is_close)
        elif step.mode == "then":
            # Of several tensors torch gives the future itself.
            future = getattr(work, "get_future", lambda: work)()
            future = future.then(
                lambda done: done.value() and [output.clone() for output in outputs]
            )
            self.pending.append((key, [future], None, is_close))
        else:
            works = work if isinstance(work, list) else [work]
            self.pending.append((key, works, outputs, is_close))

    def _wait(self, number):
        """Waits for what is pending, in an order of this rank's own."""
        dice = random.Random(f"{self.program.seed} {number} {self.rank}")
        pending, self.pending = self.pending, []
        dice.shuffle(pending)
        for key, works, outputs, is_close in pending:
            for work in works:
                found = work.wait()
            outputs = found if outputs is None else outputs
            self.seen.results[key] = _digest(outputs, is_close)

    def _threads(self, number, step):
        groups = [dist.new_group(timeout=self.timeout) for _ in step.threads]
        failed = []

        def carry_out(place):
            try:
                for turn, one in enumerate(step.threads[place]):
                    self._begin((number, place, turn), one, groups[place])
            except Exception as error:  # noqa: BLE001
                # Whoever joins this thread raises it.
                failed.append(error)

        threads = [
            threading.Thread(target=carry_out, args=(place,))
            for place in range(len(groups))
        ]
        order = list(threads)
        random.Random(f"{self.program.seed} {number} {self.rank}").shuffle(order)
        for thread in order:
            thread.start()
        for thread in order:
            thread.join()
        if failed:
            raise failed[0]
        self._wait(number)
        while groups:
            dist.destroy_process_group(groups.pop())

    def _be_late(self, seconds):
        before = resident_bytes()
        time.sleep(seconds)
        grown = resident_bytes() - before
        if grown - self.own_bytes > self.seen.stored_bytes - self.seen.own_bytes:
            self.seen.stored_bytes, self.seen.own_bytes = grown, self.own_bytes

    def _may_be_lost(self, number):
        loss = self.program.loss
        if loss is None or (loss.rank, loss.step) != (self.rank, number):
            return
        if loss.how == "timer":

            def kill():
                time.sleep(loss.after_s)
                if not self.is_over:
                    self._kill()

            threading.Thread(target=kill, daemon=True).start()
            return
        if loss.how == "kill":
            self._kill()
        self.say("lost", time.monotonic())
        if loss.how == "exit":
            os._exit(0)
        self.groups.clear()
        dist.destroy_process_group()
        raise LeftError

    def _kill(self):
        self.say("lost", time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)


class LeftError(Exception):
    """This rank has left, as the program says."""


def _digest(outputs, is_close):
    """Returns a digest of the bits and, of inexact ones, values as doubles."""
    whole, values = hashlib.blake2b(digest_size=8), []
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            whole.update(repr(output).encode())
            continue
        # Anew, since a tensor of one element is contiguous whatever its stride.
        plain = torch.empty(output.shape, dtype=output.dtype).copy_(output).flatten()
        whole.update(plain.view(torch.uint8).numpy().tobytes())
        if is_close:
            values.append(plain[:_KEPT].to(torch.complex128))
    kind = str(outputs[0].dtype) if is_close and outputs else None
    return whole.hexdigest(), kind, torch.cat(values).numpy() if values else None


def carry_out(program, rank, store, *, is_tuned, timeout_s, say):
    """Returns what a rank sees of a program.

    Args:
        program: Of `program_plan`.
        rank: This one.
        store: Where its ranks meet.
        is_tuned: Whether drivetrain-comm is enabled, or stock Gloo is to be seen.
        timeout_s: Of its groups.
        say: Called with a word and the time before this rank is lost.
    """
    os.environ["DRIVETRAIN_COMM_HOST"] = program.hosts[rank]
    if is_tuned:
        drivetrain_comm.enable(algorithm=program.algorithm)
    timeout = dt.timedelta(seconds=timeout_s)
    run = Run(program, rank, timeout, say)
    try:
        dist.init_process_group(
            "gloo",
            store=store,
            rank=rank,
            world_size=program.num_ranks,
            timeout=timeout,
        )
        run.go()
    except LeftError:
        pass
    except Exception as error:  # noqa: BLE001
        # Whatever it is, it is what the rank saw.
        run.seen.error_at_s = time.monotonic()
        run.seen.error = f"{type(error).__name__}: {error}"
        if program.loss is None:
            with suppress(Exception):
                dist.destroy_process_group()
    seen = run.seen
    del run
    # What freed tensors leave to the allocator is not theirs.
    _LIBC.malloc_trim(0)
    counts = [len([*Path(f"/proc/self/{kind}").iterdir()]) for kind in ("task", "fd")]
    seen.usage = (resident_bytes(), *counts)
    return seen
