"""Random programs of collectives: under drivetrain-comm what they are under stock Gloo.

Each program runs in ranks under stock Gloo and in others under `enable()`: the same bits, no
hang, no memory that grows. In others a rank is killed or leaves: all others get an error.
`--number 1000` says how many programs, `--first` from which seed, `--only SEED` runs one.
"""

import argparse
import collections
import faulthandler
import gc
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
import warnings
from multiprocessing.connection import wait
from pathlib import Path

import torch

# Once, before ranks are forked: each would import it at its first collective.
import torch._dynamo
import torch.distributed as dist
from program_plan import MIB, make_program
from program_rank import carry_out

from drivetrain_testing import Row

TIMEOUT_S, LOSS_TIMEOUT_S = 40.0, 5.0
# What a machine with fewer cores than ranks needs beside a time-out.
SLACK_S = 5.0
LIMIT_S = 90.0
# What a late rank may store of others' beside its own tensors, and what measuring it adds.
MOST_STORED, NOISE = 16 * MIB, 8 * MIB
# By how much a rank may grow more than stock's, from program `_SETTLED` to the last.
MOST_GROWN, _SETTLED = 16 * MIB, 100
# Every such program loses a rank.
_EVERY = 10
RANKS = 4
_NAMES_A_LOSS = re.compile(
    r"ranks? \d|closed by peer|reset by peer|timed out|timeout|lost|broken pipe"
    r"|was aborted|in vain",
    re.IGNORECASE,
)
# Relative to the largest value of a tensor.
_CLOSE = {
    "torch.float16": 4e-3,
    "torch.bfloat16": 4e-2,
    "torch.float32": 2e-6,
    "torch.float64": 4e-15,
    "torch.complex64": 2e-6,
}
_FORK = multiprocessing.get_context("fork")


def _serve_store(says):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    says.send(store.port)
    # Until whoever started it is gone.
    says.poll(None)


def _serve(orders, is_tuned, rank, port, dump):
    """Carries out what the other end of a pipe asks for, in one rank."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with Path(dump).open("w") as file:
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        # What is lost is told by errors; torch warns of it as well.
        os.dup2(file.fileno(), 2)
        while (order := _received(orders)) is not None:
            program, name, timeout_s = order
            client = dist.TCPStore("127.0.0.1", port, is_master=False)
            seen = carry_out(
                program,
                rank,
                dist.PrefixStore(name, client),
                is_tuned=is_tuned,
                timeout_s=timeout_s,
                say=lambda *words: orders.send(words),
            )
            orders.send(("seen", seen))
            del client, seen
            gc.collect()
    os._exit(0)


def _received(connection):
    try:
        return connection.recv()
    except EOFError:
        return None


class Ranks:
    """Processes of ranks, which live for many programs.

    Args:
        kind: `stock` or `tuned`.
        num_ranks: How many.
        port: Of the store.
        folder: For the stacks of those that hang.
    """

    def __init__(self, kind, num_ranks, port, folder):
        self.kind, self.folder = kind, Path(folder)
        self.num_programs = 0
        self.processes, self.pipes, self.dumps = [], [], []
        for rank in range(num_ranks):
            here, there = _FORK.Pipe()
            dump = self.folder / f"{kind}-{os.getpid()}-{id(self)}-{rank}.txt"
            words = (there, kind == "tuned", rank, port, dump)
            process = _FORK.Process(target=_serve, args=words, daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self.pipes.append(here)
            self.dumps.append(dump)

    def begin(self, program, timeout_s):
        """Has the ranks carry out a program."""
        self.num_programs += 1
        name = f"{self.kind}/{id(self)}/{self.num_programs}"
        for pipe in self.pipes[: program.num_ranks]:
            pipe.send((program, name, timeout_s))

    def end(self, program):
        """Returns what each rank saw, or None for what it did not say, and a loss's time."""
        seen, lost_at_s = [None] * program.num_ranks, None
        open_pipes = {self.pipes[rank]: rank for rank in range(program.num_ranks)}
        until_s = time.monotonic() + LIMIT_S
        while open_pipes:
            left_s = until_s - time.monotonic()
            ready = wait(list(open_pipes), max(left_s, 0))
            if not ready:
                break
            for pipe in ready:
                said = _said(pipe)
                if said and said[0] == "lost":
                    lost_at_s = said[1]
                    continue
                seen[open_pipes.pop(pipe)] = said and said[1]
        return seen, lost_at_s

    def stacks(self):
        """Returns where the ranks are, in words."""
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        return [dump.read_text() for dump in self.dumps]

    def close(self):
        """Kills them."""
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()


