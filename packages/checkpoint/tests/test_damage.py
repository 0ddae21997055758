"""Damage is local: the next older whole checkpoint of the course is taken, and told of."""

import logging

import pytest
import torch

from drivetrain_checkpoint import (
    Checkpointer,
    CorruptCheckpointError,
    list_checkpoints,
    load,
)
from drivetrain_checkpoint._arena import Arena
from drivetrain_checkpoint._restore import restore_state
from drivetrain_checkpoint._storage.course import Dated, choose
from drivetrain_core import CheckpointError
from drivetrain_testing import run_ranks


def state(value):
    return {"w": torch.full((1000,), float(value)), "n": value}


@pytest.fixture
def trained(tmp_path):
    """Returns what saves steps in an order, and leaves them to storage alone."""

    def train(*steps, job="damage"):
        checkpointer = Checkpointer(tmp_path, job=job, keep=None)
        for step in steps:
            checkpointer.save(step, state(step)).wait(60)
        checkpointer.stop_daemon()
        return Checkpointer(tmp_path, job=job, keep=None)

    return train


def damage(folder, step, file="manifest.json"):
    """Flips a bit in the middle of a file of the newest save of a step."""
    (*_, found) = sorted(folder.glob(f"step-{step:010d}-*/{file}"))
    data = bytearray(found.read_bytes())
    data[len(data) // 2] ^= 1
    found.write_bytes(data)
    return found


def restored(checkpointer, step=None):
    found = state(0)
    got = checkpointer.restore(found, step)
    assert found["n"] == got
    assert bool((found["w"] == got).all())
    return got


@pytest.mark.parametrize("file", ["manifest.json", "rank-00000.*json", "*.safetensors"])
def test_next_older_one_is_restored_and_the_damage_named(
    trained, tmp_path, caplog, file
):
    checkpointer = trained(1, 2, 3)
    path = damage(tmp_path, 3, file)
    with caplog.at_level(logging.WARNING):
        assert restored(checkpointer) == 2
    (said,) = [r.getMessage() for r in caplog.records if path.name in r.getMessage()]
    assert str(path) in said
    assert "step 2 is restored" in said
    with pytest.raises(CorruptCheckpointError, match=path.name):
        restored(checkpointer, 3)
    # What is saved from here on is the newest.
    checkpointer.save(3, state(3)).wait(60)
    checkpointer.stop_daemon()
    assert restored(checkpointer) == 3
    assert restored(checkpointer, 3) == 3


def test_two_that_are_damaged_are_both_passed_over(trained, tmp_path, caplog):
    checkpointer = trained(1, 2, 3)
    paths = [damage(tmp_path, 3), damage(tmp_path, 2, "*.safetensors")]
    with caplog.at_level(logging.WARNING):
        assert restored(checkpointer) == 1
    said = caplog.records[-1].getMessage()
    assert all(str(path) in said for path in paths)


@pytest.mark.parametrize("file", ["manifest.json", "*.safetensors"])
def test_course_that_was_left_behind_is_not_taken(trained, tmp_path, file):
    checkpointer = trained(40, 100, 60)
    assert restored(checkpointer) == 60
    damage(tmp_path, 60, file)
    assert restored(checkpointer) == 40


def test_damage_to_a_course_that_was_left_behind_does_not_matter(trained, tmp_path):
    checkpointer = trained(40, 100, 60)
    damage(tmp_path, 100)
    assert restored(checkpointer) == 60
    assert checkpointer.latest() == 60
    into = {"w": torch.zeros(1000)}
    assert load(tmp_path, into, strict=False) == []
    assert into["w"][0] == 60


@pytest.mark.parametrize("file", ["manifest.json", "*.safetensors"])
def test_only_another_course_is_left(trained, tmp_path, file):
    checkpointer = trained(100, 60)
    path = damage(tmp_path, 60, file)
    with pytest.raises(CorruptCheckpointError, match=r"step=100") as caught:
        restored(checkpointer)
    assert str(path) in str(caught.value)
    assert restored(checkpointer, 100) == 100


def test_damage_of_another_job_is_none_of_ours(trained, tmp_path):
    trained(900, job="other")
    checkpointer = trained(1, 2)
    damage(tmp_path, 900)
    assert restored(checkpointer) == 2
    assert restored(trained(3)) == 3


def test_damage_that_is_nobodys_any_more_is_told(trained, tmp_path, caplog):
    checkpointer = trained(1, 2)
    path = damage(tmp_path, 2)
    damage(tmp_path, 2, "rank-00000.json")  # which would say whose it is
    with caplog.at_level(logging.WARNING):
        assert restored(checkpointer) == 1
    assert str(path) in caplog.text
    for file in path.parent.parent.glob("step-0000000001-*/manifest.json"):
        file.unlink()
    with pytest.raises(CheckpointError, match=path.parent.name):
        restored(checkpointer)


def test_load_takes_the_next_older_one_and_says_so(trained, tmp_path, caplog):
    trained(1, 2)
    path = damage(tmp_path, 2)
    into = {"w": torch.zeros(1000)}
    with caplog.at_level(logging.WARNING):
        load(tmp_path, into, strict=False)
    assert into["w"][0] == 1
    assert str(path) in caplog.text
    with pytest.raises(CorruptCheckpointError):
        load(tmp_path, into, strict=False, step=2)
    assert [found.step for found in list_checkpoints(tmp_path)] == [1]


def fall_back(folder):
    """On each rank: what a damage on one rank's file leads to."""
    checkpointer = Checkpointer(folder, job="ranks")
    found = {**state(0), "v": torch.zeros(1000)}  # a tensor for each rank to write
    step = checkpointer.restore(found)
    return step, found["n"], float(found["w"][0]), float(found["v"][0])


def save_all(folder):
    checkpointer = Checkpointer(folder, job="ranks")
    for step in (1, 2):
        saved = {**state(step), "v": torch.full((1000,), float(step))}
        checkpointer.save(step, saved).wait(60)
    checkpointer.stop_daemon()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_take_the_same_one(tmp_path, rank):
    run_ranks(save_all, 2, tmp_path)
    damage(tmp_path, 2, f"*{rank:05d}.safetensors")
    assert run_ranks(fall_back, 2, tmp_path) == [(1, 1, 1.0, 1.0)] * 2


def test_save_that_is_overwritten_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    """Another process restores from memory that the trainer saves in."""
    trainer = Checkpointer(tmp_path, job="torn")
    for step in (1, 2):
        trainer.save(step, state(step), persist=False)
    own, turns = restore_state.restore_tensors, iter(range(3, 100))

    def torn(group, save, targets):
        own(group, save, targets)
        if (step := next(turns)) <= last:
            for number in (0, 1):
                trainer.save(2 * step + number, state(2 * step + number), persist=False)

    monkeypatch.setattr(restore_state, "restore_tensors", torn)
    reader = Checkpointer(tmp_path, job="torn")
    last = 4
    assert restored(reader) == 9
    last = 100
    with pytest.raises(CheckpointError, match="overwritten in memory"):
        restored(reader)


def test_generation_is_there_until_another_save_begins():
    arena = Arena.create(4096, 4096)
    arena.begin(0)
    arena.publish(0, 1, b"{}", 4096, 16)
    (generation,) = arena.generations()
    assert arena.has(generation)
    arena.begin(0)
    assert not arena.has(generation)


@pytest.mark.parametrize(
    ("steps", "damaged", "taken", "aside"),
    [
        ([1, 2, 3], [], 3, []),
        ([1, 2, 3], [3], 2, []),
        ([40, 100, 60, 70], [70], 60, []),
        ([40, 100, 60, 70], [60, 70], 40, [100]),
        ([40, 50, 100, 60], [60], 50, [100]),
        ([100, 60], [60], None, [100]),
        ([100, 60], [100, 60], None, []),
        ([10, 20, 5], [5], None, [20, 10]),
        ([10, 20, 15, 12], [12, 10], None, [15, 20]),
        ([], [], None, []),
    ],
)
def test_choice_of_a_course(steps, damaged, taken, aside):
    saves = [
        Dated(at, step, f"{at}", "bad" if step in damaged else "")
        for at, step in enumerate(steps)
    ]
    found = choose(saves)
    assert (found.save.step if found.save else None) == taken
    assert [save.step for save in found.aside] == aside
