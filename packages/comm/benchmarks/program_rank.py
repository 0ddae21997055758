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


class Call:
    """One collective in one rank: its tensors, and what torch's functions take."""

    def __init__(self, run, step, key, group, ranks):
        self.run, self.step, self.key = run, step, key
        self.group, self.ranks = group, ranks
        self.place = ranks.index(run.rank)
        self.root = ranks[step.root]
        self.is_root = self.root == run.rank
        self.is_async = step.mode != "sync"
        self.common = {"group": group, "async_op": self.is_async}
        self.operation = getattr(dist.ReduceOp, step.operation)

    def tensor(self, part=0, times=1):
        """Returns one with this rank's values."""
        step, run = self.step, self.run
        size, dtype = step.size * times, getattr(torch, step.dtype)
        seed = f"{run.program.seed} {self.key} {run.rank} {part}"
        digest = hashlib.sha256(seed.encode()).digest()
        dice = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        return self._laid(_values(dice, size, dtype, step, run.program.is_exact))

    def empty(self, times=1):
        """Returns one to be written."""
        dtype = getattr(torch, self.step.dtype)
        return self._laid(torch.zeros(self.step.size * times, dtype=dtype))

    def parts(self):
        """Returns a tensor for each rank of the group."""
        return [self.tensor(part) for part in range(len(self.ranks))]

    def empties(self):
        """Returns as many to be written."""
        return [self.empty() for _ in self.ranks]

    def _laid(self, plain):
        self.run.own_bytes += plain.nbytes
        layout, size = self.step.layout, plain.numel()
        if layout == "offset":
            whole = torch.zeros(size + 3, dtype=plain.dtype)
            found = whole[3:]
        elif layout == "transposed" and size > 1 and size % 2 == 0:
            found = torch.zeros(2, size // 2, dtype=plain.dtype).t()
        elif layout == "gaps" and size:
            found = torch.zeros(2 * size, dtype=plain.dtype)[::2]
        else:
            return plain
        return found.copy_(plain.view(found.shape))


def _values(dice, size, dtype, step, is_exact):
    if dtype == torch.bool:
        return torch.randint(0, 2, (size,), generator=dice).bool()
    if not dtype.is_floating_point and not dtype.is_complex:
        # Sums of integers are exact: they wrap.
        info = torch.iinfo(dtype)
        low, high = max(info.min, -(1 << 62)), min(info.max, 1 << 62)
        return torch.randint(low, high, (size,), generator=dice).to(dtype)
    if not is_exact:
        return torch.randn(size, generator=dice).to(dtype)
    if step.operation == "PRODUCT":
        chosen = torch.randint(0, 4, (size,), generator=dice)
        return torch.tensor([-2.0, -1.0, 1.0, 2.0])[chosen].to(dtype)
    return torch.randint(-8, 9, (size,), generator=dice).to(dtype)


def _all_reduce(call):
    x = call.tensor()
    return dist.all_reduce(x, op=call.operation, **call.common), [x]


def _all_reduce_coalesced(call):
    xs = [call.tensor(part) for part in range(1 + call.step.root)]
    return dist.all_reduce_coalesced(xs, op=call.operation, **call.common), xs


def _all_gather(call):
    out = call.empties()
    return dist.all_gather(out, call.tensor(), **call.common), out


def _all_gather_into_tensor(call):
    out = call.empty(len(call.ranks))
    return dist.all_gather_into_tensor(out, call.tensor(), **call.common), [out]


def _reduce(call):
    x = call.tensor()
    work = dist.reduce(x, call.root, op=call.operation, **call.common)
    return work, [x] if call.is_root else []


def _reduce_scatter(call):
    out = call.empty()
    operation = {"op": call.operation, **call.common}
    return dist.reduce_scatter(out, call.parts(), **operation), [out]


def _reduce_scatter_tensor(call):
    out, whole = call.empty(), call.tensor(times=len(call.ranks))
    operation = {"op": call.operation, **call.common}
    return dist.reduce_scatter_tensor(out, whole, **operation), [out]


def _broadcast(call):
    x = call.tensor()
    return dist.broadcast(x, call.root, **call.common), [x]


def _scatter(call):
    out, parts = call.empty(), call.parts() if call.is_root else None
    return dist.scatter(out, parts, src=call.root, **call.common), [out]


def _gather(call):
    out = call.empties() if call.is_root else None
    work = dist.gather(call.tensor(), out, dst=call.root, **call.common)
    return work, out or []


def _all_to_all(call):
    out = call.empties()
    return dist.all_to_all(out, call.parts(), **call.common), out


def _all_to_all_single(call):
    out, whole = call.empty(len(call.ranks)), call.tensor(times=len(call.ranks))
    return dist.all_to_all_single(out, whole, **call.common), [out]


def _send_recv(call):
    to = call.ranks[(call.step.root + 1) % len(call.ranks)]
    x, group = call.tensor(), call.group
    if call.is_root:
        return (dist.isend if call.is_async else dist.send)(x, to, group=group), []
    if call.run.rank != to:
        return None, []
    receive = dist.irecv if call.is_async else dist.recv
    return receive(x, call.root, group=group), [x]


def _recv_any_source(call):
    to = call.ranks[(call.step.root + 1) % len(call.ranks)]
    x, tag = call.tensor(), 1 + hash(call.key) % 1000
    if call.is_root:
        return dist.send(x, to, group=call.group, tag=tag), []
    if call.run.rank != to:
        return None, []
    dist.recv(x, group=call.group, tag=tag)
    return None, [x]


def _batch_isend_irecv(call):
    x, out, ranks = call.tensor(), call.empty(), call.ranks
    to = ranks[(call.place + 1) % len(ranks)]
    source = ranks[call.place - 1]
    pair = [dist.P2POp(dist.isend, x, to, call.group)]
    pair.append(dist.P2POp(dist.irecv, out, source, call.group))
    works = dist.batch_isend_irecv(pair)
    if not call.is_async:
        for work in works:
            work.wait()
        return None, [out]
    return works, [out]


def _barrier(call):
    return dist.barrier(**call.common), []


def _monitored_barrier(call):
    dist.monitored_barrier(call.group, timeout=call.run.timeout)
    return None, []


def _said(call):
    return {"rank": call.run.rank, "key": call.key, "text": "x" * call.step.size}


def _all_gather_object(call):
    out = [None] * len(call.ranks)
    dist.all_gather_object(out, _said(call), group=call.group)
    return None, out


def _broadcast_object_list(call):
    out = [_said(call), call.run.rank]
    dist.broadcast_object_list(out, call.root, group=call.group)
    return None, out


def _gather_object(call):
    out = [None] * len(call.ranks) if call.is_root else None
    dist.gather_object(_said(call), out, dst=call.root, group=call.group)
    return None, out or []


def _scatter_object_list(call):
    out, given = [None], [(_said(call), place) for place in call.ranks]
    given = given if call.is_root else None
    dist.scatter_object_list(out, given, src=call.root, group=call.group)
    return None, out


_COLLECTIVES = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "broadcast": _broadcast,
    "scatter": _scatter,
    "gather": _gather,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "send_recv": _send_recv,
    "recv_any_source": _recv_any_source,
    "batch_isend_irecv": _batch_isend_irecv,
    "barrier": _barrier,
    "monitored_barrier": _monitored_barrier,
    "all_gather_object": _all_gather_object,
    "broadcast_object_list": _broadcast_object_list,
    "gather_object": _gather_object,
    "scatter_object_list": _scatter_object_list,
}


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
        for number, step in enumerate(self.program.steps):
            self._may_be_lost(number)
            if step.late and step.late[0] == self.rank:
                self._be_late(step.late[1])
            if step.kind == "new_group":
                made = dist.new_group(list(step.ranks), timeout=self.timeout)
                self.groups[step.group], self.ranks[step.group] = made, step.ranks
                del made
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
        work, outputs = _COLLECTIVES[step.kind](call)
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