def _said(pipe):
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        return None


def differences(program, stock, tuned):
    """Returns in words how what tuned ranks saw differs from stock's."""
    found = []
    for rank, (one, other) in enumerate(zip(stock, tuned, strict=True)):
        if one is None or other is None:
            found.append(f"rank {rank}: {one and one.error} under stock, none tuned")
            continue
        if one.error or other.error:
            found.append(f"rank {rank}: stock {one.error!r}, tuned {other.error!r}")
            continue
        if one.results.keys() != other.results.keys():
            found.append(f"rank {rank}: other steps")
        for key in sorted(one.results.keys() & other.results.keys(), key=str):
            if not _alike(one.results[key], other.results[key]):
                found.append(f"rank {rank}, step {key}: {_name(program, key)}")
    if found:
        return found
    # What is reduced is the same on all ranks, whatever the order of its sums.
    groups = {0: tuple(range(program.num_ranks))}
    for number, step in enumerate(program.steps):
        if step.kind == "new_group":
            groups[step.group] = step.ranks
        if step.kind in {"all_reduce", "all_reduce_coalesced"}:
            ranks = groups[step.group]
            if len({tuned[rank].results[number][0] for rank in ranks}) > 1:
                found.append(f"step {number}: ranks differ, {_name(program, number)}")
    return found


def _alike(one, other):
    if one[1] is None or one[0] == other[0]:
        return one[0] == other[0]
    a, b = one[2], other[2]
    return a.shape == b.shape and abs(a - b).max() <= _CLOSE[one[1]] * abs(a).max()


def _name(program, key):
    if isinstance(key, tuple):
        return str(program.steps[key[0]].threads[key[1]][key[2]])
    return str(program.steps[key])


def stored(seen):
    """Returns what a late rank stored of others' at most, beside its own tensors."""
    return max((s.stored_bytes - s.own_bytes for s in seen if s), default=0)


def untold(program, seen, lost_at_s):
    """Returns in words which survivors of a loss were not told of it, and the slowest."""
    found, slowest = [], 0.0
    for rank, one in enumerate(seen):
        if rank == program.loss.rank:
            continue
        if one is None:
            found.append(f"rank {rank} hangs, or has died")
        elif one.error is None:
            found.append(f"rank {rank} has no error")
        elif not _NAMES_A_LOSS.search(one.error):
            found.append(f"rank {rank}: {one.error}")
        elif lost_at_s is not None:
            # Where a group is made, Gloo tries to connect five times.
            times = 5 if "connectFullMesh" in one.error else 1
            seconds = one.error_at_s - lost_at_s
            if seconds > times * LOSS_TIMEOUT_S + SLACK_S:
                found.append(f"rank {rank} after {seconds:.1f} s: {one.error}")
            slowest = max(slowest, seconds / times)
    return found, slowest


