"""What a master decides about datasets counts once, whatever is slow or lost meanwhile."""

import threading

import pytest

from drivetrain_elastic import Master, RefusedError, ShardClient
from drivetrain_elastic.journal import JournalFullError
from drivetrain_elastic.protocol import _messages as pb


class MemoryJournal:
    """A journal that is full for some appends, or slow."""

    incarnation = 1

    def __init__(self, rows=()):
        self.rows = list(rows)
        self.num_refusals = 0
        # Appends wait for it.
        self.is_open = threading.Event()
        self.is_open.set()

    def records(self):
        return list(self.rows)

    def append(self, records):
        self.is_open.wait(30)
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
    return MemoryJournal()


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
