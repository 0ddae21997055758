"""Processes of trials: what they say of a program, and what they leave out."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from drivetrain_core import Code
from drivetrain_core._probe import probe_model
from drivetrain_core.extending import (
    OptimizerSource,
    Program,
    make_context,
)
from drivetrain_search.process import rank, trial
from drivetrain_search.process.payload import Payload, write_payload
from drivetrain_search.process.rank import device_index
from drivetrain_search.process.trial import Failure, Look, Outrun, TrialRunner
from drivetrain_testing import programs
from drivetrain_testing.programs import adamw, data, mse, small

PASS_S = 0.05
PASS = {"event": "pass", "seconds": 50.0}


class Slow(nn.Linear):
    """Takes its time for every batch."""

    def forward(self, x):
        """Returns the product, late."""
        time.sleep(PASS_S)
        return super().forward(x.flatten(1))


def runner_of(program, context, batches, folder):
    """Returns what runs trials of a program."""
    payload = Payload(
        program=program,
        context=dataclasses.replace(context, model=probe_model(program.build_model())),
        guard_batches=tuple(batches),
        device="cpu",
    )
    return TrialRunner(
        payload=write_payload(payload, folder),
        folder=folder,
        world_size=1,
        on_cpu=True,
        timeout_s=120.0,
    )


@pytest.fixture
def runner(program, context, tmp_path):
    """Runs trials of a model whose passes take as long as they say."""
    slow = dataclasses.replace(program, model=partial(Slow, 16, 5))
    return runner_of(slow, context, program.data[:2], tmp_path)


def shipped(folder, **fields):
    """Returns a runner of a small program, with fields of it replaced."""
    program = Program(model=small, optimizer=adamw, data=data(6), loss=mse)
    program = dataclasses.replace(program, **fields)
    model, batches = program.build_model(), data(6)
    source = OptimizerSource.of(program.optimizer, model)
    context = make_context(
        torch.device("cpu"), model, batches[0], source, program.data, owns_step=True
    )
    return runner_of(program, context, batches, folder)


@pytest.mark.slow
def test_set_up_is_told_without_the_passes_of_the_observation(runner):
    began = time.monotonic()
    with runner.open((), baseline=True) as session:
        took_s = time.monotonic() - began
        assert len(session.observation.losses) == 14
        # Its noise, and a run from rounded weights, come after that.
        assert took_s - session.setup_s > 28 * PASS_S
        assert session.measure(2, 0.0).setup_s == session.setup_s


@pytest.mark.slow
def test_baseline_is_observed_as_long_as_there_is_time(runner):
    look = Look(until_s=time.monotonic())
    with runner.open((), baseline=True, look=look) as session:
        assert len(session.observation.losses) == 3
        assert session.observation.swayed == ()
        assert session.flops_per_step is None
        assert session.step_s == pytest.approx(PASS_S, rel=0.5)


@pytest.mark.slow
def test_plan_that_is_slower_for_sure_is_looked_at_no_further(runner):
    with (
        pytest.raises(Outrun) as outrun,
        runner.open((), look=Look(outrun_above_s=PASS_S / 10)),
    ):
        raise AssertionError
    assert 1 <= len(outrun.value.step_times_s) <= 2
    assert min(outrun.value.step_times_s) > PASS_S
    assert outrun.value.peak_memory_bytes > 0


@pytest.mark.slow
def test_schedule_that_ends_does_not_end_a_measurement(tmp_path):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=60)

    with shipped(tmp_path, scheduler=schedule).open((), baseline=True) as session:
        assert len(session.measure(200, 0.0).step_times_s) == 200


def test_trial_of_another_model_than_the_process_has_is_refused(tmp_path, monkeypatch):
    # A trial imports the module that this reads, and finds it as it was written.
    monkeypatch.setattr(programs, "small", lambda: nn.Linear(8, 1))
    runner = shipped(tmp_path, model=_by_name)
    with (
        pytest.raises(Failure, match="a trial builds another model"),
        runner.open((), baseline=True),
    ):
        raise AssertionError


def _by_name():
    return programs.small()


@pytest.fixture
def double():
    """Lets new tensors be of twice the usual precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
def test_settings_of_the_process_hold_in_trials(tmp_path):
    with shipped(tmp_path, data=data(6)).open((), baseline=True) as session:
        assert all(loss > 0 for loss in session.observation.losses)


def test_loaders_workers_leave_nothing_behind(tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.setenv("TMPDIR", str(outside))
    monkeypatch.setattr("tempfile.tempdir", None)
    loader = DataLoader(
        TensorDataset(*map(torch.cat, zip(*data(6), strict=True))),
        batch_size=8,
        num_workers=1,
    )
    with shipped(tmp_path, data=loader).open((), baseline=True) as session:
        session.measure(4, 0.0)
    assert not list(outside.glob("pymp-*"))


def test_ranks_agree_on_one_more_warm_step(monkeypatch):
    assert rank._has_short_passes([PASS_S, PASS_S, 9.0])
    # Another rank's passes are long: all of them go without it, or one waits for ever.
    monkeypatch.setattr(rank, "gathered", lambda mine: [mine, 3.0])
    assert not rank._has_short_passes([PASS_S, PASS_S, 9.0])


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(trial.time, "monotonic", lambda: now.s)
    return now


def test_what_answers_pass_after_pass_is_not_late(clock):
    limit = trial._Limit(60.0, None, grows=True)
    assert (limit.end, limit.code) == (60.0, Code.HANG)
    for clock.s in (50.0, 100.0, 150.0):
        limit.saw(PASS)
    # Eight times as long as the longest one.
    assert limit.end == 150.0 + 400.0
    assert limit.again(4).end == 150.0 + 4 * 400.0


def test_limit_that_was_given_stays(clock):
    limit = trial._Limit(60.0, None, grows=False)
    clock.s = 50.0
    limit.saw(PASS)
    assert limit.end == 60.0
    assert limit.again(4).end == 50.0 + 60.0


def test_end_of_the_search_is_nobodys_fault(clock):
    limit = trial._Limit(60.0, 55.0, grows=True)
    clock.s = 50.0
    limit.saw(PASS)
    assert (limit.end, limit.code) == (55.0, Code.BUDGET)


def test_plan_that_is_not_observed_is_measured_as_well(runner):
    with runner.open((), look=None) as session:
        assert session.observation is None
        assert session.flops_per_step is None
        measured = session.measure(3, 0.0)
    assert len(measured.step_times_s) == 3
    assert min(measured.step_times_s) > PASS_S


@pytest.mark.parametrize(
    ("device", "rank", "world_size", "index"),
    [("cuda:1", 0, 1, 1), ("cuda", 0, 1, 0), ("cuda:1", 0, 2, 0), ("cuda:0", 5, 8, 1)],
)
def test_trial_of_one_rank_runs_where_the_user_trains(
    monkeypatch, device, rank, world_size, index
):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)
    assert device_index(torch.device(device), rank, world_size) == index


@pytest.mark.parametrize(
    ("device", "backend"),
    [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl"), ("odd", "cpu:gloo,odd:own")],
)
def test_ranks_of_a_trial_meet_for_what_lies_on_the_cpu_too(
    monkeypatch, context, device, backend
):
    joined = []
    monkeypatch.setattr(
        rank.dist, "init_process_group", lambda name, **options: joined.append(name)
    )
    spec = {"store": "/nowhere", "world_size": 2, "timeout_s": 10.0}
    own = {"cpu": "gloo", "cuda": "nccl", "odd": "own"}[device]
    facts = dataclasses.replace(context.device, type=device, collectives=own)
    rank._join(spec, 0, facts)
    assert joined == [backend]
