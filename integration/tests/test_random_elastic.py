"""A random model whose worker is killed is healed, in replicas of one rank and of two."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from random_elastic import PHASES, Job, verdict


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "strategy"),
    [(1, [("optimizer_impl", "foreach")]), (2, [("mesh", {"context": 2})])],
    ids=["one rank", "two ranks"],
)
def test_model_of_a_seed_is_healed_and_the_same(tmp_path, ranks, strategy):
    job = dataclasses.replace(
        Job.of(4, ranks), strategy=strategy, step=3, phase=PHASES[1], standbys=1
    )
    assert verdict(job, tmp_path) == "same"
