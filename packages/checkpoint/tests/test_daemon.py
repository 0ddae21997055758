"""The daemon's bookkeeping, without a process of its own."""

import json

import pytest

from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._custody import Custody
from drivetrain_checkpoint._ticket import PERSIST


def publish(arena, index, sequence, save_id, tasks=(PERSIST,)):
    record = json.dumps({"save_id": save_id, "tasks": list(tasks)}).encode()
    arena.begin(index)
    arena.publish(index, sequence, record, 4096, 16)


@pytest.fixture
def arena():
    return Arena.create(4096, 4096)


@pytest.fixture
def custody(arena):
    found = Custody()
    found.take_over(0, arena)
    return found


def claim(custody, *, drop=False):
    return custody.claim(0, drop=drop, timeout_s=0.0)


def test_saves_take_the_generations_in_turn(custody, arena):
    assert claim(custody) == {"index": 0, "sequence": 1, "dropped": None}
    publish(arena, 0, 1, "a")
    custody.published(0)
    assert claim(custody) == {"index": 1, "sequence": 2, "dropped": None}
    publish(arena, 1, 2, "b")
    custody.published(0)
    assert claim(custody) == {"busy": True}
    ticket = custody.begin(0, PERSIST, 0.0)
    assert ticket.save_id == "a"
    assert claim(custody) == {"busy": True}
    custody.end(ticket, PERSIST)
    assert claim(custody) == {"index": 0, "sequence": 3, "dropped": None}


def test_newest_save_is_never_given_up_for_the_next(custody, arena):
    publish(arena, 0, 1, "a")
    publish(arena, 1, 2, "b", tasks=())
    assert custody.begin(0, PERSIST, 0.0).save_id == "a"
    assert claim(custody) == {"busy": True}


def test_save_that_waits_is_dropped_and_the_one_being_written_is_not(custody, arena):
    publish(arena, 0, 1, "a")
    custody.published(0)
    custody.begin(0, PERSIST, 0.0)
    publish(arena, 1, 2, "b")
    custody.published(0)
    assert claim(custody, drop=True) == {"index": 1, "sequence": 3, "dropped": "b"}
    # As long as all ranks have not agreed, it may still be taken back.
    assert custody.begin(0, PERSIST, 0.0) is None
    custody.release(0)
    assert custody.begin(0, PERSIST, 0.0).save_id == "b"


def test_dropped_save_is_told_so(custody, arena):
    publish(arena, 0, 1, "a")
    custody.published(0)
    custody.drop("a")
    answer = custody.wait("a", 0.0)
    assert (answer["state"], answer["error"]) == ("failed", "dropped for a newer save")
    assert custody.begin(0, PERSIST, 0.0) is None


def test_save_of_a_trainer_that_died_before_it_said_so_is_found(custody, arena):
    publish(arena, 0, 1, "a")
    assert custody.begin(0, PERSIST, 0.0).save_id == "a"


def test_memory_alone_is_persisted_when_somebody_asks(custody, arena):
    publish(arena, 0, 1, "a", tasks=())
    custody.published(0)
    assert custody.begin(0, PERSIST, 0.0) is None
    assert custody.wait("a", 0.0)["state"] == "staged"
    assert custody.ask_for(PERSIST) == ["a"]
    ticket = custody.begin(0, PERSIST, 0.0)
    assert ticket.save_id == "a"
    custody.told("a", 0, {})
    custody.end(ticket, PERSIST)
    custody.committed("a")
    assert custody.ask_for(PERSIST) == []


def test_task_that_was_given_up_is_not_taken_for_done(custody, arena):
    publish(arena, 0, 1, "a")
    ticket = custody.begin(0, PERSIST, 0.0)
    progress = ticket.running[PERSIST]
    custody.end(ticket, PERSIST, "no progress")
    assert progress.stop == 1
    custody.end(ticket, PERSIST)  # the thread that hung comes back
    assert custody.wait("a", 0.0)["error"] == "no progress"
    assert claim(custody)["index"] == 1


def test_claim_of_a_rank_without_memory_is_refused(custody):
    with pytest.raises(ValueError, match="rank 3 has handed over no memory"):
        custody.claim(3, drop=False, timeout_s=0.0)
