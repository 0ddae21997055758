"""Workers read each sample once, through a real master."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from drivetrain_core import ProgramError
from drivetrain_elastic import LostLeaseError, RefusedError, ShardClient
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic.protocol import messages as pb


@pytest.mark.parametrize("shuffle", ["none", "samples", "shards"])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_workers_read_each_sample_once_an_epoch(client, shuffle, prefetch):
    options = {"shuffle": shuffle, "num_epochs": 3, "prefetch": prefetch}
    workers = [client(num=50, **options) for _ in range(3)]
    read = [[] for _ in workers]

    def work(worker, mine):
        for index in worker:
            mine.append((worker.epoch, index))
            worker.commit()

    threads = [
        threading.Thread(target=work, args=pair)
        for pair in zip(workers, read, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    every = {(epoch, index) for epoch in range(3) for index in range(50)}
    assert Counter(pair for mine in read for pair in mine) == Counter(every)


def test_shuffled_epochs_differ_and_shards_stay_together(client):
    def order(name, **options):
        return list(client(name, num=40, num_epochs=2, **options))

    whole = order("samples", shuffle="samples", seed=1)
    assert whole[:40] != whole[40:]
    assert whole != order("other seed", shuffle="samples", seed=2)
    assert whole == order("same seed", shuffle="samples", seed=1)
    shards = order("shards", shuffle="shards")
    starts = [shards[at] for at in range(0, 80, 4)]
    assert all(shards[i + 3] == shards[i] + 3 for i in range(0, 80, 4))
    assert sorted(starts[:10]) == list(range(0, 40, 4)) != starts[:10]


def test_what_a_worker_gave_back_is_read_by_another(client):
    first, second = client(), client()
    it = iter(first)
    assert [next(it) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    first.commit(5)
    first.close()
    assert list(second) == [5, 6, 7, *range(8, 20)]


def test_commit_counts_from_the_first_that_is_not_committed(client):
    worker = client()
    it = iter(worker)
    for _ in range(7):
        next(it)
    worker.commit(3)
    worker.commit(0)
    with pytest.raises(ProgramError, match=r"^4 samples were handed out and not"):
        worker.commit(5)
    worker.commit()
    worker.give_back()
    assert list(client()) == list(range(7, 20))


def test_worker_that_has_samples_to_commit_does_not_wait_for_others(client):
    first, second = client(num=8), client(num=8)
    assert [next(iter(worker)) for worker in (first, second)] == [0, 4]
    # Each holds a shard. One that waited for the other's would wait for ever.
    assert list(first) == [1, 2, 3]
    assert not first.finished
    first.commit()
    second.give_back()
    assert [index for index in first if first.commit() is None] == [4, 5, 6, 7]
    assert first.finished


@pytest.mark.slow
def test_worker_that_is_silent_loses_its_shards(job, client, monkeypatch):
    master = job(patience_s=0.5)
    monkeypatch.setattr("drivetrain_elastic._data._shard_client._SIGN_OF_LIFE_S", 3600)
    silent = client(master=master, worker="silent")
    next(iter(silent))
    monkeypatch.setattr("drivetrain_elastic._data._shard_client._SIGN_OF_LIFE_S", 0.1)
    # It waits until the shards of the silent one come back.
    other, read = client(master=master), []
    for index in other:
        read.append(index)
        other.commit()
    assert sorted(read) == list(range(20))
    with pytest.raises(LostLeaseError, match="lease 1 of dataset 'd' has ended"):
        silent.commit()


@pytest.mark.slow
def test_worker_that_lives_keeps_its_shards_while_it_trains(job, client, monkeypatch):
    master = job(patience_s=1.0)
    monkeypatch.setattr("drivetrain_elastic._data._shard_client._SIGN_OF_LIFE_S", 0.1)
    worker = client(master=master)
    next(iter(worker))
    time.sleep(2.5)
    worker.commit()


def test_shards_of_a_reply_that_was_lost_are_leased_again(job, client):
    worker = client(worker="w")
    next(iter(worker))
    with MasterClient(*_where(worker)) as raw:
        lost = raw.call(
            "LeaseShards",
            pb.LeaseRequest(dataset="d", worker="w", num_shards=2, held=[1]),
        )
    assert [shard.start for shard in lost.shards] == [4, 8]
    assert list(worker) == list(range(1, 20))


def _where(worker):
    client = worker._client
    return client.address, client._metadata[0][1].removeprefix("Bearer ")


def test_indices_come_with_the_shards_if_asked_for(client):
    worker = client(num=10, shuffle="samples", seed=4)
    with MasterClient(*_where(worker)) as raw:
        reply = raw.call(
            "LeaseShards",
            pb.LeaseRequest(dataset="d", worker="tf", num_shards=9, with_indices=True),
        )
        told = [index for shard in reply.shards for index in shard.indices]
        raw.call(
            "ReturnShards",
            pb.ReturnRequest(dataset="d", worker="tf", fences=[1, 2, 3]),
        )
    assert told == list(worker)


def test_indices_of_a_huge_shard_are_refused_and_it_is_not_leased(client):
    worker = client(num=1 << 60, shard_size=1 << 50)
    with MasterClient(*_where(worker)) as raw:
        request = pb.LeaseRequest(dataset="d", worker="tf", num_shards=1)
        request.with_indices = True
        with pytest.raises(RefusedError, match="too large for a reply with their"):
            raw.call("LeaseShards", request)
        assert not raw.call("GetStatus", pb.StatusRequest()).datasets[0].num_leased


def test_source_that_grows_is_read_as_it_comes(client):
    writer, reader = client(num=None), client(num=None)
    read = []

    def work():
        # A reader that is faster than the writer stops, to commit what it has read.
        while not reader.finished:
            read.extend(reader)
            reader.commit()

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(3):
        writer.grow(5)
    writer.grow(2, close=True)
    thread.join(60)
    assert read == list(range(17))
    with pytest.raises(RefusedError, match="grows no more"):
        writer.grow(1)


def test_dataset_that_stands_as_another_is_refused(client):
    client(num=20)
    says = r"'d' stands already: num_samples is 20, not 30; seed is 0, not 1"
    with pytest.raises(RefusedError, match=says):
        client(num=30, seed=1)


def test_dataset_of_size_zero_is_refused(client):
    with pytest.raises(ProgramError, match="num_samples must be at least 1, got 0"):
        client(num=0)


def test_client_without_a_master_says_what_to_set():
    with pytest.raises(ProgramError, match="set DRIVETRAIN_ELASTIC_MASTER"):
        ShardClient("d", 10, shard_size=1)


def test_reports_of_an_unknown_dataset_are_refused(job):
    master = job()
    with MasterClient(master.address, master.token) as raw:
        request = pb.CommitRequest(dataset="none", worker="w")
        with pytest.raises(RefusedError, match="no dataset 'none'; there is none"):
            raw.call("CommitShards", request)


READER = """
import sys
from drivetrain_elastic import ShardClient
address, token, path = sys.argv[1:]
with open(path, "a") as file, ShardClient("d", 600, shard_size=3, address=address,
        token=token, seed=9) as client:
    for index in client:
        client.commit()
        # What is written here was committed before.
        file.write(f"{index}\\n")
        file.flush()
