"""The store in which ranks decide: rank 0's own, or the default one for all."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from drivetrain_core import _rendezvous_store
from drivetrain_core._rendezvous_store import rendezvous_store
from drivetrain_testing import run_ranks


def talk():
    """Meets twice; returns the kind of the store, the keys, and what rank 0 said."""
    keys, words = [], []
    for _ in range(2):
        store, key = rendezvous_store("plan")
        keys.append(key)
        if dist.get_rank() == 0:
            store.set(key, key)
        words.append(store.get(key).decode())
    return type(store).__name__, keys, words


def talk_when_one_cannot_join():
    if dist.get_rank() == 1:
        _rendezvous_store._joined = lambda words: None
    return talk()


def talk_when_none_is_served():
    def unserved(words):
        words.set("address", "")

    _rendezvous_store._served = unserved
    return talk()


def test_ranks_meet_in_a_store_of_their_own():
    found = run_ranks(talk, 2)
    assert found[0] == found[1]
    assert found[0] == ("TCPStore", ["plan/1", "plan/2"], ["plan/1", "plan/2"])


@pytest.mark.parametrize("talk", [talk_when_one_cannot_join, talk_when_none_is_served])
def test_ranks_meet_in_the_default_store_where_one_cannot_join(talk):
    found = run_ranks(talk, 3)
    assert found[0] == found[1] == found[2]
    assert found[0] == ("PrefixStore", ["plan/1", "plan/2"], ["plan/1", "plan/2"])
