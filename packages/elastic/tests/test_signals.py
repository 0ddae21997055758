"""Signals to an agent: the step ends, what it made is saved, and the script comes to its end."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import time

import pytest

from drivetrain_elastic.testing import LocalJob, members_of

pytestmark = pytest.mark.slow

SCRIPT = """
import os, signal, sys, time, torch
from pathlib import Path
from drivetrain_core import CheckpointError
from drivetrain_core.services import get_service
from drivetrain_elastic import ElasticLoop, Schedule

folder, saves, *rest = sys.argv[1:]
{before}

class Away:
    def latest(self):
        return None
    def save(self, step, state):
        raise CheckpointError("the store is away")
    def flush(self, end_s):
        return True

saver = None
if saves == "saves":
    saver = get_service("drivetrain-core:checkpointer", folder + "/saved")
elif saves == "fails":
    saver = Away()
torch.manual_seed(0)
data, model = torch.rand(64, 4), torch.nn.Linear(4, 1)
loop = ElasticLoop(
    model,
    torch.optim.SGD(model.parameters(), lr=0.01),
    schedule=Schedule(num_samples=64, global_batch=8),
    num_steps=100_000,
    checkpointer=saver,
)
for step in loop:
    with step:
        {within}
        for part in step.parts():
            time.sleep(0.02)
            (model(data[part.indices]).square().mean() * part.weight).backward()
Path(folder, f"after-{{loop.rank}}").write_text(f"{{loop.step}} {{loop.is_done}}")
"""


def _start(*words, **options):
    """Starts a process that hears a hangup, though whoever runs the tests may not."""
    heed = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
    return subprocess.Popen(*words, preexec_fn=heed, **options)  # noqa: PLW1509


@pytest.fixture
def job(tmp_path):
    """Makes jobs of a script that leaves a file with its last step, after its loop."""
    jobs = []

    def make(*options, saves="saves", before="", within="pass", start=None):
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.format(before=before, within=within))
        options = ["--nproc-per-node", "1", "--standbys", "0", *options]
        program = [str(script), str(tmp_path), saves]
        jobs.append(LocalJob(tmp_path, options=options, program=program))
        jobs[-1].start_node(start=start or _start)
        return jobs[-1]

    yield make
    for one in jobs:
        one.close()


def last_steps(folder):
    """Returns the last step of each rank, as it was after its loop."""
    found = {}
    for path in folder.glob("after-*"):
        step, is_done = path.read_text().split()
        assert is_done == "False"
        found[int(path.name.removeprefix("after-"))] = int(step)
    return found


def saved_step(folder):
    return max(int(one.name[5:].split(".")[0]) for one in folder.glob("saved/step-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_only_node_saves_its_last_step_and_lets_scripts_end(job, tmp_path, number):
    job = job("--nproc-per-node", "2", "--standbys", "1")
    job.wait_for_step(5, num_workers=2)
    job.nodes["node0"].send_signal(number)
    assert job.wait() == {"node0": 128 + number}, job.text()
    steps = last_steps(tmp_path)
    assert sorted(steps) == [0, 1], job.text()
    assert set(steps.values()) == {saved_step(tmp_path)}


def test_script_without_a_checkpointer_comes_to_its_end(job, tmp_path):
    job = job(saves="no")
    job.wait_for_step(5)
    job.nodes["node0"].send_signal(signal.SIGTERM)
    assert job.wait() == {"node0": 143}, job.text()
    assert last_steps(tmp_path)[0] >= 5


def test_all_nodes_at_once_leave_after_the_same_saved_step(job, tmp_path):
    job = job("--nnodes", "2")
    job.start_node()
    job.wait_for_step(5, num_workers=2)
    for node in job.nodes.values():
        node.send_signal(signal.SIGTERM)
    assert job.wait() == {"node0": 143, "node1": 143}, job.text()
    steps = last_steps(tmp_path)
    assert sorted(steps) == [0, 1], job.text()
    assert set(steps.values()) == {saved_step(tmp_path)}


def test_job_that_needs_the_node_waits_with_the_state_for_another_one(job, tmp_path):
    job = job("--nnodes", "2")
    leaver = job.start_node()
    job.wait_for_step(5, num_workers=2)
    leaver.send_signal(signal.SIGTERM)
    assert leaver.wait(60) == 143, job.text()
    [left] = last_steps(tmp_path).values()
    # Which node saves is not said: the one that stays may be the one.
    job.wait_for(lambda _: saved_step(tmp_path) == left)
    job.start_node()
    job.wait_for(lambda status: len(members_of(status)) == 2)
    job.wait_for_step(left + 3, num_workers=2)
    assert "is broken" not in job.text()


def test_checkpoint_that_fails_is_told_by_the_exit_status(job, tmp_path):
    job = job(saves="fails")
    job.wait_for_step(3)
    job.nodes["node0"].send_signal(signal.SIGTERM)
    assert job.wait() == {"node0": 1}, job.text()
    assert "its checkpoint has failed: the store is away" in job.text()
    assert last_steps(tmp_path)


def test_step_that_outlasts_the_grace_is_told_by_the_exit_status(job, tmp_path):
    job = job("--grace-s", "4", within="time.sleep(120 if step.number == 4 else 0)")
    job.wait_for_step(3)
    job.nodes["node0"].send_signal(signal.SIGTERM)
    assert job.wait(60) == {"node0": 1}, job.text()
    assert "1 workers did not leave in time" in job.text()


def test_error_after_the_loop_is_told_by_the_exit_status(job):
    job = job(before="import atexit; atexit.register(os._exit, 3)")
    job.wait_for_step(3)
    job.nodes["node0"].send_signal(signal.SIGTERM)
    assert job.wait() == {"node0": 1}, job.text()
    assert "a worker has failed as it left" in job.text()


HANDLERS = """
def hear(number, _):
    Path(folder, f"heard-{number}").touch()
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU):
    signal.signal(number, hear)
