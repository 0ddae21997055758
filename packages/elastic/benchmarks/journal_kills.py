"""Masters that are killed while they decide: what they had told stands in the journal."""

import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path

from drivetrain_elastic._master._dataset_records import apply_record
from drivetrain_elastic.journal import SqliteJournal
from drivetrain_testing import Row

_WRITER = """
import asyncio, random, sys
from drivetrain_elastic._master._datasets import Datasets
from drivetrain_elastic._master._journal_writer import Ledger
from drivetrain_elastic.decisions.shards import DatasetSpec
from drivetrain_elastic.journal import SqliteJournal

async def main():
    journal = SqliteJournal(sys.argv[1])
    dice = random.Random(int(sys.argv[2]))
    datasets = Datasets(Ledger(journal))
    for record in journal.records():
        datasets.replay(record)
    spec = DatasetSpec(name="d", num_samples=1 << 40, shard_size=100)
    await datasets.open(spec)

    async def worker(name):
        while True:
            held = [f for f, one in datasets.find("d").leased.items() if one.worker == name]
            leases, _ = await datasets.lease("d", name, dice.randint(1, 5), 1.0, held)
            for fence, shard, _ in leases:
                if dice.random() < 0.2:
                    await datasets.give_back("d", name, [fence], False, "dice")
                    continue
                await datasets.commit("d", name, [(fence, shard.end)])
                print(shard.epoch, shard.start, shard.end, flush=True)

    await asyncio.gather(*(worker(name) for name in "abcd"))

asyncio.run(main())
"""


def journal_kills(quick):
    """Kills writers at random points, and tears the end of the log in every other."""
    num_kills = 10 if quick else 200
    dice, wrong, told = random.Random(0), 0, 0
    for run in range(num_kills):
        with tempfile.TemporaryDirectory() as folder:
            lines = killed(folder, run, dice)
            told += len(lines)
            is_torn = run % 2 == 1
            wrong += not holds(folder, lines, is_torn, dice)
    return Row(
        figure=f"{wrong} of {num_kills} kills lost something of {told} commits told",
        holds=wrong == 0,
    )


def killed(folder, run, dice):
    """Runs a master until it is killed; returns the ranges whose commit it told."""
    path = str(Path(folder, "job.db"))
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, path, str(run)],
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = [writer.stdout.readline() for _ in range(dice.randint(1, 60))]
    os.kill(writer.pid, signal.SIGKILL)
    lines += writer.stdout.readlines()
    writer.stdout.close()
    writer.wait()
    # The last line may be cut short.
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [tuple(map(int, words)) for words in whole]


def holds(folder, lines, is_torn, dice):
    """Returns whether the journal opens, and has each told commit once."""
    log = Path(folder, "job.db-wal")
    if is_torn and log.exists():
        # What a power cut leaves of a write that was not told: garbage at the end.
        with log.open("ab") as file:
            file.write(dice.randbytes(dice.randint(1, 5000)))
    journal = SqliteJournal(Path(folder, "job.db"))
    states, done = {}, set()
    for record in journal.records():
        if record.kind == "committed":
            _, fence, upto = record.body
            shard = states["d"].leased[fence].shard
            done.add((shard.epoch, shard.start, upto))
        apply_record(states, record)
    journal.close()
    state = states["d"]
    every = deque(shard for shard in state.waiting)
    every += [one.shard for one in state.leased.values()]
    ranges = sorted([*done, *((s.epoch, s.start, s.end) for s in every)])
    is_whole = all(a[2] == b[1] for a, b in itertools.pairwise(ranges))
    return set(lines) <= done and is_whole and ranges[0][1] == 0


if __name__ == "__main__":
    print(journal_kills(False).figure)
