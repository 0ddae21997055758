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