class Trial:
    """Runs programs, and keeps what was wrong."""

    def __init__(self, folder):
        here, there = _FORK.Pipe()
        self.folder, self.port = folder, None
        process = _FORK.Process(target=_serve_store, args=(there,), daemon=True)
        process.start()
        self._store, self.port = (process, here), here.recv()
        self.ranks = {kind: self._ranks(kind) for kind in ("stock", "tuned")}
        self.wrong, self.stored, self.slowest_s = [], 0, 0.0
        self.num_equal = self.num_told = 0
        # Such programs do not count.
        self.stock_fails = []
        self.usage = collections.defaultdict(list)
        self.errors = collections.Counter()

    def _ranks(self, kind, num_ranks=RANKS):
        return Ranks(kind, num_ranks, self.port, self.folder)

    def run(self, seed):
        """Runs the program of a seed, and returns what was wrong."""
        program = make_program(seed, loses_a_rank=seed % _EVERY == _EVERY - 1)
        wrong = self._lose(program) if program.loss else self._compare(program)
        if wrong:
            self.wrong.append({"seed": seed, "wrong": wrong[:8]})
        return wrong

    def _compare(self, program):
        seen = {}
        for ranks in self.ranks.values():
            ranks.begin(program, TIMEOUT_S)
        # Tuned first: the destructor of stock's group may wait for ever for Python's lock.
        for kind, ranks in sorted(self.ranks.items(), reverse=True):
            seen[kind], _ = ranks.end(program)
            if None in seen[kind]:
                said = [f"{kind} hangs", *ranks.stacks()]
                for each in self.ranks.values():
                    each.close()
                self.ranks = {kind: self._ranks(kind) for kind in self.ranks}
                if kind == "stock":
                    self.stock_fails.append(program.seed)
                return said if kind == "tuned" else []
            usage = [one.usage for one in seen[kind]]
            self.usage[kind].append(
                [max(values) for values in zip(*usage, strict=True)]
            )
        if any(one.error for one in seen["stock"]):
            self.stock_fails.append(program.seed)
            return []
        wrong = differences(program, **seen)
        most = stored(seen["tuned"])
        if most > MOST_STORED + NOISE:
            wrong.append(f"a late rank stored {most / MIB:.0f} MiB of others'")
        self.stored = max(self.stored, most)
        self.num_equal += not wrong
        return wrong

    def _lose(self, program):
        ranks = self._ranks("tuned", program.num_ranks)
        try:
            ranks.begin(program, LOSS_TIMEOUT_S)
            seen, lost_at_s = ranks.end(program)
            if lost_at_s is None:
                # The program was over before its rank was to be killed.
                return []
            wrong, slowest = untold(program, seen, lost_at_s)
            if any("hangs" in words for words in wrong):
                wrong += ranks.stacks()
        finally:
            ranks.close()
        for one in seen:
            if one and one.error:
                self.errors[re.sub(r"\d+", "#", one.error)[:90]] += 1
        self.slowest_s = max(self.slowest_s, slowest)
        self.num_told += not wrong
        return wrong

    def grown(self, kind):
        """Returns by how much memory, threads and files of ranks grew, settled to last."""
        rows = self.usage[kind]
        few = max(1, min(20, len(rows) // 4))
        begin = min(_SETTLED, len(rows) // 2)
        early, last = rows[begin : begin + few], rows[-few:]
        return [
            max(column) - max(before)
            for column, before in zip(
                zip(*last, strict=True), zip(*early, strict=True), strict=True
            )
        ]

    def close(self):
        """Ends all processes."""
        for ranks in self.ranks.values():
            ranks.close()
        self._store[0].kill()


def run_programs(number, first=0, say=None):
    """Returns the row of `number` programs, from seed `first` on."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(folder)
        try:
            for seed in range(first, first + number):
                wrong = trial.run(seed)
                if wrong and say:
                    say(f"seed {seed}:\n  " + "\n  ".join(wrong))
                if say and (seed + 1) % 50 == 0:
                    say(f"{seed + 1} after {time.monotonic() - begun_s:.0f} s")
        finally:
            trial.close()
    grown = {kind: trial.grown(kind) for kind in trial.usage}
    memory, threads, files = grown.get("tuned", (0, 0, 0))
    stock_memory = grown.get("stock", (0,))[0]
    figure = (
        f"{trial.num_equal} equal to stock, {trial.num_told} losses told after "
        f"{trial.slowest_s:.1f} s at most, {len(trial.wrong)} wrong, in "
        f"{len(trial.stock_fails)} stock failed; a rank grew by "
        f"{memory / MIB:.0f} MiB (stock's {stock_memory / MIB:.0f}), {threads} threads, "
        f"{files} files, and stored "
        f"{trial.stored / MIB:.0f} MiB of others' while late"
    )
    details = {
        "wrong": trial.wrong,
        "grown": grown,
        "errors": trial.errors,
        "stock_fails": trial.stock_fails,
        "seconds": round(time.monotonic() - begun_s, 1),
    }
    holds = not trial.wrong and memory - stock_memory <= MOST_GROWN
    return Row(figure=figure, holds=holds, proven_on="cpu-gloo", details=details)


def random_programs(quick):
    """Runs 1,000 programs, or 20."""
    return run_programs(20 if quick else 1000)


def main():
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--number", type=int, default=1000, help="how many programs")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first")
    parser.add_argument("--only", type=int, metavar="SEED", help="this program only")
    options = parser.parse_args()
    first, number = options.first, options.number
    if options.only is not None:
        first, number = options.only, 1
        print(make_program(first, loses_a_rank=first % _EVERY == _EVERY - 1))
    row = run_programs(number, first, say=lambda text: print(text, flush=True))
    print(row.figure)
    print(json.dumps(row.details, indent=2))
    return not row.holds


if __name__ == "__main__":
    sys.exit(main())
