"""The daemon's bookkeeping, without a process of its own."""

import json

import pytest

from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._daemon.pending_save import PERSIST
from drivetrain_checkpoint._daemon.save_queue import SaveQueue


def publish(arena, index, sequence, save_id, tasks=(PERSIST,)):
    record = json.dumps({"save_id": save_id, "tasks": list(tasks)}).encode()
    arena.begin(index)
    arena.publish(index, sequence, record, 4096, 16)


@pytest.fixture
def arena():
    return Arena.create(4096, 4096)


@pytest.fixture
def queue(arena):
    found = SaveQueue()
    found.set_arena(0, arena)
    return found


def claim(queue, *, drop=False):
    return queue.claim(0, drop=drop, timeout_s=0.0)


def test_saves_take_the_generations_in_turn(queue, arena):
    assert claim(queue) == {"index": 0, "sequence": 1, "dropped": None}
    publish(arena, 0, 1, "a")
    queue.published(0)
    assert claim(queue) == {"index": 1, "sequence": 2, "dropped": None}
    publish(arena, 1, 2, "b")
    queue.published(0)
    assert claim(queue) == {"busy": True}
    pending = queue.begin(0, PERSIST, 0.0)
    assert pending.save_id == "a"
    assert claim(queue) == {"busy": True}
    queue.end(pending, PERSIST)
    assert claim(queue) == {"index": 0, "sequence": 3, "dropped": None}


def test_newest_save_is_never_given_up_for_the_next(queue, arena):
    publish(arena, 0, 1, "a")
    publish(arena, 1, 2, "b", tasks=())
    assert queue.begin(0, PERSIST, 0.0).save_id == "a"
    assert claim(queue) == {"busy": True}


def test_save_that_waits_is_dropped_and_the_one_being_written_is_not(queue, arena):
    publish(arena, 0, 1, "a")
    queue.published(0)
    queue.begin(0, PERSIST, 0.0)
    publish(arena, 1, 2, "b")
    queue.published(0)
    assert claim(queue, drop=True) == {"index": 1, "sequence": 3, "dropped": "b"}
    # As long as all ranks have not agreed, it may still be taken back.
    assert queue.begin(0, PERSIST, 0.0) is None
    queue.release(0)
    assert queue.begin(0, PERSIST, 0.0).save_id == "b"


def test_dropped_save_is_told_so(queue, arena):
    publish(arena, 0, 1, "a")
    queue.published(0)
    queue.drop("a")
    answer = queue.wait("a", 0.0)
    assert (answer["state"], answer["error"]) == ("failed", "dropped for a newer save")
    assert queue.begin(0, PERSIST, 0.0) is None


def test_save_of_a_trainer_that_died_before_it_said_so_is_found(queue, arena):
    publish(arena, 0, 1, "a")
    assert queue.begin(0, PERSIST, 0.0).save_id == "a"


def test_memory_alone_is_persisted_when_somebody_asks(queue, arena):
    publish(arena, 0, 1, "a", tasks=())
    queue.published(0)
    assert queue.begin(0, PERSIST, 0.0) is None
    assert queue.wait("a", 0.0)["state"] == "staged"
    assert queue.add_task(PERSIST) == ["a"]
    pending = queue.begin(0, PERSIST, 0.0)
    assert pending.save_id == "a"
    queue.report("a", 0, {})
    queue.end(pending, PERSIST)
    queue.committed("a")
    assert queue.add_task(PERSIST) == []


def test_task_that_was_given_up_is_not_taken_for_done(queue, arena):
    publish(arena, 0, 1, "a")
    pending = queue.begin(0, PERSIST, 0.0)
    progress = pending.running[PERSIST]
    queue.end(pending, PERSIST, "no progress")
    assert progress.stop == 1
    queue.end(pending, PERSIST)  # the thread that hung comes back
    assert queue.wait("a", 0.0)["error"] == "no progress"
    assert claim(queue)["index"] == 1


