"""Real agents and workers: what dies is replaced, and the losses do not show it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from drivetrain_elastic.cli import main
from drivetrain_elastic.testing import LocalJob, LocalJobError, members_of

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


def left(processes, timeout_s=60.0):
    """Waits until processes have ended; returns those that have not."""
    _, alive = psutil.wait_procs(processes, timeout_s)
    return [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
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


@pytest.mark.faults
def test_master_that_is_killed_is_replaced_and_no_worker_notices(job, undisturbed):
    job = job()
    status = job.wait_for_step(8, num_workers=3)
    pids = {one.pid for one in job.members()}
    master = job.master()
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


@pytest.mark.faults
def test_master_may_be_killed_again_and_again_also_as_it_starts(job):
    job = job()
    job.wait_for_step(3, num_workers=3)
    pids = {one.pid for one in job.members()}
    master = job.master()
    for _ in range(6):
        master.kill()
        master = next_master(job, master)
    after = job.wait_for(lambda now: now.incarnation > 1)
    job.wait_for_step(max(one.step for one in members_of(after)) + 3, num_workers=3)
    assert {one.pid for one in job.members()} == pids
    assert job.wait() == {"node0": 0}, job.text()


def next_master(job, before):
    while True:
        with contextlib.suppress(LocalJobError):
            if (found := job.master()) != before:
                return found
        time.sleep(0.01)


@pytest.mark.faults
def test_others_go_on_while_a_place_is_empty(job, undisturbed):
    # As if the agent had been started by another launcher.
    job = job("--standbys", "0", "--min-workers", "2", env={"RANK": "7"})
    job.wait_for_step(5, num_workers=3)
    os.kill(job.members()[1].pid, signal.SIGKILL)
    job.wait_for(lambda status: status.epoch >= 2)
    assert job.wait() == {"node0": 0}, job.text()
    sizes = {line["epoch"]: line["world_size"] for line in job.steps()}
    assert (sizes[1], sizes[2]) == (3, 2)
    check_losses(job, undisturbed)


@pytest.mark.faults
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


@pytest.mark.faults
def test_agent_that_is_killed_takes_all_its_processes_along(job):
    job = job()
    job.wait_for_step(4, num_workers=3)
    processes = job.processes()
    # Three workers, one that stands by, the server that forks them, the master.
    assert len(processes) >= 7
    job.nodes["node0"].kill()
    assert not left(processes)


@pytest.mark.faults
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


@pytest.mark.faults
def test_interrupted_agent_ends_its_workers(job):
    job = job("--grace-s", "10")
    job.wait_for_step(4, num_workers=3)
    processes = job.processes()
    job.nodes["node0"].send_signal(signal.SIGINT)
    assert job.wait(60.0) == {"node0": 130}
    assert not left(processes)


# Source does not tell that any of them makes no loop.
SCRIPTS = {
    "fails at once": ("raise SystemExit(3)", "ended with exit code 3"),
    "ends without a loop": ("print('hello')", "ended without an ElasticLoop"),
    "is not Python": ("import 5", "ended with exit code 1"),
}
BEGINS = """
import importlib, pathlib
from drivetrain_elastic import ElasticLoop
with pathlib.Path(__file__).with_name("began").open("a") as file:
    file.write("x")
make = ElasticLoop
"""


EACH = [
    "ends without a loop",
    pytest.param("fails at once", marks=pytest.mark.faults),
    pytest.param("is not Python", marks=pytest.mark.faults),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_script_that_cannot_work_runs_once_and_ends_the_job(job, tmp_path, name):
    code, says = SCRIPTS[name]
    script = Path(tmp_path, "script.py")
    script.write_text(BEGINS + code)
    job = job("--standbys", "1", program=[str(script)], arguments=[], num_workers=2)
    assert job.wait(60.0) == {"node0": 1}
    assert says in job.text()
    assert "no worker has ever become ready here" in job.text()
    began = tmp_path / "began"
    assert not began.exists() or began.read_text() == "x"


def test_script_that_can_make_no_loop_is_not_run(tmp_path, capsys):
    script = tmp_path / "plain.py"
    script.write_text(BEGINS.replace("importlib, ", "").replace("make = ", "# "))
    assert main(["run", "--nproc-per-node", "2", str(script)]) == 1
    said = f"{script} was not run: it trains without an ElasticLoop: train in the steps"
    assert said in capsys.readouterr().err
    assert not (tmp_path / "began").exists()


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


@pytest.mark.faults
def test_scripts_that_end_differently_fail_the_job(job, tmp_path):
    script = Path(tmp_path, "script.py")
    script.write_text(SOME.format(inside="pass", after="sys.exit(step.rank * 5)"))
    job = job(program=[str(script)], arguments=[], num_workers=2)
    assert job.wait(60.0) == {"node0": 1}, job.text()
    assert "training has finished, but node0/" in job.text()
    assert "ended with exit code 5" in job.text()


@pytest.mark.faults
def test_place_whose_workers_always_die_is_given_up(job, tmp_path):
    script = Path(tmp_path, "script.py")
    inside = "os._exit(7) if step.number >= 5 and step.rank == 1 else None"
    script.write_text(SOME.format(inside=inside, after=""))
    job = job("--max-restarts", "1", program=[str(script)], arguments=[], num_workers=2)
    assert job.wait(90.0) == {"node0": 1}, job.text()
    assert "2 deaths within 3600 s, 1 restarts allowed" in job.text()


FINISHES = """
import os, psutil, sys, time
import torch
from drivetrain_elastic import ElasticLoop, Schedule
model = torch.nn.Linear(1, 1)
loop = ElasticLoop(model, torch.optim.SGD(model.parameters(), lr=0.1),
    schedule=Schedule(num_samples=8, global_batch=4), num_steps=20)
