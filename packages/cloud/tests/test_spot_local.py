"""Real trainings on nodes that hear that they will be taken away."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from drivetrain_cloud.notices import FakeCloud
from drivetrain_cloud.spot import Recovery, SpotConfig
from drivetrain_cloud.spot.local_job import LocalSpotJob
from drivetrain_cloud.spot.local_pool import CapacityChange
from drivetrain_core import ProgramError
from drivetrain_elastic._membership._sigterm import HeldSigterm
from drivetrain_elastic.testing import LocalJob, members_of

pytestmark = pytest.mark.faults

OPTIONS = ["--nproc-per-node", "1", "--nnodes", "1:2", "--standbys", "0"]
ENDLESS = ["--steps", "100000", "--pause-s", "0.02"]


def whole(num):
    return lambda status: status.world_size == num and len(members_of(status)) == num


def kinds(job):
    return [one.kind for one in job.events()]


def wait_for_event(job, kind):
    job.wait_for(lambda _: kind in kinds(job))


def test_a_notice_is_saved_and_the_node_leaves_in_time(tmp_path):
    saved = tmp_path / "checkpoints"
    arguments = [*ENDLESS, "--checkpoints", str(saved)]
    with (
        FakeCloud() as cloud,
        LocalJob(tmp_path, options=OPTIONS, arguments=arguments) as job,
    ):
        job.start_node()
        leaver = job.start_node("--notices", f"aws={cloud.url}", "--notices-s", "0.1")
        job.wait_for_step(5, num_workers=2)
        cloud.reclaim(300.0)
        wait_for_event(job, "saved")
        assert list(saved.glob("step-*"))
        (node,) = [one for one in job.status().nodes if one.HasField("notice")]
        assert (node.node, node.is_leaving) == ("node1", False)
        assert 200.0 < node.notice.within_s <= 300.0
        cloud.withdraw()
        wait_for_event(job, "notice-withdrawn")
        assert len(job.members()) == 2
        cloud.reclaim(12.0)
        status = job.wait_for(whole(1))
        assert "is leaving" in status.reason
        assert leaver.wait(60) == 0
        found = kinds(job)
        assert (found.count("notice"), found.count("saved")) == (2, 2)
        assert not {"node-lost", "worker-failed"} & set(found), job.text()
        steps = {one["step"] for one in job.steps()}
        assert steps == set(range(1, max(steps) + 1))


def test_a_notice_is_answered_where_the_script_saves_nothing(tmp_path):
    with (
        FakeCloud() as cloud,
        LocalJob(tmp_path, options=OPTIONS, arguments=ENDLESS) as job,
    ):
        job.start_node()
        job.start_node("--notices", f"azure={cloud.url}", "--notices-s", "0.1")
        job.wait_for_step(5, num_workers=2)
        cloud.reclaim(6.0)
        job.wait_for(whole(1))
        job.nodes["node1"].wait(60)
        (event,) = [one for one in job.events() if one.kind == "save-failed"]
        assert "no checkpointer" in event.reason
        assert cloud.started == ["ours"], job.text()


def test_the_only_node_saves_before_it_ends(tmp_path):
    saved = tmp_path / "checkpoints"
    arguments = [*ENDLESS, "--checkpoints", str(saved)]
    options = ["--nproc-per-node", "2", "--standbys", "0"]
    with LocalJob(tmp_path, options=options, arguments=arguments) as job:
        node = job.start_node()
        job.wait_for_step(5, num_workers=2)
        node.send_signal(signal.SIGTERM)
        assert node.wait(60) == 128 + signal.SIGTERM
        last = max(one["step"] for one in job.steps())
        steps = [int(path.name[5:].split(".")[0]) for path in saved.glob("step-*")]
        assert last - 10 <= max(steps) <= last


LOADERS = """
import os, sys, time, torch
from drivetrain_elastic import ElasticLoop, Schedule

