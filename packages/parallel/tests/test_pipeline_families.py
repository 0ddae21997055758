"""Pipelines of the model families of transformers, and of a diffusion transformer."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from drivetrain_parallel.pipeline import (
    PipelineCosts,
    PipelinePlan,
    PipelineStep,
    build_stages,
    plan_pipeline,
)
from drivetrain_testing import run_ranks

pytestmark = pytest.mark.extra

FAMILIES = [
    "llama",
    "qwen3",
    "phi3",
    "mistral",
    "gemma",
    "gpt2",
    "gpt_neox",
    "bert",
    "opt",
    "t5",
    "bloom",
    "falcon",
    "vit",
    "llava",
    "dit",
    "qwen3_moe",
    "mixtral",
]


def families():
    """Returns the benchmark's table of families."""
    pytest.importorskip("transformers")
    sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
    try:
        import model_families
    finally:
        sys.path.pop()
    return model_families


def build(name):
    table = families()
    family = table.FAMILIES[name]

    def loss_of(model, batch):
        return table.loss_of(family, model, batch)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return family.build(), loss_of, family.batch


def planned(name, num_stages):
    model, loss_of, batch = build(name)
    costs = PipelineCosts(prologue=0.0, blocks=(1.0,) * 4, epilogue=0.0)
    return plan_pipeline(model, batch(2), loss_of, num_stages, costs=costs)


def test_the_table_holds_these_families():
    assert sorted(families().FAMILIES) == sorted(FAMILIES)


# Untied, tied, with two lists, with two modalities, with conditioning; the others take
# their turn with what takes long.
QUICK = ("llama", "bert", "t5", "llava", "dit")
CASES = [
    pytest.param(
        name, num, marks=() if name in QUICK and num == 2 else pytest.mark.faults
    )
    for name in FAMILIES
    for num in (2, 4)
]


@pytest.mark.parametrize(("name", "num_stages"), CASES)
def test_a_family_is_split_exactly_and_shares_ties_alone(name, num_stages):
    plan = planned(name, num_stages)
    assert plan.is_verified
    assert not plan.notes
    assert len(plan.shared) <= 1
    assert [s.end - s.begin for s in plan.stages] == [4 // num_stages] * num_stages


def train(name, values, num):
    """Returns how far a rank's loss and worst gradient are from one process."""
    torch.set_num_threads(1)
    plan = PipelinePlan.from_dict(values)
    model, loss_of, batch = build(name)
    whole = build(name)[0]
    parts = [batch(2, seed=seed) for seed in range(num)]
    expected = 0.0
    for part in parts:
        loss = loss_of(whole, part) / num
        loss.backward()
        expected += float(loss.detach())
    group = dist.group.WORLD
    (stage,) = build_stages(model, plan, (group.rank(),), loss_of)
    step = PipelineStep([stage], plan, schedule="1f1b", group=group)
    loss = float(step.run(parts, [1 / num] * num))
    right = {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}
    floor = 1e-4 * max(float(g.norm()) for g in right.values())
    worst = 0.0
    for own, parameter in stage.model.named_parameters():
        name = plan.canonical_name(group.rank(), own)
        if name in right:
            gap = float((parameter.grad - right[name]).norm())
            worst = max(worst, gap / max(float(right[name].norm()), floor))
    return abs(loss - expected) / abs(expected), worst


@pytest.mark.faults
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_trains_in_a_pipeline_as_in_one_process(name, num_ranks):
    values = planned(name, num_ranks).to_dict()
    for loss, worst in run_ranks(train, num_ranks, name, values, 4, timeout_s=120):
        assert loss < 1e-5
        assert worst < 1e-3
