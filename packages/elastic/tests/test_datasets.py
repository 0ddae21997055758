"""What a master decides about datasets counts once, whatever is slow or lost meanwhile."""

import asyncio
import threading
from unittest.mock import Mock

import pytest

from drivetrain_elastic import Master, RefusedError, ShardClient
from drivetrain_elastic._master._dataset_records import opened
from drivetrain_elastic._master._datasets import Datasets
from drivetrain_elastic._master._journal_writer import JournalWriter
from drivetrain_elastic.decisions.shards import DatasetSpec
from drivetrain_elastic.journal import JournalFullError, Record
from drivetrain_elastic.protocol import messages as pb


class MemoryJournal:
    """A journal that is full for some appends, or slow."""

    incarnation = 1

    def __init__(self, rows=()):
        self.rows, self.writers = list(rows), []
        self.num_refusals = 0
        # Appends wait for it.
        self.is_open = threading.Event()
        self.is_open.set()

    def records(self):
        return list(self.rows)

    def append(self, records):
        self.is_open.wait(60)
        if self.num_refusals:
            self.num_refusals -= 1
            message = "there is no room"
            raise JournalFullError(message)
        self.rows += records

    def replace(self, records):
        self.rows = list(records)

    def close(self):
        pass

    def kinds(self, kind):
        return [record.body for record in self.rows if record.kind == kind]


@pytest.fixture
def journal():
    one = MemoryJournal()
    yield one
    for writer in one.writers:
        asyncio.run(writer.close())


def source(master, name="d"):
    options = {"address": master.address, "token": master.token}
    return ShardClient(name, None, shard_size=4, shuffle="none", **options)


def status(client):
    (one,) = client.call("GetStatus", pb.StatusRequest()).datasets
    return one


@pytest.mark.parametrize("close", [False, True])
def test_growth_that_meets_a_full_journal_counts_once(journal, close):
    with Master(journal) as master, source(master) as writer:
        journal.num_refusals = 3
        writer.grow(100, close=close)
        assert status(writer._client).dataset.num_samples == 100
    assert len(journal.kinds("appended")) == 1
    assert len(journal.kinds("closed")) == close


def test_growths_of_several_writers_all_count(journal):
    with Master(journal) as master, source(master) as one, source(master) as other:
        for _ in range(2):
            journal.num_refusals = 2
            one.grow(10)
            other.grow(1)
        assert status(one._client).dataset.num_samples == 22
        other.grow(5, close=True)
        with pytest.raises(RefusedError, match="grows no more"):
            one.grow(1)


@pytest.mark.parametrize("is_short", [False, True])
def test_growth_that_the_last_master_has_written_counts_once(
    journal, is_short, monkeypatch
):
    growth = pb.Growth(dataset="d", num_samples=7, close=True, caller="a", call=1)
    with Master(journal) as master, source(master) as writer:
        writer._client.call("GrowDataset", growth)
    if is_short:
        monkeypatch.setattr("drivetrain_elastic._master._master._MOST_RECORDS", 1)
    for _ in range(2):
        with Master(journal) as master, source(master) as writer:
            # Its writer has not got the reply.
            reply = writer._client.call("GrowDataset", growth)
            assert reply.dataset.num_samples == 7
            with pytest.raises(RefusedError, match="grows no more"):
                writer.grow(7)
    assert bool(journal.kinds("dataset-state")) == is_short


def spec(name="d", **changes):
    usual = {"num_samples": 20, "shard_size": 4, "shuffle": "none"}
    return DatasetSpec(name=name, **{**usual, **changes})