def test_claim_of_a_rank_without_memory_is_refused(queue):
    with pytest.raises(ValueError, match="rank 3 has handed over no memory"):
        queue.claim(3, drop=False, timeout_s=0.0)


def test_claim_of_a_trainer_that_asks_elsewhere_by_now_takes_nothing(queue):
    assert queue.claim(0, drop=False, timeout_s=0.0, is_wanted=lambda: False) == {
        "busy": True
    }
    assert claim(queue)["index"] == 0


def test_save_that_a_thread_may_still_write_is_not_tried_beside_it(queue, arena):
    publish(arena, 0, 1, "a")
    queue.published(0)
    pending = queue.begin(0, PERSIST, 0.0)
    with queue.attempt("a"):
        queue.end(pending, PERSIST, "the storage made no progress")
        queue.add_task(PERSIST)
        queue.retry(0.0)
        assert queue.begin(0, PERSIST, 0.0) is None
    queue.retry(5.0)
    assert queue.begin(0, PERSIST, 0.0) is None
    queue.retry(0.0)
    assert queue.begin(0, PERSIST, 0.0) is not None


def test_save_that_was_given_up_is_not_tried_again(queue, arena):
    publish(arena, 0, 1, "a")
    queue.published(0)
    queue.drop("a")
    queue.retry(0.0)
    queue.add_task(PERSIST)
    assert queue.begin(0, PERSIST, 0.0) is None


def fail(queue, rank, save_id):
    pending = queue.begin(rank, PERSIST, 0.0)
    assert pending.save_id == save_id
    queue.end(pending, PERSIST, "no space")


def test_save_whose_memory_one_rank_needs_by_now_is_not_tried_again(queue, arena):
    other = Arena.create(4096, 4096)
    queue.set_arena(1, other)
    for rank, memory in enumerate((arena, other)):
        publish(memory, 0, 1, "a")
        queue.published(rank)
    for rank, memory in enumerate((arena, other)):
        fail(queue, rank, "a")
        publish(memory, 1, 2, "b", tasks=())
    assert queue.claim(1, drop=False, timeout_s=0.0)["index"] == 0
    # Else rank 0 would wait for the part of rank 1, whose memory waits for rank 0's next.
    queue.add_task(PERSIST)
    queue.retry(0.0)
    assert queue.begin(0, PERSIST, 0.0).save_id == "b"
    assert claim(queue)["index"] == 0
    queue.release(0)
    queue.release(1)
    queue.retry(0.0)
    assert [queue.begin(rank, PERSIST, 0.0).save_id for rank in (0, 1)] == ["a", "a"]


def test_part_that_another_rank_waits_for_is_written_or_said_not_to_come(queue, arena):
    assert queue.ask_for(0, "a") is None
    publish(arena, 0, 1, "a", tasks=())
    assert queue.ask_for(0, "a")
    assert queue.begin(0, PERSIST, 0.0).save_id == "a"
    publish(arena, 1, 2, "b", tasks=())
    publish(arena, 0, 3, "c", tasks=())
    assert queue.ask_for(0, "a") is False
    assert queue.ask_for(0, "d") is None
    assert claim(queue)["index"] == 1
    assert queue.ask_for(0, "b") is False
    queue.release(0)
    assert queue.ask_for(0, "b")
    assert queue.begin(0, PERSIST, 0.0).save_id == "b"
    assert queue.ask_for(0, "b")
    queue.report("b", 0, {})
    assert queue.ask_for(0, "b")


def test_save_whose_memory_is_being_filled_anew_is_waited_for_no_longer(queue, arena):
    publish(arena, 0, 1, "a")
    queue.published(0)
    arena.begin(0)  # for a save that never comes: its trainer fails
    assert queue.begin(0, PERSIST, 0.0) is None
    assert queue.wait("a", 0.0)["dropped"]
    assert queue.is_idle()
