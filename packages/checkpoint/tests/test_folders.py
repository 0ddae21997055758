"""Checkpoints in folders of their own, and a process that saves alone."""

import pytest
import torch
import torch.distributed as dist

from drivetrain_checkpoint import Checkpointer, list_checkpoints, verify
from drivetrain_core import CheckpointError
from drivetrain_testing import run_ranks


def state_of(value):
    return {"weights": torch.full((1000,), float(value)), "position": value}


def restored(checkpointer, **which):
    state = state_of(-1)
    step = checkpointer.restore(state, **which)
    assert torch.equal(state["weights"], torch.full((1000,), float(state["position"])))
    return step, state["position"]


def test_each_folder_keeps_its_own_and_one_step_may_be_in_two(tmp_path):
    checkpointer = Checkpointer(tmp_path, job="folders", keep=1)
    for step, under, value in ((1, "a", 1), (2, "last", 2), (2, "a", 3), (3, "", 4)):
        assert checkpointer.save(step, state_of(value), under=under).wait(60)
    checkpointer.stop_daemon()
    again = Checkpointer(tmp_path, job="folders", keep=1)
    assert restored(again) == (3, 4)
    assert restored(again, under="a") == (2, 3)
    assert restored(again, under="last") == (2, 2)
    for under in ("a", "last", ""):
        (found,) = list_checkpoints(tmp_path / under)
        assert verify(found.url) == []


def test_memory_of_one_folder_is_not_taken_for_that_of_another(tmp_path, monkeypatch):
    checkpointer = Checkpointer(tmp_path / "run", job="folders")
    checkpointer.save(1, state_of(1), under="a", persist=False)
    checkpointer.save(2, state_of(2), under="b", persist=False)
    assert restored(checkpointer, under="a") == (1, 1)
    assert restored(checkpointer, under="b") == (2, 2)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        restored(checkpointer)
    assert not (tmp_path / "run").exists()
    assert checkpointer.flush()
    assert [found.step for found in list_checkpoints(tmp_path / "run/a")] == [1]


def test_failure_in_one_folder_leaves_the_others(tmp_path):
    checkpointer = Checkpointer(tmp_path, job="folders")
    (tmp_path / "bad").write_text("a file where the folder should be")
    handle = checkpointer.save(1, state_of(1), under="bad")
    with pytest.raises(CheckpointError, match="step 1 was not saved"):
        handle.wait(60)
    assert checkpointer.save(2, state_of(2), under="good").wait(60)


@pytest.mark.parametrize(
    "under", ["a/b", "..", ".", ".unfinished", "step-0000000001-0123456789abcdef"]
)
def test_folder_must_be_one_name(tmp_path, under):
    checkpointer = Checkpointer(tmp_path, job="folders")
    with pytest.raises(ValueError, match="name of one folder"):
        checkpointer.save(1, state_of(1), under=under)
    with pytest.raises(ValueError, match="name of one folder"):
        checkpointer.restore(state_of(1), under=under)


def save_on_one_rank(folder):
    if dist.get_rank() == 1:
        alone = Checkpointer(folder, job="folders", process_group="self")
        assert alone.save(1, state_of(1)).wait(60)
    dist.barrier()
    return restored(Checkpointer(folder, job="folders"))


@pytest.mark.faults
def test_one_rank_of_several_saves_alone_and_all_restore(tmp_path):
    assert run_ranks(save_on_one_rank, 2, str(tmp_path)) == [(1, 1)] * 2
    (found,) = list_checkpoints(tmp_path)
    assert found.world_size == 1


def test_process_group_is_a_group_or_self():
    with pytest.raises(ValueError, match="a group or 'self', got 'alone'"):
        Checkpointer("unused", process_group="alone")
