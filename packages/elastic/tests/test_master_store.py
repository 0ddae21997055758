"""The master's keys and values do what torch's own store does."""

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from drivetrain_core.services import TorchProcessGroupFactory
from drivetrain_elastic._client import MasterClient
from drivetrain_elastic._store import MasterStore


@pytest.fixture
def store(job):
    master = job()
    with MasterClient(master.address, master.token) as client:
        yield MasterStore(client)


def test_store_sets_adds_compares_and_deletes(store):
    theirs = dist.HashStore()
    for one in (store, theirs):
        one.set("a", "1")
        one.set("b", b"\x00\xff")
        assert one.get("b") == b"\x00\xff"
        assert one.add("n", 5) == 5
        assert one.add("n", -2) == 3
        assert one.compare_set("a", "1", "2") == b"2"
        assert one.compare_set("a", "1", "3") == b"2"
        assert one.check(["a", "b"])
        assert not one.check(["a", "none"])
        assert one.delete_key("a")
        assert not one.delete_key("a")
    assert store.num_keys() == 2


def test_store_wait_ends_when_keys_come_and_when_time_is_up(store):
    threading.Timer(0.1, store.set, ["late", "x"]).start()
    assert store.get("late") == b"x"
    with pytest.raises(dist.DistStoreError, match="never were not set within"):
        store.wait(["never"], timedelta(milliseconds=50))


def test_gloo_meets_in_the_store(store):
    factory, results = TorchProcessGroupFactory("gloo"), []

    def rank(number):
        group = factory(dist.PrefixStore("p", store), number, 2, timedelta(seconds=20))
        tensor = torch.full((3,), float(number + 1))
        group.allreduce([tensor]).wait()
        results.append(tensor.tolist())
        done.wait()

    done = threading.Barrier(2)
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert results == [[3.0] * 3] * 2
