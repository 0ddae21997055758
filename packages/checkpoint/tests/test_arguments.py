"""Arguments of another type, or out of their range, are refused by name."""

import numpy as np
import pytest
import torch

from drivetrain_checkpoint import Checkpointer, Keep, list_checkpoints
from drivetrain_checkpoint.cli import main
from drivetrain_checkpoint.dcp import Stager, Writer

NAN = float("nan")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"keep": True}, TypeError),
        ({"keep": "3"}, TypeError),
        ({"keep": 2.5}, TypeError),
        ({"timeout_s": NAN}, ValueError),
        ({"timeout_s": float("inf")}, ValueError),
        ({"timeout_s": True}, TypeError),
        ({"timeout_s": "3"}, TypeError),
        ({"memory_s": None}, TypeError),
        ({"memory_s": -1}, ValueError),
        ({"num_threads": 0}, ValueError),
        ({"num_threads": -1}, ValueError),
        ({"num_threads": 1.5}, TypeError),
        ({"num_threads": True}, TypeError),
        ({"replicas": True}, TypeError),
        ({"replicas": 1.5}, TypeError),
        ({"replica_bytes_per_s": NAN}, ValueError),
        ({"replica_bytes_per_s": 0}, ValueError),
        ({"job": 3}, TypeError),
        ({"failure_domain": 4}, TypeError),
    ],
    ids=repr,
)
def test_argument_of_a_checkpointer_is_checked(tmp_path, options, error):
    ((name, value),) = options.items()
    with pytest.raises(error, match=f"{name}.* must be .*, got {value!r}"):
        Checkpointer(tmp_path, **options)


def test_numbers_of_numpy_are_taken(tmp_path):
    options = {"keep": np.int64(1), "timeout_s": np.float32(60)}
    checkpointer = Checkpointer(tmp_path, job="arguments", **options)
    for step in (1, 2):
        assert checkpointer.save(step, {"x": torch.ones(2)}).wait(60)
    checkpointer.stop_daemon()
    assert [found.step for found in list_checkpoints(tmp_path)] == [2]
    assert type(Keep(every=np.int64(5)).every) is int


@pytest.mark.parametrize("step", ["10", 1.0, True])
def test_step_to_restore_is_checked(tmp_path, step):
    with pytest.raises(TypeError, match=f"step must be a whole number.*got {step!r}"):
        Checkpointer(tmp_path, job="arguments").restore({}, step)


def test_state_to_restore_is_a_mapping(tmp_path):
    with pytest.raises(TypeError, match=r"a mapping from names, got Linear"):
        Checkpointer(tmp_path, job="arguments").restore(torch.nn.Linear(2, 2))


def test_arguments_for_dcp_are_checked(tmp_path):
    with pytest.raises(ValueError, match="timeout_s must be a finite number"):
        Stager(timeout_s=NAN)
    with pytest.raises(TypeError, match="step must be a whole number"):
        Writer(tmp_path, step="3")


@pytest.mark.parametrize("hours", ["-5", "nan", "inf", "a day"])
def test_age_for_gc_is_checked(tmp_path, hours, capsys):
    with pytest.raises(SystemExit):
        main(["gc", str(tmp_path), "--keep", "1", f"--older-than={hours}"])
    err = capsys.readouterr().err
    assert "argument --older-than: must be " in err
    assert hours in err.splitlines()[-1]