class Data(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield torch.rand(4)

model = torch.nn.Linear(4, 1)
loop = ElasticLoop(model, torch.optim.SGD(model.parameters(), lr=0.1),
                   schedule=Schedule(num_samples=64, global_batch=8), num_steps=100000)
batches = iter(torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2))
for step in loop:
    with step:
        time.sleep(0.02)
        for part in step.parts():
            (model(next(batches)).square().mean() * part.weight).backward()
"""


def test_loaders_of_data_do_not_end_before_a_node_that_is_told_to(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LOADERS)
    program = [str(script)]
    with LocalJob(tmp_path, options=OPTIONS, program=program) as job:
        job.start_node()
        leaver = job.start_node()
        job.wait_for_step(5, num_workers=2)
        # As a scheduler does that signals all processes of a node.
        (worker,) = [
            psutil.Process(one.pid)
            for node in job.status().nodes
            for one in node.workers
            if node.node == "node1"
        ]
        loaders = worker.children()
        assert len(loaders) == 2
        for one in [*loaders, worker, psutil.Process(leaver.pid)]:
            one.send_signal(signal.SIGTERM)
        job.wait_for(whole(1))
        assert leaver.wait(60) == 0, job.text()
        assert "worker-failed" not in kinds(job), job.text()
        assert "DataLoader worker" not in job.text()


def test_a_held_sigterm_is_told_and_ends_the_process_when_it_is_meant(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, threading, time\n"
        "from drivetrain_elastic._membership._sigterm import HeldSigterm\n"
        "held = HeldSigterm(lambda: print('heard', flush=True))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Timer(0.2, held.end).start()\n"
        "time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("heard\n", -signal.SIGTERM)


def test_one_folder_is_of_one_job_at_a_time(tmp_path):
    config, changes = SpotConfig(nodes=1), [CapacityChange(0.0, 1)]
    with LocalSpotJob(["x.py"], config, changes, folder=tmp_path):
        token = (tmp_path / "token").read_bytes()
        with pytest.raises(ProgramError, match="is supervised in the folder"):
            LocalSpotJob(["x.py"], config, changes, folder=tmp_path)
        assert (tmp_path / "token").read_bytes() == token
    LocalSpotJob(["x.py"], config, changes, folder=tmp_path).close()


def test_a_handler_of_the_script_is_left_alone():
    before = signal.signal(signal.SIGTERM, own := lambda *_: None)
    try:
        held = HeldSigterm(lambda: None)
        held.end()
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("recovery", Recovery)
def test_a_supervised_job_loses_nothing_by_a_reclaim(tmp_path, recovery):
    steps = 150
    program = ["-m", "drivetrain_elastic.examples.byte_lm", "--steps", str(steps)]
    program += ["--pause-s", "0.1", "--log", str(tmp_path / "steps")]
    program += ["--checkpoints", str(tmp_path / "checkpoints")]
    config = SpotConfig(
        nodes=2, recovery=recovery, settle_s=0.0, grow_after_s=0.0, margin_s=1.0
    )
    changes = [CapacityChange(0.0, 2)]
    with LocalSpotJob(
        program, config, changes, folder=tmp_path, clouds=[("aws", 6.0)]
    ) as job:

        def look(supervisor):
            # One is taken as soon as both train, and comes back.
            view = supervisor.view
            trains = len(view.training) == 2 and view.step > 10
            if len(job.pool.trace) == 1 and trains:
                now_s = time.monotonic() - job.pool.began_s
                job.pool.trace += (
                    CapacityChange(now_s, 1),
                    CapacityChange(now_s + 8.0, 2),
                )

        assert job.run(poll_s=0.1, looked=look) == 0
        assert [one.what for one in job.pool.events].count("noticed") == 1
        (taken,) = [one for one in job.supervisor.usage.nodes if one.was_taken]
        assert taken.end_s is not None
        assert len(job.supervisor.saves) >= 1
    found = {}
    for path in Path(tmp_path, "steps").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            found.setdefault((one["step"], one["epoch"]), []).extend(one["indices"])
    # No step is lost, and none is made twice.
    assert sorted(step for step, _ in found) == list(range(1, steps + 1))
    assert all(len(indices) == 24 for indices in found.values())
