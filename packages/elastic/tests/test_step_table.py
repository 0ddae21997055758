"""Each training program ends as its plain loop does, or is refused by name."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from step_table import PROGRAMS, train_elastically, train_plainly

from drivetrain_elastic._training._gradient_reducer import GradientReducer

TABLE = Path(__file__).with_name("step_table.py")
RANKS = [pytest.param(num, marks=pytest.mark.slow) for num in (1, 2, 3)]


@pytest.fixture
def defaults(monkeypatch):
    """Gives back what a case sets for its process."""
    monkeypatch.setattr(GradientReducer.__init__, "__kwdefaults__", {"bucket_bytes": 1})
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)


@pytest.mark.usefixtures("defaults")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("breaks", [False, True], ids=["once", "left-and-entered"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_without_a_job_ends_as_its_plain_loop(name, breaks):
    program = PROGRAMS[name]
    if program.says_alone:
        with pytest.raises((ValueError, TypeError), match=program.says_alone):
            train_elastically(name, None, breaks=breaks)
        return
    plain, elastic = train_plainly(name), train_elastically(name, None, breaks=breaks)
    for one, other in zip(elastic, plain, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=program.most_apart)


@functools.cache
def rows(num_ranks):
    """Makes all cases on so many ranks, in a process that has started no threads."""
    done = subprocess.run(
        [sys.executable, str(TABLE), "--ranks", str(num_ranks)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = map(json.loads, done.stdout.splitlines())
    return {row["name"]: row for row in found}


@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_whose_rank_is_killed_ends_as_its_plain_loop(name, num_ranks):
    program = PROGRAMS[name]
    if program.only_alone:
        pytest.skip("it is not tried in a job")
    row = rows(num_ranks)[name]
    wanted = "refused" if program.refusal(num_ranks) else "equal"
    assert row["found"] == wanted, row["says"]
