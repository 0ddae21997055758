"""The score of a trial is a number of the objective."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drivetrain_core import Measurement, ProgramError
from drivetrain_search.score import score_of

MEASURED = Measurement(step_times_s=(0.5, 0.4, 0.6), samples_per_step=8)


@pytest.mark.parametrize("kind", [np.float32, torch.tensor, int, float])
def test_numbers_of_other_libraries_are_numbers(kind):
    assert score_of(lambda _: kind(3), MEASURED, 0.3) == 3.0


def test_objective_that_raises_is_named():
    def broken(measured):
        return measured.speed

    with pytest.raises(ProgramError, match="objective raised AttributeError"):
        score_of(broken, MEASURED, 0.3)


def test_score_is_of_one_steady_step():
    assert score_of(lambda m: len(m.step_times_s) * m.step_time_s, MEASURED, 0.3) == 0.3
