"""Real jobs whose workers fail, are slow or hang: who is named, why, and what follows."""

import contextlib
import os
import signal
import time

import pytest

from drivetrain_elastic import Master
from drivetrain_elastic._client._master_client import MasterClient, MasterError
from drivetrain_elastic.protocol import messages as pb
from drivetrain_elastic.testing import LocalJob

SCRIPT = """
import os, sys, time
import torch
from drivetrain_elastic import ElasticLoop, Schedule
model = torch.nn.Linear(4, 1)
loop = ElasticLoop(model, torch.optim.SGD(model.parameters(), lr=0.1),
    schedule=Schedule(num_samples=64, global_batch=8), num_steps={steps})
for step in loop:
    with step:
        for part in step.parts():
            (model(torch.ones(1, 4)).sum() * part.weight).backward()
        with loop.section("data"):
            time.sleep({pause})
        # Once, and in a world of all workers: they may have joined one by one.
        is_due = step.rank == 1 and step.number >= 12 and step.world_size == {workers}
        if is_due and not os.path.exists("{done}"):
            open("{done}", "w").close()
            {once}
        if step.rank == 1:
            {always}
"""


@pytest.fixture
def job(tmp_path):
    jobs = []

    def start(*options, once="pass", always="pass", steps=60, pause=0.01, workers=3):
        script = tmp_path / "script.py"
        code = SCRIPT.format(
            once=once,
            always=always,
            steps=steps,
            pause=pause,
            workers=workers,
            done=tmp_path / "done",
        )
        script.write_text(code)
        options = ["--nproc-per-node", str(workers), *options]
        if "--check" not in options:
            options += ["--check", "never"]
        jobs.append(LocalJob(tmp_path, options=options, program=[str(script)]))
        jobs[-1].start_node()
        return jobs[-1]

    yield start
    for one in jobs:
        one.close()


def wait_for_event(job, kind, timeout_s=120.0):
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        # The master may not be there yet.
        with contextlib.suppress(MasterError):
            for event in job.events():
                if event.kind == kind:
                    return event
        time.sleep(0.05)
    raise AssertionError(f"no {kind}\n{job.text()}")


@pytest.mark.slow
def test_program_error_stops_the_job_with_its_traceback(job):
    job = job(once="raise KeyError('no such key')")
    assert job.wait(90.0) == {"node0": 1}
    text = job.text()
    last = text[text.index("drivetrain-elastic: ") :]
    assert "has failed, program, " in last
    assert "KeyError: 'no such key'" in last
    assert "script.py" in last
    assert "restart 2 of" not in text


@pytest.mark.faults
@pytest.mark.parametrize(
    ("once", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed, sigkill"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crash, "),
    ],
)
def test_what_ends_a_worker_is_named_and_the_others_go_on(job, once, says):
    job = job(once=f"import signal; {once}", steps=100)
    event = wait_for_event(job, "diagnosis")
    assert event.reason.startswith(says)
    assert job.wait(90.0) == {"node0": 0}, job.text()


@pytest.mark.slow
@pytest.mark.parametrize("once", ["pass", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_is_accounted_for_is_what_was_trained(job, tmp_path, once):
    job = job(once=f"import signal; {once}", steps=33)
    assert job.wait(90.0) == {"node0": 0}, job.text()
    with (
        Master(tmp_path / "job.db") as master,
        MasterClient(master.address, master.token) as client,
    ):
        found = client.call("GetStatus", pb.StatusRequest()).time
    assert (found.num_steps, found.num_samples) == (33, 33 * 8)


@pytest.mark.faults
def test_slow_rank_is_named_and_those_that_wait_for_it_are_not(job):
    # It sleeps outside of the section that all share.
    job = job(always="time.sleep(0.03)", steps=10_000)
    event = wait_for_event(job, "straggler")
    (slow,) = [one for one in job.members() if one.rank == 1]
    assert event.subject == slow.name
    assert "'compute'" in event.reason
    subjects = {one.subject for one in job.events() if one.kind == "straggler"}
    assert subjects == {slow.name}
    assert wait_for_event(job, "not-excluded").subject == "node0"


@pytest.mark.faults
def test_section_in_which_a_rank_is_slow_is_named(job):
    slow = "with loop.section('data'): time.sleep(0.03)"
    job = job(always=slow.replace(": ", ":\n                "), steps=10_000)
    assert "'data'" in wait_for_event(job, "straggler").reason


@pytest.mark.faults
def test_rank_that_all_wait_for_is_named_and_where_it_hangs(job):
    job = job(once="time.sleep(1000)", steps=10_000)
    event = wait_for_event(job, "silent")
    (silent,) = [one for one in job.members() if one.rank == 1]
    assert event.subject == silent.name
    assert "of step " in event.reason
    assert "in which 2 others wait" in event.reason
    assert wait_for_event(job, "hang").reason.startswith("no step for 5")


@pytest.mark.faults
def test_each_lost_second_has_its_cause(job):
    job = job(steps=400)
    job.wait_for_step(30, num_workers=3)
    victim = job.members()[2]
    os.kill(victim.pid, signal.SIGKILL)
    status = job.wait_for(
        lambda s: any("sigkill" in row.cause for row in s.time.lost), 60.0
    )
    losses = {row.what: row.cause for row in status.time.lost}
    assert losses["world forms"] in {"start", "killed, sigkill"}
    lost_s = sum(row.seconds for row in status.time.lost)
    assert lost_s + status.time.effective_s >= status.time.total_s - 1e-6
    unknown_s = sum(r.seconds for r in status.time.lost if r.cause == "unknown")
    # A beat may be on its way.
    assert unknown_s < 3.0
    assert job.wait(90.0) == {"node0": 0}


@pytest.mark.faults
def test_check_before_training_keeps_no_healthy_node_away(job):
    job = job("--check", "start", steps=5)
    assert job.wait(120.0) == {"node0": 0}, job.text()
    assert "the check of this node: passed, alone" in job.text()
