"""On a GPU a worker that dies is replaced as on a CPU."""

import os
import signal

import pytest
import torch

from drivetrain_elastic.testing import LocalJob

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

ARGUMENTS = ["--device", "cuda", "--dtype", "float64", "--steps", "40"]
# As much text that some of it is held out, whatever files come first.
ARGUMENTS += ["--bytes", "5000000"]


def losses_of(folder, num_workers, *, victims=()):
    """Trains with all workers on the first GPU, where Gloo connects them."""
    with LocalJob(
        folder,
        options=["--nproc-per-node", str(num_workers)],
        arguments=[*ARGUMENTS, "--pause-s", "0.05"],
        env={"CUDA_VISIBLE_DEVICES": "0"},
    ) as job:
        job.start_node()
        for epoch, victim in enumerate(victims, start=1):
            job.wait_for(lambda status, epoch=epoch: status.epoch == epoch, 120.0)
            job.wait_for_step(8 * epoch, num_workers=num_workers)
            os.kill(job.members()[victim].pid, signal.SIGKILL)
        assert job.wait(300.0) == {"node0": 0}, job.text()
        return job.losses()


def test_worker_on_a_gpu_that_is_killed_is_replaced(tmp_path):
    (tmp_path / "quiet").mkdir()
    (tmp_path / "kills").mkdir()
    wanted = losses_of(tmp_path / "quiet", 1)
    found = losses_of(tmp_path / "kills", 2, victims=(1, 0))
    assert sorted(found) == sorted(wanted)
    for step, loss in wanted.items():
        assert found[step] == pytest.approx(loss, rel=1e-9), step


SPINS = """
import os, torch
from drivetrain_elastic import ElasticLoop, Schedule
model = torch.nn.Linear(4, 1).to({device!r})
loop = ElasticLoop(model, torch.optim.SGD(model.parameters(), lr=0.1),
    schedule=Schedule(num_samples=64, global_batch=8), num_steps=40)
for step in loop:
    with step:
        for part in step.parts():
            (model(torch.ones(1, 4, device={device!r})).sum() * part.weight).backward()
        if step.number >= 12 and not os.path.exists({done!r}):
            open({done!r}, "w").close()
            {spin}
"""


def test_kernel_that_spins_is_told_and_the_job_goes_on(tmp_path):
    script = tmp_path / "script.py"
    done = str(tmp_path / "done")
    spin = "torch.cuda._sleep(1 << 60); torch.cuda.synchronize()"
    script.write_text(SPINS.format(device="cuda", done=done, spin=spin))
    options = ["--nproc-per-node", "1", "--check", "never"]
    with LocalJob(tmp_path, options=options, program=[str(script)]) as job:
        job.start_node()
        job.wait_for(
            lambda _: any(event.kind == "hang" for event in job.events()), 90.0
        )
        (member,) = job.members()
        # Whoever is asked to end waits for the GPU.
        os.kill(member.pid, signal.SIGKILL)
        assert job.wait(120.0) == {"node0": 0}, job.text()
