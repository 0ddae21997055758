"""Workers on simulated accelerators: those that die are replaced, and no step is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from drivetrain_core import init_process_group
from drivetrain_elastic._observability._step_meter import _DeviceTimer
from drivetrain_elastic._training._gradient_reducer import GradientReducer
from drivetrain_elastic.testing import LocalJob
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.simulated_accelerator

ARGUMENTS = ["--dtype", "float64", "--steps", "24", "--bytes", "2000000"]
DEVICE = "devices=4,op_delay_us=20,copy_delay_us=200,collective_delay_us=30000"


def sums_of_late_gradients():
    group = init_process_group()
    rank = group.rank()
    parameter = torch.nn.Parameter(torch.zeros(8, device="sim"))
    reducer = GradientReducer([parameter])
    found = []
    for _ in range(2):
        reducer.begin(look_for_wish=lambda: rank == 1)
        reducer.send_with(group)
        (parameter * (rank + 1)).sum().backward()
        reducer.finish(group)
        reducer.show()
        # An update would read them at once.
        found.append((parameter.grad.tolist(), reducer.has_news, reducer.has_wish))
        reducer.settle()
    return found


def test_sums_are_there_once_they_are_waited_for():
    device = {"SIMULATED_ACCELERATOR": DEVICE}
    for found in run_ranks(sums_of_late_gradients, 2, process_group=False, env=device):
        assert found == [([3.0] * 8, False, True)] * 2


def test_time_of_a_step_is_that_of_what_the_device_has_done():
    from drivetrain_simulated_accelerator import control

    timer = _DeviceTimer(torch.device("sim"))
    x = torch.ones(8, device="sim")
    with control.delays(op_us=20000):
        timer.begin()
        x.mul_(2.0)
        timer.end()
        assert timer.seconds() >= 0.02


def losses_of(folder, device, num_workers, *, victims=(), **options):
    folder.mkdir()
    arguments = [*ARGUMENTS, "--device", device]
    if options:
        arguments += ["--log", str(folder / "steps")]
    with LocalJob(
        folder,
        options=["--nproc-per-node", str(num_workers), "--check", "never"],
        arguments=arguments,
        env={"SIMULATED_ACCELERATOR": DEVICE},
        **options,
    ) as job:
        job.start_node()
        for epoch, victim in enumerate(victims, start=1):
            job.wait_for(lambda status, epoch=epoch: status.epoch == epoch, 120.0)
            job.wait_for_step(6 * epoch, num_workers=num_workers)
            os.kill(job.members()[victim].pid, signal.SIGKILL)
        assert job.wait(300.0) == {"node0": 0}, job.text()
        return job.losses()


def test_gradients_are_read_once_they_are_sums(tmp_path):
    expected = losses_of(tmp_path / "cpu", "cpu", 1)
    found = losses_of(tmp_path / "sim", "sim", 2)
    assert sorted(found) == sorted(expected)
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=1e-9), step


@pytest.mark.slow
def test_worker_that_is_killed_is_replaced(tmp_path):
    expected = losses_of(tmp_path / "cpu", "cpu", 1)
    found = losses_of(tmp_path / "sim", "sim", 2, victims=(1, 0))
    assert sorted(found) == sorted(expected)
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=1e-9), step


@pytest.mark.slow
def test_worker_whose_devices_are_lost_is_replaced(tmp_path):
    expected = losses_of(tmp_path / "cpu", "cpu", 1)
    mark = tmp_path / "lost"
    program = [str(Path(__file__).with_name("lost_device.py")), str(mark)]
    found = losses_of(tmp_path / "sim", "sim", 2, program=program)
    assert mark.exists()
    assert sorted(found) == sorted(expected)
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=1e-9), step
