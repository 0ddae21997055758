"""Processes of trials: what they say of a program, and what they leave out."""

from __future__ import annotations

import dataclasses
import time
from functools import partial

import pytest
from torch import nn

from drivetrain_core.search.process.payload import Payload, write_payload
from drivetrain_core.search.process.trial import TrialRunner

PASS_S = 0.05


class Slow(nn.Linear):
    """Takes its time for every batch."""

    def forward(self, x):
        """Returns the product, late."""
        time.sleep(PASS_S)
        return super().forward(x.flatten(1))


@pytest.fixture
def runner(program, context, tmp_path):
    """Runs trials of a model whose passes take as long as they say."""
    slow = dataclasses.replace(program, model=partial(Slow, 16, 5))
    payload = Payload(
        program=slow,
        context=context,
        guard_batches=tuple(program.data[:2]),
        device_type="cpu",
    )
    return TrialRunner(
        payload=write_payload(payload, tmp_path),
        folder=tmp_path,
        world_size=1,
        on_cpu=True,
        timeout_s=120.0,
    )


def test_set_up_is_told_without_the_passes_of_the_observation(runner):
    began = time.monotonic()
    with runner.open((), baseline=True) as session:
        took_s = time.monotonic() - began
        assert len(session.observation.losses) == 14
        # Its noise, and a run from rounded weights, come after that.
        assert took_s - session.setup_s > 28 * PASS_S
        assert session.measure(2, 0.0).setup_s == session.setup_s


def test_plan_that_is_not_observed_is_measured_as_well(runner):
    with runner.open((), baseline=False, observed=False) as session:
        assert session.observation is None
        assert session.flops_per_step is None
        measured = session.measure(3, 0.0)
    assert len(measured.step_times_s) == 3
    assert min(measured.step_times_s) > PASS_S
