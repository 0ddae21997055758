"""Real agents and workers: what dies is replaced, and the losses do not show it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from drivetrain_elastic._local_job import LocalJob

NUM_STEPS = 60
PAUSE = ["--steps", str(NUM_STEPS), "--dtype", "float64", "--pause-s", "0.02"]


@pytest.fixture
def job(tmp_path):
    """Starts jobs of one node, and sees to it that nothing of them is left."""
    jobs = []

    def start(*options, arguments=PAUSE, num_workers=3, **more):
        options = ["--nproc-per-node", str(num_workers), *options]
        jobs.append(LocalJob(tmp_path, options=options, arguments=arguments, **more))
        jobs[-1].start_node()
        return jobs[-1]

    yield start
    for one in jobs:
        one.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The losses of the same training in one process."""
    folder = tmp_path_factory.mktemp("alone")
    module = "drivetrain_elastic.examples.byte_lm"
    command = [sys.executable, "-m", module, "--log", str(folder / "steps")]
    command += ["--dtype", "float64", "--steps", str(NUM_STEPS)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    with LocalJob(folder) as alone:
        return alone.losses()


def check_losses(job, undisturbed):
    losses = job.losses()
    assert sorted(losses) == sorted(undisturbed)
    for step, loss in undisturbed.items():
        assert losses[step] == pytest.approx(loss, rel=1e-9), step


def left(processes, timeout_s=10.0):
    """Waits until processes have ended; returns those that have not."""
    _, alive = psutil.wait_procs(processes, timeout_s)
    return [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


def kinds(job):
    """Returns the kinds of the events in the output of the nodes."""
    return job.text()


def test_worker_that_is_killed_is_replaced_and_losses_do_not_show_it(job, undisturbed):
    job = job()
    job.wait_for_step(8, num_workers=3)
    os.kill(job.members()[1].pid, signal.SIGKILL)
    job.wait_for(lambda status: status.epoch >= 2)
    job.wait_for_step(16, num_workers=3)
    os.kill(job.members()[0].pid, signal.SIGKILL)
    job.wait_for(lambda status: status.epoch >= 3)
    assert job.wait() == {"node0": 0}, job.text()
    check_losses(job, undisturbed)
    assert "bits a byte on held-out text" in job.text()


def test_master_that_is_killed_is_replaced_and_no_worker_notices(job, undisturbed):
    job = job()
    status = job.wait_for_step(8, num_workers=3)
    pids = {one.pid for one in job.members()}
    master = next(p for p in job.processes() if "master" in p.cmdline())
    master.kill()
    status = job.wait_for(lambda now: now.incarnation > status.incarnation)
    after = job.wait_for_step(30, num_workers=3)
    assert {one.pid for one in job.members()} == pids
    assert (status.epoch, after.epoch) == (1, 1)
    # The new one decides as the old one would have.
    os.kill(job.members()[2].pid, signal.SIGKILL)
    job.wait_for(lambda now: now.epoch == 2)
    assert job.wait() == {"node0": 0}, job.text()
    check_losses(job, undisturbed)


def test_worker_that_is_stopped_is_killed_and_replaced(job, undisturbed):
    job = job("--frozen-s", "1.0")
    job.wait_for_step(8, num_workers=3)
    victim = psutil.Process(job.members()[1].pid)
    victim.suspend()
    job.wait_for(lambda status: status.epoch >= 2)
    assert not left([victim])
    assert job.wait() == {"node0": 0}, job.text()
    assert "stopped, and silent for" in job.text()
    check_losses(job, undisturbed)


def test_agent_that_is_killed_takes_all_its_processes_along(job):
    job = job()
    job.wait_for_step(4, num_workers=3)
    processes = job.processes()
    # Three workers, one that stands by, the server that forks them, the master.
    assert len(processes) >= 7
    job.nodes["node0"].kill()
    assert not left(processes)


def test_fork_server_that_is_killed_harms_no_worker(job, undisturbed):
    job = job()
    job.wait_for_step(4, num_workers=3)
    pids = {one.pid for one in job.members()}
    (server,) = [
        p
        for p in job.processes()
        if "drivetrain_elastic._agent._fork_server" in " ".join(p.cmdline())
        and p.ppid() == job.nodes["node0"].pid
        and p.pid not in pids
        and p.children() == []
        and p.num_threads() == 1
    ]
    server.kill()
    os.kill(job.members()[1].pid, signal.SIGKILL)
    job.wait_for(lambda status: status.epoch >= 2)
    assert job.wait() == {"node0": 0}, job.text()
    check_losses(job, undisturbed)


def test_interrupted_agent_ends_its_workers(job):
    job = job("--grace-s", "5")
    job.wait_for_step(4, num_workers=3)
    processes = job.processes()
    job.nodes["node0"].send_signal(signal.SIGINT)
    assert job.wait(20.0) == {"node0": 130}
    assert not left(processes)


SCRIPTS = {
    "fails at once": ("raise SystemExit(3)", "ended with exit code 3"),
    "ends without a loop": ("print('hello')", "ended without an ElasticLoop"),
    "is not Python": ("import 5", "ended with exit code 1"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_that_cannot_work_ends_the_job_soon(job, tmp_path, name):
    code, says = SCRIPTS[name]
    script = Path(tmp_path, "script.py")
    script.write_text(code)
    began_s = time.monotonic()
    job = job(program=[str(script)], arguments=[], num_workers=2)
    assert job.wait(60.0) == {"node0": 1}
    assert says in job.text()
    assert "no worker has ever become ready here" in job.text()
    assert time.monotonic() - began_s < 60.0


SOME = """
import os, sys
import torch
from drivetrain_elastic import ElasticLoop, Schedule
model = torch.nn.Linear(1, 1)
loop = ElasticLoop(model, torch.optim.SGD(model.parameters(), lr=0.1),
    schedule=Schedule(num_samples=8, global_batch=4), num_steps=20)
for step in loop:
    with step:
        for part in step.parts():
            (model(torch.ones(1, 1)).sum() * part.weight).backward()
    {inside}
{after}
"""


def test_scripts_that_end_differently_fail_the_job(job, tmp_path):
    script = Path(tmp_path, "script.py")
    script.write_text(SOME.format(inside="pass", after="sys.exit(step.rank * 5)"))
    job = job(program=[str(script)], arguments=[], num_workers=2)
    assert job.wait(60.0) == {"node0": 1}, job.text()
    assert "training has finished, but node0/" in job.text()
    assert "ended with exit code 5" in job.text()


def test_place_whose_workers_always_die_is_given_up(job, tmp_path):
    script = Path(tmp_path, "script.py")
    inside = "os._exit(7) if step.number >= 5 and step.rank == 1 else None"
    script.write_text(SOME.format(inside=inside, after=""))
    job = job("--max-restarts", "1", program=[str(script)], arguments=[], num_workers=2)
    assert job.wait(90.0) == {"node0": 1}, job.text()
    assert "2 deaths within 3600 s, 1 restarts allowed" in job.text()
