"""The workers of a node, whose processes come late."""

import asyncio
import math
import os
import signal

import pytest

from drivetrain_elastic import AgentConfig
from drivetrain_elastic._agent._diagnostician import Diagnostician
from drivetrain_elastic._agent._output import Output
from drivetrain_elastic._agent._worker import LocalWorker, Stage
from drivetrain_elastic._agent._worker_group import WorkerGroup
from drivetrain_elastic._observability._stacks import DUMP_SIGNAL
from drivetrain_elastic.protocol import messages as pb


def sleeper():
    """Starts a process that sleeps; whoever has it waits for it."""
    command = ["/bin/sleep", "1000"]
    return os.posix_spawn(command[0], command, os.environ, setsid=True)


class LateLauncher:
    """Starts a process that sleeps each time that it is let."""

    def __init__(self):
        self.num_asked, self.may_start = 0, asyncio.Semaphore(0)
        self.pids = []

    async def start(self, env, descriptors=()):
        self.num_asked += 1
        await self.may_start.acquire()
        self.pids.append(sleeper())
        return self.pids[-1]

    async def wait_until_asked(self, num):
        while self.num_asked < num:
            await asyncio.sleep(0)


def run(scenario, **options):
    """Runs a scenario with a worker group; returns the reports and how processes have ended."""
    reports = []

    async def main():
        launcher = LateLauncher()
        config = AgentConfig(node="n", num_standbys=0, **options)
        output = Output(None)
        diagnostician = Diagnostician("n", "/nowhere", output)
        worker_group = WorkerGroup(
            config,
            launcher,
            output,
            {},
            report=reports.extend,
            broken=lambda *_: None,
            saved=lambda _: None,
            terminated=lambda: None,
            diagnostician=diagnostician,
        )
        worker_group.begin()
        await launcher.wait_until_asked(1)
        try:
            await scenario(worker_group, launcher)
            await worker_group.stop("the test is over", grace_s=0.0)
            assert not worker_group.pids
        finally:
            diagnostician.close()
            for pid in worker_group.pids:
                os.kill(pid, signal.SIGKILL)
        return len(launcher.pids)

    return reports, asyncio.run(asyncio.wait_for(main(), 60.0))


def test_worker_that_is_killed_as_it_starts_ends(caplog):
    caplog.set_level("INFO")

    async def scenario(worker_group, launcher):
        (worker,) = worker_group.workers.values()
        worker_group.ask_to_leave("the node goes", 5.0)
        assert worker.why_killed
        launcher.may_start.release()
        while worker_group.workers:
            await asyncio.sleep(0.001)

    reports, num_started = run(scenario)
    assert num_started == 1
    assert [one.state for one in reports] == [pb.WorkerReport.FAILED]
    assert reports[0].reason == "was killed: the node leaves"
    # That a worker ends with the rest of its node is no fault of it.
    assert "is not needed any more: the node leaves" in caplog.text
    assert "was killed" not in caplog.text


def test_copy_that_dies_as_it_starts_is_not_made_whole():
    async def scenario(worker_group, launcher):
        launcher.may_start.release()
        await launcher.wait_until_asked(2)
        _, second = worker_group.workers.values()
        worker_group._is_ending = True  # nothing takes its place
        os.kill(launcher.pids[0], signal.SIGKILL)
        while worker_group.workers:
            await asyncio.sleep(0.001)
        assert "which shares its copy" in second.why_killed
        launcher.may_start.release()
        while len(launcher.pids) < 2 or worker_group.pids:
            await asyncio.sleep(0.001)

    _, num_started = run(scenario, num_workers=4, workers_per_copy=4)
    assert num_started == 2


def test_worker_without_a_process_keeps_nobody_waiting():
    async def scenario(worker_group, launcher):
        await worker_group.stop("enough", grace_s=math.inf)

    assert run(scenario)[1] == 0


