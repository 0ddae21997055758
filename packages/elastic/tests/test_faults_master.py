"""What faults do to a master: nothing that was told is lost, and it serves again."""

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drivetrain_elastic import Master, MasterError, ShardClient
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic.journal import JournalFullError, Record, SqliteJournal
from drivetrain_elastic.protocol import messages as pb
from drivetrain_health.faults import Network, missing_because, skew_clock, small_disk


def needs(kind):
    why = missing_because(kind)
    return pytest.mark.skipif(why is not None, reason=f"no {kind} faults: {why}")


@pytest.fixture
def impatient(monkeypatch):
    """Clients that give up soon."""
    from drivetrain_elastic._data import _shard_client

    def make(address, token):
        return MasterClient(address, token, patience_s=0.2)

    monkeypatch.setattr(_shard_client, "MasterClient", make)


@needs("disk")
def test_journal_on_a_full_disk_adds_nothing_and_goes_on_when_there_is_room():
    with small_disk(1 << 20) as disk:
        journal = SqliteJournal(disk.path / "job.db")
        told = [Record("first", 1)]
        journal.append(told)
        with disk.fill():
            for _ in range(2):
                with pytest.raises(JournalFullError, match="make room on its disk"):
                    journal.append([Record("long", "x" * 50_000)])
            assert journal.records() == told
            with pytest.raises(JournalFullError):
                SqliteJournal(disk.path / "new.db")
        journal.append([Record("second", 2)])
        journal.close()
        again = SqliteJournal(disk.path / "job.db")
        assert again.records() == [*told, Record("second", 2)]
        again.close()


def fill_log(raw):
    """Writes to a journal until its log has used up the block that it has begun."""
    for number in range(40):
        request = pb.Dataset(
            name=f"filler-{number}", num_samples=1, shard_size=1, shuffle="none"
        )
        try:
            raw.call("OpenDataset", request)
        except MasterError:
            return


@pytest.mark.slow
@needs("disk")
def test_master_on_a_full_disk_says_so_loses_nothing_and_serves_again(
    impatient, caplog
):
    caplog.set_level(logging.INFO, logger="drivetrain_elastic")
    options = {"shard_size": 4, "shuffle": "none"}
    with small_disk(1 << 20) as disk:
        path = disk.path / "job.db"
        with Master(path, patience_s=0.5) as master:
            where = {"address": master.address, "token": master.token}
            raw = MasterClient(*where.values(), patience_s=0.2)
            worker = ShardClient("d", 40, **options, **where)
            silent = ShardClient("d", 40, **options, **where)
            next(iter(silent))
            silent._closing.set()  # it says nothing more, and holds a shard
            it = iter(worker)
            read = [next(it) for _ in range(4)]
            worker.commit()
            with disk.fill():
                fill_log(raw)
                with pytest.raises(MasterError, match="disk is full: make room"):
                    worker.commit(0)
                with pytest.raises(MasterError, match="disk is full"):
                    next(it)
                time.sleep(2.0)  # the silent worker's lease ends, which is not written
                assert not master.wait(0)
            read += list(worker)
            worker.commit()
            (status,) = [
                one
                for one in raw.call("GetStatus", pb.StatusRequest()).datasets
                if one.dataset.name == "d"
            ]
            assert (status.num_samples_done, status.finished) == (40, True)
            worker.close()
            silent._client.close()
            raw.close()
        # What the journal has makes sense to the next master, and is all of it.
        with Master(path, token=master.token) as second:
            raw = MasterClient(second.address, second.token)
            after = raw.call("GetStatus", pb.StatusRequest()).datasets
            assert status in after
            raw.close()
    assert sorted(read) == list(range(40))
    lines = [one.getMessage() for one in caplog.records]
    assert sum("until there is room" in line for line in lines) >= 1
    assert sum("there is room in the journal again" in line for line in lines) >= 1


@needs("disk")
def test_master_that_dies_on_a_full_disk_has_lost_nothing_that_it_told(impatient):
    options = {"shard_size": 4, "shuffle": "none"}
    with small_disk(1 << 20) as disk:
        path = disk.path / "job.db"
        with Master(path) as master:
            where = {"address": master.address, "token": master.token}
            worker = ShardClient("d", 40, **options, **where)
            it = iter(worker)
            read = [next(it) for _ in range(8)]
            worker.commit()
            full = disk.fill()
            with MasterClient(*where.values(), patience_s=0.2) as raw:
                fill_log(raw)
                with pytest.raises(MasterError, match="disk is full"):
                    next(it)
        full.heal()
        worker._client._patience_s = 20.0
        with Master(path, **where):
            read += list(worker)
            worker.commit()
            worker.close()
    assert read == list(range(40))


