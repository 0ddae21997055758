"""How scripts leave their loop: all at once, one alone, with another one, in a child."""

import os

import pytest
import torch

from drivetrain_core import ProgramError
from drivetrain_elastic import ElasticLoop, Schedule
from drivetrain_elastic.testing import LocalJob

SCRIPT = """
import os, sys, torch
from pathlib import Path
from drivetrain_elastic import ElasticLoop, Schedule

def loop_of(num_steps):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = Schedule(num_samples=8, global_batch=4)
    loop = ElasticLoop(model, optimizer, schedule=schedule, num_steps=num_steps)
    loop.model = model
    return loop

def make(loop, step, within=None):
    with step:
        for part in step.parts():
            data = torch.ones(len(part.indices), 2)
            (loop.model(data).square().mean() * part.weight).backward()
        if within:
            within()

def note(what):
    with open("said", "a") as file:
        print(what, file=file)

{program}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a script with two workers to its end; returns the status, what it noted and said."""
    monkeypatch.chdir(tmp_path)

    def run(program, *options):
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.format(program=program))
        options = ["--nproc-per-node", "2", "--standbys", "1", *options]
        job = LocalJob(tmp_path, options=options, program=[str(script)])
        try:
            job.start_node()
            [status] = job.wait().values()
            said = tmp_path / "said"
            notes = said.read_text().split() if said.exists() else []
            return status, sorted(notes), job.text()
        finally:
            job.close()

    return run


@pytest.mark.slow
@pytest.mark.parametrize("leave", ["break", "sys.exit(0)"])
def test_training_that_all_ranks_leave_after_the_same_step_has_ended(run, leave):
    program = f"""
loop = loop_of(1_000_000)
for step in loop:
    make(loop, step)
    if step.number == 5:
        note(f"left-{{loop.rank}}-{{loop.step}}")
        {leave}
"""
    status, notes, text = run(program)
    assert status == 0, text
    assert notes == ["left-0-5", "left-1-5"], text
    assert "ended-early" not in text


@pytest.mark.slow
def test_script_that_fails_after_it_left_the_loop_is_a_failure(run):
    program = """
loop = loop_of(1_000_000)
for step in loop:
    make(loop, step)
    if step.number == 5:
        break
raise ValueError("the result is not good")
"""
    status, _, text = run(program, "--max-restarts", "0")
    assert status == 1, text
    assert "the result is not good" in text


@pytest.mark.slow
def test_second_loop_of_a_job_is_refused(run):
    program = """
loop = loop_of(3)
for step in loop:
    make(loop, step)
second = loop_of(3)
note("trained")
"""
    status, notes, text = run(program, "--max-restarts", "0")
    assert status == 1, text
    assert notes == []
    assert "a job has one ElasticLoop, and this is another one" in text


@pytest.mark.slow
def test_child_that_ends_within_a_step_leaves_it_to_its_parent(run):
    program = """
def fork():
    if os.fork() == 0:
        sys.exit(0)
    os.wait()

loop = loop_of(6)
for step in loop:
    make(loop, step, fork if step.number == 3 else None)
note(f"{loop.rank}-{loop.step}")
"""
    status, notes, text = run(program)
    assert status == 0, text
    assert notes == ["0-6", "1-6"], text
    assert "world 2" not in text


@pytest.mark.slow
def test_parameters_that_one_rank_changes_alone_end_the_job(run):
    program = """
loop = loop_of(8)
for step in loop:
    make(loop, step)
    if step.number == 4 and loop.rank == 0:
        with torch.no_grad():
            loop.model.weight.mul_(0.5)
note("trained")
"""
    status, notes, text = run(program, "--max-restarts", "0")
    assert status == 1, text
    assert notes == []
    assert "after step 8, 'weight' is not the same on all ranks" in text


def loop_alone():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = Schedule(num_samples=8, global_batch=4)
    return model, ElasticLoop(model, optimizer, schedule=schedule, num_steps=4)


def make(model, step):
    with step:
        for part in step.parts():
            data = torch.ones(len(part.indices), 2)
            (model(data).square().mean() * part.weight).backward()


def test_step_that_is_asked_for_and_not_made_is_refused():
    model, loop = loop_alone()
    steps = iter(loop)
    for _ in range(2):
        make(model, next(steps))
    assert next(steps).number == 3
    with pytest.raises(ProgramError, match="step 3 was asked for and not made"):
        next(steps)
    assert loop.step == 2


def test_loops_of_a_process_alone_may_be_many():
    for _ in range(2):
        model, loop = loop_alone()
        for step in loop:
            make(model, step)
        assert loop.step == 4


def test_child_of_a_process_alone_leaves_its_step():
    model, loop = loop_alone()
    for step in loop:
        with step:
            for part in step.parts():
                data = torch.ones(len(part.indices), 2)
                (model(data).square().mean() * part.weight).backward()
            if os.fork() == 0:
                try:
                    assert step.__exit__(SystemExit, SystemExit(0), None) is False
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.wait()[1] == 0
    assert loop.step == 4
