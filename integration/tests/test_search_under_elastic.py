"""Workers under `drivetrain elastic run` search once, and all train by the one plan."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, signal
import torch
from torch import nn
from drivetrain_core import accelerate
from drivetrain_elastic import ElasticLoop, Schedule

generator = torch.Generator().manual_seed(0)
X, Y = torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator)


def loss(output, batch):
    return nn.functional.mse_loss(output, batch[1])


if __name__ == "__main__":
    accelerated = accelerate(
        nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)),
        lambda parameters: torch.optim.AdamW(parameters),
        [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 64, 8)],
        loss,
        own_loop=True,
        cache=False,
        progress=False,
        budget={"seconds": 120, "trials": 2},
        allow=["optimizer_impl"],
    )
    said = {
        "trials": len(accelerated.report.trials),
        "plan": accelerated.plan.to_dict(),
    }
    with open(f"plan-{os.getpid()}.json", "w") as file:
        json.dump(said, file)
    model, optimizer, _ = accelerated
    schedule = Schedule(num_samples=64, global_batch=8)
    for step in (loop := ElasticLoop(model, optimizer, schedule=schedule, num_steps=8)):
        with step:
            for part in step.parts():
                batch = X[part.indices], Y[part.indices]
                (loss(model(batch[0]), batch) * part.weight).backward()
        if step.number == 4 and step.rank == 0 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.integration
@pytest.mark.slow
def test_workers_and_those_that_come_later_have_one_plan(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "drivetrain_core.cli", "elastic", "run"]
    ran = subprocess.run(
        [*command, "--nproc-per-node", "2", "train.py"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "killed").exists()
    said = [json.loads(file.read_text()) for file in tmp_path.glob("plan-*.json")]
    # Two workers, and one at least that stood by or came in a place that was empty.
    assert len(said) > 2
    assert sum(one["trials"] > 0 for one in said) == 1
    assert all(one["plan"] == said[0]["plan"] for one in said)