WORKER = """
import sys, time
from drivetrain_elastic import ShardClient
client = ShardClient("d", 60, shard_size=4, shuffle="none")
for index in client:
    print(index, flush=True)
    time.sleep(0.015)
    client.commit()
client.close()
"""


def start_master(folder, *, patience_s, start=subprocess.Popen, host=None, **options):
    """Starts a master as a program; returns it with the settings of its workers."""
    words = ["-m", "drivetrain_elastic.cli", "master", "--patience-s", str(patience_s)]
    words += [
        "--journal",
        str(folder / "job.db"),
        "--token-file",
        str(folder / "token"),
    ]
    if host:
        words += ["--address", f"{host}:29400"]
        words += ["--tls-certificate", str(folder / "cert.pem")]
        words += ["--tls-key", str(folder / "key.pem")]
    process = start(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, **options
    )
    address = process.stdout.readline().split()[-1]
    settings = {
        "DRIVETRAIN_ELASTIC_MASTER": address,
        "DRIVETRAIN_ELASTIC_TOKEN": (folder / "token").read_text(),
    }
    return process, settings


def events(folder):
    """Returns the records of a journal that no master has open, by kind."""
    journal = SqliteJournal(folder / "job.db")
    records = journal.records()
    journal.close()
    return records


@pytest.mark.slow
@needs("clock")
@pytest.mark.parametrize(
    ("seconds", "drift"), [(3600, 0.0), (-3600, 0.0), (0, 500.0)], ids=str
)
def test_leases_do_not_depend_on_the_wall_clock_of_the_master(tmp_path, seconds, drift):
    wrong = skew_clock(seconds, drift=drift)
    master, settings = start_master(tmp_path, patience_s=20, env=wrong)
    try:
        done = subprocess.run(
            [sys.executable, "-c", WORKER],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    finally:
        master.terminate()
        master.communicate()
    assert [int(line) for line in done.stdout.split()] == list(range(60))
    records = events(tmp_path)
    assert [one for one in records if one.kind == "returned"] == []
    (begun,) = [one for one in records if one.kind == "event"]
    # The master's clock was off indeed.
    ahead_s = begun.body[1] - time.time()
    assert ahead_s > 20 if drift else ahead_s == pytest.approx(seconds, abs=60)


FAR_WORKER = """
import functools, json, pathlib, sys
import grpc
from drivetrain_elastic._data import _shard_client
tls = grpc.ssl_channel_credentials(pathlib.Path(sys.argv[1]).read_bytes())
_shard_client.MasterClient = functools.partial(_shard_client.MasterClient, tls=tls)
exec(sys.argv[2])
"""


@pytest.fixture
def certificate(tmp_path):
    """Makes a certificate of node 0."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=node0"
    words += " -addext subjectAltName=IP:10.87.0.1 -keyout key.pem -out cert.pem"
    subprocess.run(words.split(), cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "cert.pem"


@pytest.mark.slow
@needs("network")
@pytest.mark.parametrize("one_way", [False, True])
def test_worker_that_was_cut_off_from_its_master_goes_on_when_that_is_healed(
    tmp_path, certificate, one_way
):
    with Network(2) as network:

        def start(command, **options):
            return network.start(0, command, **options)

        host = network.address(0)
        master, settings = start_master(tmp_path, patience_s=60, start=start, host=host)
        worker = network.start(
            1,
            [sys.executable, "-c", FAR_WORKER, str(certificate), WORKER],
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            text=True,
        )
        read = [int(worker.stdout.readline()) for _ in range(10)]
        with network.partition([1], [0], one_way=one_way):
            time.sleep(1.0)
            assert worker.poll() is None
        read += [int(line) for line in worker.communicate(timeout=60)[0].split()]
        assert worker.returncode == 0
    master.communicate()
    assert read == list(range(60))
    records = events(tmp_path)
    committed = [one.body for one in records if one.kind == "committed"]
    assert len({json.dumps(body) for body in committed}) == len(committed)
    assert Path(tmp_path / "job.db").exists()