def kill_master():
    for one in psutil.Process(os.getppid()).children():
        if "master" in one.cmdline():
            one.kill()
for step in loop:
    with step:
        for part in step.parts():
            (model(torch.ones(1, 1)).sum() * part.weight).backward()
        if {breaks} and step.number == 10 and step.rank == 0 and step.epoch == 1:
            kill_master()
            loop._world.abort()
if not {breaks} and step.rank == 0:
    kill_master()
"""


@pytest.mark.faults
@pytest.mark.parametrize("breaks", [True, False])
def test_master_that_dies_as_it_is_told_something_loses_nothing(job, tmp_path, breaks):
    script = Path(tmp_path, "script.py")
    script.write_text(FINISHES.replace("{breaks}", str(breaks)))
    job = job(program=[str(script)], arguments=[], num_workers=2)
    assert job.wait(60.0) == {"node0": 0}, job.text()
    assert "starting another one" in job.text()
    assert ("collectives failed" in job.text()) == breaks


LEAVES_OTHERS = """
import runpy, subprocess, sys
# One that goes on by itself, and one whose parent is gone as well.
subprocess.Popen(["sleep", "4713"], start_new_session=True)
subprocess.run(["sh", "-c", "setsid sleep 4713 & exit"], check=True)
sys.argv = ["x", "--steps", "10000", "--pause-s", "0.02"]
runpy.run_module("drivetrain_elastic.examples.byte_lm", run_name="__main__")
"""


@pytest.mark.faults
def test_agent_that_ends_leaves_nothing_of_what_workers_have_started(job, tmp_path):
    script = Path(tmp_path, "script.py")
    script.write_text(LEAVES_OTHERS)
    job = job("--grace-s", "2", program=[str(script)], arguments=[], num_workers=2)
    job.wait_for_step(3, num_workers=2)
    others = [one for one in job.processes() if "4713" in one.cmdline()]
    assert len(others) >= 4
    job.nodes["node0"].send_signal(signal.SIGTERM)
    job.nodes["node0"].wait(60)
    assert not [one for one in others if one.is_running()]


@pytest.mark.slow
def test_agent_has_room_for_its_socket_whatever_its_environment_is(job, tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    env = {f"PART{at}": "x" * 100_000 for at in range(4)}
    env |= {"TMPDIR": str(folder), "PYTHONIOENCODING": "ascii:strict"}
    script = Path(tmp_path, "script.py")
    script.write_text(SOME.format(inside="pass", after="os.write(1, 'Grüße'.encode())"))
    job = job(
        *("--tee", "--log-dir", str(tmp_path / "logs"), "--standbys", "0"),
        program=[str(script)],
        arguments=[],
        num_workers=1,
        env=env,
    )
    assert job.wait(60.0) == {"node0": 0}, job.text()
    assert "Grüße" in job.text()


STUCK = """
import os, sys, time
from pathlib import Path
import torch
from drivetrain_elastic import ElasticLoop, Schedule
flag = Path(sys.argv[1])
model = torch.nn.Linear(1, 1)
loop = ElasticLoop(model, torch.optim.SGD(model.parameters(), lr=0.1),
    schedule=Schedule(num_samples=8, global_batch=4), num_steps=20)

def hangs_here():
    flag.touch()
    time.sleep(1000)

for step in loop:
    with step:
        for part in step.parts():
            if step.number == 8 and step.rank == 1 and not flag.exists():
                hangs_here()
            (model(torch.ones(1, 1)).sum() * part.weight).backward()
