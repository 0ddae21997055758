"""Programs that run scripts up to their `accelerate`, and train in their place."""

import pytest
import torch

from drivetrain_core import PlanError, ProgramError
from drivetrain_core.scripts import build_script, split_batch

SCRIPT = """
import pathlib, sys, torch
from drivetrain_core import accelerate

torch.manual_seed(0)
data = [(torch.rand(6, 3), torch.rand(6, 1)) for _ in range(4)]
accelerated = accelerate(
    torch.nn.Linear(3, 1),
    lambda parameters: torch.optim.SGD(parameters, lr=float(sys.argv[1])),
    data,
    lambda output, batch: (output - batch[1]).square().mean(),
    max_grad_norm=0.5,
)
pathlib.Path("went on").touch()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_script_is_run_up_to_accelerate_and_no_further(script, tmp_path):
    accelerated = build_script(script, ["0.25"], [("micro_batch", 2)])
    assert str(accelerated.plan) == "micro_batch(num=2)"
    assert accelerated.optimizer.param_groups[0]["lr"] == 0.25
    assert accelerated.max_grad_norm == 0.5
    assert accelerated.report is None
    assert not (tmp_path / "went on").exists()


def test_loss_of_parts_adds_up_to_that_of_the_step(script):
    accelerated = build_script(script, ["0.25"], [])
    batch = next(iter(accelerated.loader))
    parts = split_batch(batch, (2, 4))
    whole = accelerated.loss_of(batch)
    weighted = zip(parts, (1 / 3, 2 / 3), strict=True)
    torch.testing.assert_close(
        sum(accelerated.loss_of(part) * weight for part, weight in weighted), whole
    )
    accelerated.backward(whole)
    norm = torch.cat([p.grad.flatten() for p in accelerated.model.parameters()]).norm()
    torch.testing.assert_close(accelerated.clip_grad_norm_(0.5), norm)
    assert accelerated.train_step(batch) == whole


def test_strategy_that_cannot_be_used_is_refused(script):
    with pytest.raises(PlanError, match="micro_batch"):
        build_script(script, ["0.25"], [("micro_batch", 7)])


def test_script_that_never_calls_accelerate_is_refused(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print('nothing')")
    with pytest.raises(
        ProgramError, match="was not run: neither it nor what it imports"
    ):
        build_script(str(path), [], [])
