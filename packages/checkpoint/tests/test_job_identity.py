"""A job owns its checkpoints: others are not given them, and do not delete them."""

import json

import pytest
import torch

from drivetrain_checkpoint import Checkpointer, list_checkpoints
from drivetrain_checkpoint.cli import main
from drivetrain_core import CheckpointError


def state(value):
    return {"w": torch.full((10,), float(value)), "n": value}


def steps(folder):
    return [found.step for found in list_checkpoints(folder)]


@pytest.fixture
def saved(tmp_path):
    """Returns what saves steps as a job, and leaves them to storage alone."""

    def save(job, *numbers):
        checkpointer = Checkpointer(tmp_path, job=job)
        for step in numbers:
            checkpointer.save(step, state(step)).wait(60)
        checkpointer.stop_daemon()

    return save


def test_job_without_a_checkpoint_is_given_no_other_jobs(tmp_path, saved):
    saved("first", 900)
    second = Checkpointer(tmp_path, job="second")
    found = state(0)
    with pytest.raises(
        CheckpointError, match="'second' has none, 'first' have"
    ) as said:
        second.restore(found)
    assert "adopt=True" in str(said.value)
    assert found["n"] == 0
    assert second.latest() is None
    second.save(1, state(1)).wait(60)
    assert second.latest() == 1
    assert steps(tmp_path) == [900, 1]
    second.stop_daemon()
    assert Checkpointer(tmp_path, job="first").latest() == 900


def test_job_may_go_on_from_another_ones(tmp_path, saved):
    saved("first", 900)
    second = Checkpointer(tmp_path, job="second", adopt=True)
    found = state(0)
    assert second.latest() == 900
    assert second.restore(found) == 900
    assert found["n"] == 900
    second.save(901, state(901)).wait(60)
    second.stop_daemon()
    # Its own come first from here on.
    saved("first", 950)
    assert second.restore(found) == 901


def test_training_that_begins_anew_deletes_nothing_ahead_of_it(tmp_path, saved, capsys):
    saved("job", 800, 900, 1000)
    saved("job", 1, 2, 3, 4)
    assert sorted(steps(tmp_path)) == [2, 3, 4, 800, 900, 1000]
    assert Checkpointer(tmp_path, job="job").latest() == 4
    # Who asks for it deletes those that it has left behind too.
    assert main(["gc", str(tmp_path), "--keep", "2", "--dry-run", "--json"]) == 0
    old = json.loads(capsys.readouterr().out)["old"]
    assert sorted(int(name.split("-")[1]) for name in old) == [2, 800, 900, 1000]
    # What it has passed is kept no longer.
    saved("job", 900, 901)
    assert sorted(steps(tmp_path)) == [4, 900, 901, 1000]


def test_two_runs_on_two_nodes_do_not_mix(tmp_path, monkeypatch):
    def on(node):
        (tmp_path / node).mkdir(mode=0o700, exist_ok=True)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / node))
        if node not in trainers:
            trainers[node] = Checkpointer(folder, job="job")
        return trainers[node]

    folder, trainers = tmp_path / "shared", {}
    on("one").save(1, state(10)).wait(60)
    on("two").save(1, state(20)).wait(60)
    with pytest.raises(CheckpointError, match="another run of job 'job'") as said:
        on("one").save(2, state(11)).wait(60)
    assert "job=..." in str(said.value)
    on("two").save(2, state(21)).wait(60)
    # Where the later one has ended, the other goes on from there, and is the later then.
    on("two").stop_daemon()
    on("one").stop_daemon()
    found = state(0)
    assert on("one").restore(found) == 2
    assert found["n"] == 21
    on("one").save(3, state(22)).wait(60)
    on("one").stop_daemon()
    assert steps(folder) == [1, 2, 3]
