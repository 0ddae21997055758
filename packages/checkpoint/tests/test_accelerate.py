"""Accelerate's programs are saved in two stages, and go on as if nothing had been."""

import os
import random
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from drivetrain_checkpoint import Checkpointer, list_checkpoints
from drivetrain_core import CheckpointError

pytestmark = [pytest.mark.extra, pytest.mark.filterwarnings("ignore")]

RUN = textwrap.dedent(
    """
    import os, signal, sys, warnings
    warnings.simplefilter("ignore")
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration
    from drivetrain_checkpoint import Checkpointer
    from drivetrain_checkpoint.adapters.accelerate import load_state, save_state

    class Counter:
        count = 0
        def state_dict(self): return {"count": self.count}
        def load_state_dict(self, state): self.count = state["count"]

    folder, kill_at, result = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    config = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    loader = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=2, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    torch.manual_seed(1 + accelerator.process_index)
    checkpointer = Checkpointer(folder, job="accelerate")
    first = load_state(accelerator, checkpointer) if checkpointer.has_daemon() else 0
    assert counter.count == first
    for epoch in range(first, 6):
        for batch in loader:
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step(); scheduler.step(); optimizer.zero_grad()
        counter.count += 1
        save_state(accelerator, checkpointer, epoch + 1)
        if epoch + 1 == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.flush()
    own = {"model": accelerator.unwrap_model(model).state_dict(), "random": torch.rand(3)}
    torch.save(own, f"{result}-{accelerator.process_index}")
    """
)


def run(tmp_path, name, port, *, num_processes, kill_at=-1):
    script = tmp_path / "train.py"
    script.write_text(RUN)
    world = {"WORLD_SIZE": str(num_processes), "MASTER_PORT": str(port)}
    base = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    processes = []
    for rank in range(num_processes):
        env = {**base, "MASTER_ADDR": "127.0.0.1"}
        if num_processes > 1:
            env |= {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        arguments = [str(tmp_path / name), str(kill_at), str(tmp_path / f"{name}.pt")]
        command = [sys.executable, str(script), *arguments]
        processes.append(subprocess.Popen(command, env=env))
    return [process.wait(200) for process in processes]


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_processes", [1, pytest.param(2, marks=pytest.mark.faults)]
)
def test_killed_program_resumes_to_the_same_weights(tmp_path, num_processes):
    ports = [free_port() for _ in range(3)]
    there = {"num_processes": num_processes}
    assert run(tmp_path, "whole", ports[0], **there) == [0] * num_processes
    killed = run(tmp_path, "killed", ports[1], **there, kill_at=3)
    assert -signal.SIGKILL in killed
    assert run(tmp_path, "killed", ports[2], **there) == [0] * num_processes
    for rank in range(num_processes):
        expected = torch.load(tmp_path / f"whole.pt-{rank}")
        found = torch.load(tmp_path / f"killed.pt-{rank}")
        assert torch.equal(found["random"], expected["random"])
        for name, tensor in expected["model"].items():
            assert torch.equal(found["model"][name], tensor), name
    assert list_checkpoints(tmp_path / "killed")[-1].step == 6


@pytest.fixture
def accelerator():
    from accelerate import Accelerator

    return Accelerator(cpu=True)


def test_state_comes_back_with_the_generators(accelerator, tmp_path):
    from drivetrain_checkpoint.adapters.accelerate import load_state, save_state

    model = accelerator.prepare(torch.nn.Linear(3, 2))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    checkpointer = Checkpointer(tmp_path, job="accelerate")
    handle = save_state(accelerator, checkpointer, 4, persist=False)
    assert handle.staged
    drawn = torch.rand(2), random.random()
    with torch.no_grad():
        model.weight.zero_()
    assert load_state(accelerator, checkpointer) == 4
    assert torch.equal(torch.rand(2), drawn[0])
    assert random.random() == drawn[1]
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_program_that_prepared_something_else_is_told(accelerator, tmp_path):
    from drivetrain_checkpoint.adapters.accelerate import load_state, save_state

    accelerator.prepare(torch.nn.Linear(3, 2))
    checkpointer = Checkpointer(tmp_path, job="accelerate")
    save_state(accelerator, checkpointer, 1)
    accelerator.prepare(torch.nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="model_1"):
        load_state(accelerator, checkpointer)
