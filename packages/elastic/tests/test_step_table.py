"""Each training program ends as its plain loop does, or is refused by name."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from step_table import PROGRAMS

TABLE = Path(__file__).with_name("step_table.py")


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


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", range(4))
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_ends_as_its_plain_loop_or_is_refused_by_name(name, num_ranks):
    program = PROGRAMS[name]
    if num_ranks and program.only_alone:
        pytest.skip("it is not tried in a job")
    row = rows(num_ranks)[name]
    says = program.says if num_ranks else program.says_alone
    assert row["found"] == ("refused" if says else "equal"), row["says"]
