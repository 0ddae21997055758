"""The master's keys and values do what torch's own store does."""

import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from drivetrain_core.services import TorchProcessGroupFactory
from drivetrain_elastic._client._master_client import MasterClient
from drivetrain_elastic._client._master_store import MasterStore
from drivetrain_elastic._client._rendezvous_store import rendezvous_store


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
    def rank(number):
        group = make_gloo(dist.PrefixStore("p", store), number, 2)
        tensor = torch.full((3,), float(number + 1))
        group.allreduce([tensor]).wait()
        done.wait()
        return tensor.tolist()

    done = threading.Barrier(2)
    assert in_threads(rank, 2) == [[3.0] * 3] * 2


def make_gloo(store, rank, world_size):
    factory = TorchProcessGroupFactory("gloo")
    return factory(store, rank, world_size, timedelta(seconds=20))


def in_threads(function, num):
    results = [None] * num

    def run(at):
        results[at] = function(at)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(num)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    return results


def test_one_call_brings_all_addresses_that_are_there(store, monkeypatch):
    asked, all_set, all_done = [], threading.Barrier(6), threading.Barrier(6)
    set_key, read = store.set, store.read

    def read_and_note(keys, *rest):
        asked.append(keys)
        return read(keys, *rest)

    def set_with_others(key, value):
        set_key(key, value)
        all_set.wait()

    monkeypatch.setattr(store, "read", read_and_note)
    monkeypatch.setattr(store, "set", set_with_others)

    def rank(number):
        with rendezvous_store(store, "world/1") as room:
            group = make_gloo(room, number, 6)
            tensor = torch.full((3,), float(number + 1))
            group.allreduce([tensor]).wait()
            all_done.wait()
            return tensor.tolist()

    assert in_threads(rank, 6) == [[21.0] * 3] * 6
    assert len(asked) == 6


def test_meeting_keeps_what_it_has_read_until_it_is_over(store):
    with (
        rendezvous_store(store, "m") as room,
        rendezvous_store(store, "other") as other,
    ):
        room.set("a", "1")
        room.set("b", b"2")
        other.set("a", "3")
        room.wait(["a"], timedelta(seconds=5))
        store.set("m/a", "4")
        store.delete_key("m/b")
        assert (room.get("a"), room.get("b"), other.get("a")) == (b"1", b"2", b"3")
        assert room.add("n", 2) == room.add("n", 0) == 2
        assert room.compare_set("a", "4", "5") == b"5"
        assert room.check(["a"])
        assert not room.check(["b"])
    assert room.get("a") == b"5"
    assert room.delete_key("a")
    with pytest.raises(dist.DistStoreError, match="m/a were not set"):
        room.wait(["a"], timedelta(milliseconds=20))


def test_meeting_that_is_larger_than_a_reply_asks_for_each_key(store, monkeypatch):
    prefixes, read = [], store.read

    def read_and_note(keys, timeout, prefix):
        prefixes.append(prefix)
        return read(keys, timeout, prefix)

    monkeypatch.setattr(store, "read", read_and_note)
    with rendezvous_store(store, "m") as room:
        values = {name: name.encode() * 600_000 for name in "abcd"}
        for name, value in values.items():
            room.set(name, value)
        assert {name: room.get(name) for name in "abcd"} == values
        assert room.get("d") == values["d"]
    # One of them fills a reply: the second one brought nothing beside what was asked for.
    assert prefixes == ["m/", "m/", "", ""]


def test_meeting_in_another_store_has_keys_of_its_own():
    store = dist.HashStore()
    with rendezvous_store(store, "m") as room:
        room.set("a", "1")
    assert store.get("m/a") == b"1"