"""
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU)


def test_warnings_of_schedulers_reach_scripts_that_handle_them(job, tmp_path):
    job = job(before=HANDLERS)
    job.wait_for_step(3)
    for number in WARNINGS:
        job.nodes["node0"].send_signal(number)
        job.wait_for(lambda _, n=number: (tmp_path / f"heard-{n}").exists())
    (worker,) = job.members()
    job.wait_for_step(worker.step + 3)
    assert not list(tmp_path.glob("saved/step-*"))


@pytest.mark.parametrize("number", WARNINGS)
def test_warning_that_no_script_handles_is_a_notice_to_save(job, tmp_path, number):
    job = job()
    job.wait_for_step(3)
    # As a scheduler does that signals all processes of a job.
    (worker,) = job.members()
    if number != signal.SIGALRM:
        os.kill(worker.pid, number)
    job.nodes["node0"].send_signal(number)
    job.wait_for(lambda _: "saved" in [one.kind for one in job.events()])
    saved = saved_step(tmp_path)
    job.wait_for_step(saved + 3)
    assert [one.pid for one in job.members()] == [worker.pid]


def test_hangup_that_nohup_has_ignored_stays_ignored(job):
    ignore = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    job = job(start=functools.partial(subprocess.Popen, preexec_fn=ignore))
    job.wait_for_step(3)
    job.nodes["node0"].send_signal(signal.SIGHUP)
    (worker,) = job.members()
    job.wait_for_step(worker.step + 10)
    assert "got SIGHUP" not in job.text()


ONCE = """
if not Path(folder, "once").exists() and step.number == 4:
            Path(folder, "once").touch()
            os._exit(0)
"""


def test_worker_that_ends_well_too_early_is_no_unknown_failure(job):
    job = job(within=ONCE.strip())
    job.wait_for(lambda status: status.epoch >= 2)
    job.wait_for_step(6)
    assert "ended-early" in job.text()
    assert "before the end of the training: by sys.exit" in job.text()
    assert "no-failure" not in job.text()


NAMES = """
import json
names = "RANK WORLD_SIZE LOCAL_RANK TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT"
names += " TORCHELASTIC_MAX_RESTARTS"
found = {name: os.environ[name] for name in names.split()}
Path(folder, f"names-{os.getpid()}").write_text(json.dumps(found))
"""


def names_of(folder):
    found = []
    for path in folder.glob("names-*"):
        with contextlib.suppress(ValueError):
            found.append(json.loads(path.read_text()))
    return found


def test_workers_have_the_names_that_torchrun_gives(job, tmp_path):
    options = ["--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "5"]
    job = job(*options, before=NAMES)
    job.start_node()
    job.wait_for_step(3, num_workers=4)
    found = names_of(tmp_path)
    assert sorted(int(one["RANK"]) for one in found) == [0, 1, 2, 3]
    assert all(int(one["RANK"]) % 2 == int(one["LOCAL_RANK"]) for one in found)
    assert {one["WORLD_SIZE"] for one in found} == {"4"}
    assert len({one["TORCHELASTIC_RUN_ID"] for one in found}) == 1
    assert {one["TORCHELASTIC_RESTART_COUNT"] for one in found} == {"0"}
    assert {one["TORCHELASTIC_MAX_RESTARTS"] for one in found} == {"5"}
    before = {path.name for path in tmp_path.glob("names-*")}
    os.kill(job.members()[3].pid, signal.SIGKILL)
    end_s = time.monotonic() + 60
    while len(names_of(tmp_path)) < 5 and time.monotonic() < end_s:
        time.sleep(0.05)
    (new,) = {path.name for path in tmp_path.glob("names-*")} - before
    after = json.loads((tmp_path / new).read_text())
    assert (after["RANK"], after["TORCHELASTIC_RESTART_COUNT"]) == ("3", "1")