async def until(condition):
    """Lets others work until something is so."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def deal(datasets, worker, num_shards=1, *, name="d", held=()):
    leases, _ = await datasets.lease(name, worker, num_shards, 0.0, held)
    return [one.fence for one in leases]


def made(journal, **options):
    journal.writers.append(JournalWriter(journal))
    return Datasets(journal.writers[-1], **options)


def test_worker_that_comes_back_while_it_expires_is_waited_for_again(journal):
    async def work():
        datasets = made(journal, patience_s=0.0)
        await datasets.open(spec())
        assert await deal(datasets, "w") == [1]
        journal.is_open.clear()
        expiry = asyncio.create_task(datasets.expire(()))
        await until(lambda: datasets.find("d").waiting)
        lease = asyncio.create_task(deal(datasets, "w"))
        await until(lambda: datasets.find("d").leased)
        journal.is_open.set()
        assert await lease == [2]
        await expiry
        # It says nothing any more.
        await datasets.expire(())
        assert not datasets.find("d").leased

    asyncio.run(work())


def test_dataset_is_opened_while_shards_expire(journal):
    async def work():
        datasets = made(journal, patience_s=0.0)
        for name in "ab":
            await datasets.open(spec(name))
            await deal(datasets, "w", name=name)
        journal.is_open.clear()
        expiry = asyncio.create_task(datasets.expire(()))
        await until(lambda: datasets.find("a").waiting)
        opening = asyncio.create_task(datasets.open(spec("c")))
        await until(lambda: "c" in datasets.states)
        journal.is_open.set()
        await asyncio.gather(expiry, opening)
        assert [len(datasets.find(name).waiting) for name in "abc"] == [1, 1, 0]

    asyncio.run(work())


def test_shards_of_all_datasets_expire_though_the_journal_is_full(journal):
    async def work():
        datasets = made(journal, patience_s=0.0)
        for name in "ab":
            await datasets.open(spec(name))
            await deal(datasets, "w", name=name)
        journal.num_refusals = 1
        with pytest.raises(JournalFullError):
            await datasets.expire(())
        await datasets.expire(())
        assert [len(datasets.find(name).leased) for name in "ab"] == [0, 0]
        await datasets.open(spec("c"))
        assert [body[0] for body in journal.kinds("returned")] == ["a", "b"]

    asyncio.run(work())


def test_shards_that_come_back_wake_those_who_wait_though_the_journal_is_full(journal):
    async def work():
        datasets = made(journal)
        await datasets.open(spec(num_samples=4))
        (fence,) = await deal(datasets, "w")
        waiting = asyncio.create_task(datasets.lease("d", "other", 1, 600.0, ()))
        await until(lambda: datasets._changes)
        journal.num_refusals = 1
        with pytest.raises(JournalFullError):
            await datasets.give_back("d", "w", [fence], False, "gone")
        async with asyncio.timeout(60):
            leases, _ = await waiting
        assert [one.worker for one in leases] == ["other"]

    asyncio.run(work())


def test_replay_looks_at_each_record_once(journal, monkeypatch):
    now_s = Mock(return_value=0.0)
    num = 200
    rows = [[fence, f"w{fence}", fence - 1, 0, 0, 1, 0] for fence in range(1, num + 1)]
    journal.append([opened(spec(num_samples=1, num_epochs=num))])
    journal.append([Record("leased", ["d", [row]]) for row in rows])
    datasets = made(journal, patience_s=60.0)
    looked = Mock(wraps=datasets.hear)
    monkeypatch.setattr(datasets, "hear", looked)
    clock = Mock(monotonic=now_s)
    monkeypatch.setattr("drivetrain_elastic._master._datasets.time", clock)
    for record in journal.records():
        assert datasets.replay(record)
    assert not now_s.called
    datasets.begin()
    assert looked.call_count == num
    now_s.return_value = 61.0
    asyncio.run(datasets.expire(()))
    assert len(datasets.find("d").waiting) == num


@pytest.mark.slow
def test_shards_of_a_worker_that_died_with_the_master_come_back(journal):
    with Master(journal) as master, source(master) as writer:
        writer.grow(4, close=True)
        request = pb.LeaseRequest(dataset="d", worker="dead", num_shards=1)
        assert writer._client.call("LeaseShards", request).shards
    with Master(journal, patience_s=0.1) as master, source(master) as reader:
        assert list(reader) == [0, 1, 2, 3]


def test_lease_that_is_repeated_is_given_once(journal):
    async def work():
        datasets = made(journal)
        await datasets.open(spec())
        await deal(datasets, "w", 2)
        # The reply was lost: the worker knows of neither.
        again = await deal(datasets, "w", 2)
        assert sorted(datasets.find("d").leased) == again == [3, 4]
        # This one holds one of them, and asks twice for one more.
        for fence in (5, 6):
            assert await deal(datasets, "w", held=[3]) == [fence]
            assert sorted(datasets.find("d").leased) == [3, fence]

    asyncio.run(work())


def test_call_that_waits_gets_nothing_once_its_worker_has_asked_again(journal):
    async def work():
        datasets = made(journal)
        await datasets.open(spec(num_samples=8))
        await deal(datasets, "other", 2)

        def ask():
            return asyncio.create_task(datasets.lease("d", "w", 1, 600.0, ()))

        first = ask()
        await until(lambda: datasets._changes)
        asking = dict(datasets._asking)
        second = ask()
        await until(lambda: datasets._asking != asking)
        await datasets.give_back("d", "other", [1, 2], False, "gone")
        async with asyncio.timeout(60):
            assert await first == ([], False)
            leases, _ = await second
        assert sorted(datasets.find("d").leased) == [leases[0].fence]
        assert not datasets._asking

    asyncio.run(work())


@pytest.mark.parametrize("what", ["return", "growth"])
def test_what_is_repeated_waits_until_the_first_is_durable(journal, what):
    async def do(datasets):
        if what == "return":
            return await datasets.give_back("d", "w", [1], False, "gone")
        return await datasets.grow("d", 4, close=False, caller="a", call=1)

    async def work():
        datasets = made(journal)
        await datasets.open(spec(num_samples=None))
        await datasets.grow("d", 4, close=False)
        await deal(datasets, "w")
        journal.num_refusals = 2
        for _ in range(2):
            with pytest.raises(JournalFullError):
                await do(datasets)
        await do(datasets)
        kind = {"return": "returned", "growth": "appended"}[what]
        assert len(journal.kinds(kind)) == 1 + (what == "growth")

    asyncio.run(work())


def test_nobody_is_told_that_all_is_done_before_the_journal_has_it(journal):
    async def work():
        datasets = made(journal)
        await datasets.open(spec(num_samples=4))
        (fence,) = await deal(datasets, "w")
        journal.is_open.clear()
        commit = asyncio.create_task(datasets.commit("d", "w", [(fence, 4)]))
        await until(lambda: datasets.find("d").is_finished)
        told = asyncio.create_task(datasets.lease("d", "other", 1, 0.0, ()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not told.done()
        journal.is_open.set()
        assert await commit == [""]
        assert await told == ([], True)

    asyncio.run(work())
