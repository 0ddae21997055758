"""A rank that fails within a step ends all ranks, with its reason."""

import datetime as dt

import pipeline_models as pm
import pytest
import torch
import torch.distributed as dist

from drivetrain_core import DistributedError
from drivetrain_parallel.pipeline import PipelineStep, build_stages
from drivetrain_testing import run_ranks


def _fail(failing, schedule):
    """Returns what each rank raises when one stage does in the second step."""
    torch.set_num_threads(1)
    group = dist.new_group([1, 2], timeout=dt.timedelta(seconds=3))
    if dist.get_rank() == 0:
        return None
    rank = group.rank()
    armed = []

    def loss_of(model, batch):
        if armed and rank == failing:
            message = "no memory left"
            raise RuntimeError(message)
        return pm.token_loss(model, batch)

    model, plan = pm.make(pm.Decoder, pm.token_loss, pm.token_batch(), 2)
    stages = build_stages(model, plan, (rank,), loss_of)
    step = PipelineStep(stages, plan, schedule=schedule, group=group)
    parts = [pm.token_batch(seed=n) for n in range(2)]
    step.run(parts, [0.5, 0.5])
    armed.append(True)
    with pytest.raises(RuntimeError) as caught:
        step.run(parts, [0.5, 0.5])
    with pytest.raises(DistributedError, match="broke in an earlier step"):
        step.run(parts, [0.5, 0.5])
    return type(caught.value).__name__, str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, pytest.param(1, marks=pytest.mark.faults)])
def test_the_other_rank_ends_with_the_groups_timeout_and_says_who_failed(failing):
    _, *results = run_ranks(_fail, 3, failing, "1f1b", timeout_s=60)
    kind, message = results[1 - failing]
    assert kind == "DistributedError"
    assert f"stages [{failing}] (rank {failing + 1})" in message
    assert "RuntimeError: no memory left" in message
    assert results[failing][0] == "RuntimeError"
