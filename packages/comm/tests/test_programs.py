"""Random programs of collectives: what is made of a seed, and ten of them beside Gloo."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drivetrain_comm.backend import _native

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import program_plan
import programs
from program_rank import Seen


def test_programs_of_seeds_have_all_that_there_is():
    found = [program_plan.make_program(seed) for seed in range(400)]
    assert found == [program_plan.make_program(seed) for seed in range(400)]
    steps = [step for program in found for step in program.steps]
    kinds = {step.kind for step in steps}
    assert kinds == {
        *program_plan.KINDS,
        "new_group",
        "destroy_group",
        "wait",
        "threads",
    }
    assert {step.mode for step in steps} == {"sync", "later", "then", "drop"}
    assert {step.layout for step in steps} == {"plain", "offset", "transposed", "gaps"}
    assert {program.num_ranks for program in found} == {2, 3, 4}
    assert max(step.late[1] for step in steps if step.late) > 1


def test_programs_that_lose_a_rank_lose_it_in_each_way():
    found = [program_plan.make_program(seed, loses_a_rank=True) for seed in range(60)]
    assert {one.loss.how for one in found} == {"kill", "timer", "exit", "leave"}
    assert all(one.loss.rank < one.num_ranks for one in found)


def saw(digest, error=None):
    return Seen(results={0: (digest, None, None)}, error=error)


def test_other_bits_are_a_difference_and_so_is_an_error():
    program = program_plan.Program(
        seed=0,
        num_ranks=2,
        steps=(program_plan.Step(kind="all_reduce", size=3),),
        is_exact=True,
        ends_with_barrier=True,
        algorithm=None,
        hosts=("0", "0"),
    )
    stock = [saw("a"), saw("a")]
    assert programs.differences(program, stock, stock) == []
    assert (
        "rank 1, step 0"
        in programs.differences(program, stock, [saw("a"), saw("b")])[0]
    )
    other = programs.differences(program, stock, [saw("b"), saw("b")])
    assert len(other) == 2
    failed = programs.differences(program, stock, [saw("a"), saw("a", "lost")])
    assert failed == ["rank 1: stock None, tuned 'lost'"]
    lost = replace(program, loss=program_plan.Loss(rank=1, step=0, how="kill"))
    assert programs.untold(lost, [saw("a", "rank 1 is lost"), None], None)[0] == []
    assert programs.untold(lost, [saw("a", "no idea"), None], None)[0]
    assert programs.untold(lost, [saw("a"), None], None)[0]
    assert programs.untold(lost, [None, None], None)[0]


@pytest.mark.slow
@pytest.mark.skipif(
    _native.missing_because() is not None, reason=str(_native.missing_because())
)
def test_ten_programs_are_those_of_stock_gloo():
    words = [sys.executable, programs.__file__, "--number", "10", "--first", "410"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = {"capture_output": True, "text": True, "timeout": 240}
    done = subprocess.run(words, env=env, check=False, **options)
    assert done.returncode == 0, done.stdout
    assert "9 equal to stock, 1 losses told" in done.stdout
