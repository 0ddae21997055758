"""The service `plan_search`: its contract, and who provides it."""

from __future__ import annotations

import pytest

from drivetrain_core.services import NoPlanSearch, get_service
from drivetrain_search import TrialSearch
from drivetrain_testing import check_plan_search


@pytest.mark.slow
def test_trial_search_keeps_the_contract():
    check_plan_search(TrialSearch())


def test_accelerate_finds_it_and_core_has_a_fallback():
    assert type(get_service("plan_search")) is TrialSearch
    assert type(get_service("drivetrain-core:plan_search")) is NoPlanSearch
