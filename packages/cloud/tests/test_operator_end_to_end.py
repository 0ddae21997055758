"""A job trains in pods that are processes; what happens to it does not change its loss."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.extra, pytest.mark.faults]


@pytest.mark.parametrize("model", ["byte_lm", "resnet"])
def test_killed_and_scaled_job_ends_with_the_undisturbed_loss(
    model, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import operator_train

    found = operator_train.story(model, tmp_path)
    assert found["phase"] == "Succeeded"
    # One was killed; those that were asked to leave have not failed.
    assert found["failures"] == 1
    assert found["score"] == pytest.approx(found["wanted"], rel=1e-9)