"""


SEEDS = [pytest.param(seed, marks=pytest.mark.faults) for seed in range(1, 51)]


@pytest.mark.parametrize("seed", SEEDS)
def test_masters_and_workers_that_are_killed_lose_nothing(tmp_path, seed):
    dice = random.Random(seed)
    token = tmp_path / "token"
    words = [sys.executable, "-m", "drivetrain_elastic.cli", "master"]
    words += ["--journal", str(tmp_path / "job.db"), "--token-file", str(token)]
    # What a worker held that is gone comes back in this time.
    words += ["--patience-s", "1.5"]

    def start(address):
        master = subprocess.Popen(
            [*words, "--address", address], stdout=subprocess.PIPE, text=True
        )
        line = master.stdout.readline()
        return master, line.split()[-1]

    def read(address, at):
        log = str(tmp_path / f"read-{at}")
        arguments = [address, token.read_text(), log]
        return subprocess.Popen([sys.executable, "-c", READER, *arguments])

    master, address = start("127.0.0.1:0")
    readers = [read(address, at) for at in range(dice.randint(2, 4))]
    num_killed = 0
    try:
        for _ in range(6):
            time.sleep(dice.uniform(0.2, 0.8))
            os.kill(master.pid, signal.SIGKILL)
            master.wait()
            master.stdout.close()
            master, _ = start(address)
            if num_killed < 4:
                at = dice.randrange(len(readers))
                readers[at].kill()
                readers[at].wait()
                # One comes back, or two, and at times none.
                num_new = dice.choice([0, 1, 1, 2]) if len(readers) > 1 else 1
                new = [read(address, f"{at}-{num_killed}-{i}") for i in range(num_new)]
                readers[at : at + 1] = new
                num_killed += 1
        assert {reader.wait(60) for reader in readers} == {0}
    finally:
        for process in (*readers, master):
            process.kill()
            process.wait()
        master.stdout.close()
    logs = tmp_path.glob("read-*")
    lines = [int(line) for log in logs for line in log.read_text().split()]
    # A worker that dies after a commit and before its line has read the sample, too.
    assert len(lines) == len(set(lines)) >= 600 - num_killed
