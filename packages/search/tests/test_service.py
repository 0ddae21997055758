"""The service `plan_search`: its contract, and who provides it."""

from __future__ import annotations

import os
import random
from unittest.mock import MagicMock

import pytest

from drivetrain_core import DrivetrainError, accelerate
from drivetrain_core.services import NoPlanSearch, get_service
from drivetrain_search import TrialSearch, service
from drivetrain_testing import check_plan_search, run_ranks
from drivetrain_testing.programs import adamw, data, mse, small


@pytest.mark.slow
def test_trial_search_keeps_the_contract():
    check_plan_search(TrialSearch())


def test_search_leaves_the_random_state_of_the_program(monkeypatch):
    def search(*_):
        random.random()
        return "found", "report"

    monkeypatch.setattr(service, "search", search)
    monkeypatch.setattr(service, "Payload", lambda **_: None)
    monkeypatch.setattr(service, "read_options", lambda *_, **__: None)
    before = random.getstate()
    assert TrialSearch().search(MagicMock(progress=False)) == ("found", "report")
    assert random.getstate() == before


@pytest.mark.parametrize("progress", [True, False])
def test_search_ends_with_a_line_of_what_was_chosen(
    monkeypatch, capsys, caplog, progress
):
    caplog.set_level("INFO", logger="drivetrain_search")
    monkeypatch.setattr(service, "search", lambda *_: ("plan", "chosen: fused, 2x"))
    monkeypatch.setattr(service, "Payload", lambda **_: None)
    monkeypatch.setattr(service, "read_options", lambda *_, **__: None)
    TrialSearch().search(MagicMock(progress=progress))
    assert capsys.readouterr().err == ("chosen: fused, 2x\n" if progress else "")
    assert caplog.messages == ([] if progress else ["chosen: fused, 2x"])


def test_accelerate_finds_it_and_core_has_a_fallback():
    assert type(get_service("plan_search")) is TrialSearch
    assert type(get_service("drivetrain-core:plan_search")) is NoPlanSearch


def search_on_two_nodes():
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    with pytest.raises(DrivetrainError) as caught:
        accelerate(small, adamw, data(), mse, strategy="auto", progress=False)
    return str(caught.value)


def test_job_of_several_nodes_is_told_where_to_search():
    for said in run_ranks(search_on_two_nodes, 2):
        assert "1 of 2 ranks are on this node, and trials run on one node" in said
        assert "plan_out=" in said