print("rank", step.rank, "made", loop.step, "steps", flush=True)
"""


@pytest.mark.faults
def test_worker_that_is_stuck_is_found_among_those_that_wait(job, tmp_path):
    script = Path(tmp_path, "script.py")
    script.write_text(STUCK)
    job = job(
        *("--stuck-s", "1.5"),
        program=[str(script)],
        arguments=[str(tmp_path / "flag")],
        num_workers=2,
    )
    assert job.wait(60.0) == {"node0": 0}, job.text()
    text = job.text()
    assert text.count("made 20 steps") == 2
    assert "is stuck: computing the same step for" in text
    # The stacks of both ranks, and where the one hangs.
    assert "in hangs_here" in text, text
    assert text.count("Current thread 0x") + text.count("(most recent call first)") >= 2


RESTORES = """
import os, sys
import torch
from drivetrain_core.services import get_service
from drivetrain_elastic import ElasticLoop, Schedule
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
loop = ElasticLoop(model, torch.optim.SGD(model.parameters(), lr=0.1),
    schedule=Schedule(num_samples=8, global_batch=4), num_steps=30,
    checkpointer=get_service("drivetrain-core:checkpointer", sys.argv[1]), save_every=5)
for step in loop:
    with step:
        for part in step.parts():
            (model(torch.ones(1, 1)).sum() * part.weight).backward()
    if step.number == 17 and step.epoch == 1:
        os._exit(9)  # all of them
print("rank", step.rank, "ended with", step.number, model.bias.item())
"""


@pytest.mark.faults
def test_job_that_loses_all_workers_goes_on_from_its_checkpoint(job, tmp_path):
    script = Path(tmp_path, "script.py")
    script.write_text(RESTORES)
    job = job(
        program=[str(script)],
        arguments=[str(tmp_path / "checkpoints")],
        num_workers=2,
    )
    assert job.wait(60.0) == {"node0": 0}, job.text()
    # Thirty steps of -0.1 each, wherever they were made.
    torch.manual_seed(0)
    bias = torch.nn.Linear(1, 1).bias.item()
    found = re.findall(r"ended with 30 (\S+)", job.text())
    assert [float(one) for one in found] == [pytest.approx(bias - 3.0, abs=1e-4)] * 2


SHARDED = """
import json, os, sys, time
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from drivetrain_elastic import ElasticLoop, Schedule
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
model = model.double()
x = torch.rand(40, 4, dtype=torch.float64)
if "MASTER_PORT" in os.environ:
    dist.init_process_group("gloo")
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
loop = ElasticLoop(model, torch.optim.AdamW(model.parameters(), lr=0.01),
    schedule=Schedule(num_samples=40, global_batch=10), num_steps=60)
for step in loop:
    with step:
        time.sleep(0.02)
        while step.number == 40 and sys.argv[1:] and not os.path.exists(sys.argv[1]):
            time.sleep(0.02)
        for part in step.parts():
            loss = model(x[part.indices]).square().mean() * part.weight
            loss.backward()
whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
digest = [w.detach().double().sum().item() for w in whole]
# At once: all workers write to one output.
os.write(1, f"digest {json.dumps(digest)}\\n".encode())
"""


@pytest.mark.faults
def test_losses_of_sharded_copies_do_not_show_a_kill(job, undisturbed):
    # Under torchrun, whose store its workers would look for.
    around = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    job = job("--workers-per-copy", "2", num_workers=4, env=around)
    job.wait_for_step(10, num_workers=4)
    os.kill(job.members()[1].pid, signal.SIGKILL)
    job.wait_for(lambda status: status.epoch >= 2)
    assert job.wait(90.0) == {"node0": 0}, job.text()
    check_losses(job, undisturbed)


@pytest.mark.faults
def test_sharded_copy_that_loses_a_rank_is_replaced_as_a_whole(job, tmp_path):
    script = Path(tmp_path, "script.py")
    script.write_text(SHARDED)
    alone = subprocess.run(
        [sys.executable, str(script)], check=True, capture_output=True, text=True
    )
    job = job(
        *("--workers-per-copy", "2"),
        program=[str(script)],
        arguments=[str(tmp_path / "killed")],
        num_workers=4,
    )
    job.wait_for_step(10, num_workers=4)
    victim = job.members()[3]
    os.kill(victim.pid, signal.SIGKILL)
    # None is at its end before.
    Path(tmp_path, "killed").touch()
    assert job.wait(90.0) == {"node0": 0}, job.text()
    (wanted,) = re.findall(r"digest (.*)", alone.stdout)
    found = re.findall(r"digest (.*)", job.text())
    assert len(found) == 4, job.text()
    for one in found:
        assert json.loads(one) == pytest.approx(json.loads(wanted), rel=1e-9)
    assert "which shares its copy, was killed by SIGKILL" in job.text()
