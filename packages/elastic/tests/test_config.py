"""What an agent is told to do must be possible."""

import math

import pytest

from drivetrain_core import ProgramError
from drivetrain_elastic import AgentConfig

TIMES = ["last_call_s", "patience_s", "frozen_s", "stuck_s", "grace_s"]


@pytest.mark.parametrize("name", [*TIMES, "max_restarts"])
def test_what_is_not_a_number_is_refused(name):
    with pytest.raises(ProgramError, match=f"{name} must be at least .*, got nan"):
        AgentConfig(**{name: math.nan})


@pytest.mark.parametrize("name", ["num_workers", "max_nodes", "max_restarts"])
def test_number_that_is_not_whole_is_refused(name):
    with pytest.raises(ProgramError, match=f"{name} must be a whole number, got inf"):
        AgentConfig(**{name: math.inf})


@pytest.mark.parametrize("name", TIMES)
def test_time_may_be_without_end(name):
    assert getattr(AgentConfig(**{name: math.inf}), name) == math.inf