def fail_one(*, examine, is_spare=False):
    """Lets a worker die, and what finds out why do what a test wants."""

    async def scenario(worker_group, launcher):
        worker_group._diagnostician.examine = examine
        (worker,) = worker_group.workers.values()
        worker.is_spare = is_spare
        launcher.may_start.release()
        while not launcher.pids or worker.process is None:
            await asyncio.sleep(0.001)
        os.kill(launcher.pids[0], signal.SIGKILL)
        while not worker_group._deaths_s:
            await asyncio.sleep(0.001)
        await asyncio.gather(*worker_group._examinations)

    return [one for one in run(scenario)[0] if one.HasField("failure")]


def test_failure_is_reported_though_its_examination_fails(caplog):
    async def examine(*_, **__):
        message = "no driver"
        raise RuntimeError(message)

    (report,) = fail_one(examine=examine)
    assert report.state == pb.WorkerReport.FAILED
    failure = report.failure
    assert (failure.failure_class, failure.cause) == ("unknown", "not-examined")
    assert "no driver" in failure.evidence
    assert "no driver" in caplog.text


def test_failure_of_a_worker_that_only_stands_by_is_not_the_jobs():
    async def examine(worker, *_, **__):
        return worker, pb.Failure(failure_class="program")

    assert len(fail_one(examine=examine)) == 1
    assert fail_one(examine=examine, is_spare=True) == []


class Connection:
    """Takes what is sent to a worker."""

    def send(self, what, **fields):
        pass

    def close(self):
        pass


def test_others_start_when_the_first_has_called():
    async def scenario(worker_group, launcher):
        (first,) = worker_group.workers.values()
        launcher.may_start.release()
        while first.process is None:
            await asyncio.sleep(0)
        assert launcher.num_asked == 1
        worker_group.heard(Connection(), {"what": "hello", "name": first.name})
        launcher.may_start.release()
        launcher.may_start.release()
        await launcher.wait_until_asked(3)
        assert {one.slot for one in worker_group.workers.values()} == {0, 1, 2}
        # A second call, as of a worker that takes its place, starts nothing.
        worker_group.heard(Connection(), {"what": "hello", "name": first.name})
        while len(launcher.pids) < 3:
            await asyncio.sleep(0)
        assert launcher.num_asked == 3

    _, started = run(scenario, num_workers=3)
    assert started == 3


def test_none_starts_beside_a_first_that_ends_without_a_call():
    async def scenario(worker_group, launcher):
        (first,) = worker_group.workers.values()
        launcher.may_start.release()
        while first.process is None:
            await asyncio.sleep(0)
        os.kill(first.process.pid, signal.SIGTERM)
        await launcher.wait_until_asked(2)
        # Whoever takes its place shows it then.
        assert {one.slot for one in worker_group.workers.values()} == {0}
        launcher.may_start.release()
        while len(launcher.pids) < 2:
            await asyncio.sleep(0)

    _, started = run(scenario, num_workers=3)
    assert started == 2


@pytest.mark.parametrize("is_at_its_end", [True, False])
def test_stacks_are_asked_of_workers_that_can_still_answer(is_at_its_end):
    """The processes of these tests cannot: who is asked dies of it."""

    async def scenario(worker_group, launcher):
        (worker,) = worker_group.workers.values()
        launcher.may_start.release()
        while worker.process is None:
            await asyncio.sleep(0)
        connection = Connection()
        worker_group.heard(connection, {"what": "hello", "name": worker.name})
        worker.is_spare = False
        if is_at_its_end:
            worker_group.heard(connection, {"what": "finished"})
        worker_group.dump_stacks()
        if not is_at_its_end:
            while worker_group.pids:
                await asyncio.sleep(0.001)
        worker_group.kill(worker, "the test is over")

    reports, _ = run(scenario)
    killed_by = f"signal {DUMP_SIGNAL}"
    reasons = [one.reason for one in reports if one.reason]
    assert any(killed_by in reason for reason in reasons) is not is_at_its_end, reasons


@pytest.mark.parametrize("stage", Stage)
def test_worker_is_reported_as_starting_until_it_is_ready(stage):
    worker = LocalWorker(name="n/0", slot=0, copy=0, is_spare=False, stage=stage)
    starting, ready = pb.WorkerReport.STARTING, pb.WorkerReport.READY
    assert worker.report().state == (starting if stage is Stage.STARTING else ready)
