"""Ranks wait for each other before they make a group."""

import threading

import pytest
import torch.distributed as dist

from drivetrain_core import DistributedError
from drivetrain_elastic._membership._rank_assignment import RankAssignment
from drivetrain_elastic._membership._world import (
    call_roll,
    end_together,
    is_finished,
    tell_finished,
)

SEAT = RankAssignment(3, 0, ("a", "b"), ("node", "node"))


def never():
    return False


def test_roll_call_waits_for_a_rank_that_comes_late():
    store, comes = dist.HashStore(), threading.Event()

    def come():
        comes.set()
        store.set("world/3/here/1", "1")

    late = threading.Timer(0.2, come)
    late.start()
    assert call_roll(SEAT, store, patience_s=30, is_over=never)
    assert comes.is_set()
    late.join()


def test_roll_call_ends_when_its_patience_does():
    with pytest.raises(DistributedError, match=r"not all ranks of world 3 .* 0\.1 s"):
        call_roll(SEAT, dist.HashStore(), patience_s=0.1, is_over=never)


@pytest.mark.slow
def test_roll_call_ends_with_its_world_and_with_the_training():
    store, asked = dist.HashStore(), []

    def is_over():
        asked.append(1)
        return len(asked) == 3

    assert not call_roll(SEAT, store, patience_s=30, is_over=is_over)
    tell_finished(store, 7)
    assert not call_roll(SEAT, store, patience_s=30, is_over=never)


def test_scripts_end_together_after_the_same_step_only():
    for other, has_ended in ((5, True), (6, False)):
        store = dist.HashStore()
        store.set("world/3/left/1", str(other))
        assert end_together(SEAT, store, 5, never) == has_ended
        assert is_finished(store) == has_ended


def test_script_whose_world_goes_on_without_it_has_left_it():
    store, asked = dist.HashStore(), []

    def is_over():
        asked.append(1)
        return len(asked) == 3

    assert not end_together(SEAT, store, 5, is_over)
    assert not is_finished(store)
