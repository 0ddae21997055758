"""Optimizers that see all gradients at once are told apart, and refused in a pipeline."""

import mesh_programs as programs
import pytest
import torch

from drivetrain_core import accelerate
from drivetrain_core._errors import Code, PlanError
from drivetrain_core.extending import OptimizerSource
from drivetrain_parallel.pipeline import plan_pipeline
from drivetrain_parallel.pipeline.balance import PipelineCosts
from drivetrain_parallel.pipeline.optimizer_probe import require_separate_steps
from drivetrain_testing import run_ranks

COSTS = PipelineCosts(prologue=0.0, blocks=(1.0,) * 4, epilogue=0.0)


class Clipping(torch.optim.SGD):
    """Clips by the norm over all groups, or over each."""

    each = False

    def step(self, closure=None):
        groups = [list(group["params"]) for group in self.param_groups]
        for params in groups if self.each else [[p for g in groups for p in g]]:
            torch.nn.utils.clip_grad_norm_(params, 0.05)
        return super().step(closure)


class ClippingEach(Clipping):
    each = True


class Learning(torch.optim.SGD):
    """Holds a norm against those of the steps before."""

    largest = 0.0

    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        norm = float(torch.cat([p.grad.flatten() for p in params]).norm())
        if self.largest:
            torch.nn.utils.clip_grad_norm_(params, 2 * self.largest)
        self.largest = max(norm, self.largest)
        return super().step(closure)


class Broken(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError


def by_dim(kind):
    def build(params):
        params = list(params)
        groups = [
            [p for p in params if (p.dim() > 1) == wide] for wide in (True, False)
        ]
        return kind([{"params": group} for group in groups], lr=0.1)

    return build


def hooked(model):
    """An instance that is clipped by a hook of its steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def clip(one, *_):
        torch.nn.utils.clip_grad_norm_(one.param_groups[0]["params"], 0.1)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def probed(given, model=None):
    model = programs.Model() if model is None else model
    batch = programs.batches()[0]
    loss_of = lambda m, b: programs.loss(m(b[0]), b)
    plan = plan_pipeline(model, batch, loss_of, 2, costs=COSTS)
    require_separate_steps(OptimizerSource.of(given, model), model, plan)


@pytest.mark.parametrize(
    "given",
    [
        lambda p: Clipping(p, lr=0.1),
        lambda p: Clipping(p, lr=0.0),
        lambda p: Learning(p, lr=0.1),
        by_dim(Clipping),
        by_dim(ClippingEach),
    ],
    ids=["global", "warm-up", "learning", "groups", "each group"],
)
def test_an_optimizer_that_clips_by_all_gradients_is_refused(given):
    with pytest.raises(PlanError, match="gradients of others") as caught:
        probed(given)
    assert caught.value.code is Code.CONFLICT
    assert "max_grad_norm" in caught.value.fix


def test_an_optimizer_that_a_hook_clips_is_refused():
    model = programs.Model()
    optimizer = hooked(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(PlanError, match="SGD steps a parameter"):
        probed(optimizer, model)
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    "given",
    [
        lambda p: torch.optim.AdamW(p, lr=1e-4),
        lambda p: torch.optim.Adafactor(p),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: Broken(p, lr=0.1),
        by_dim(torch.optim.RMSprop),
    ],
    ids=["adamw", "adafactor", "sgd", "cannot be tried", "groups"],
)
def test_other_optimizers_are_let_through(given):
    probed(given)


def test_an_optimizer_on_other_parameters_than_its_own_is_not_stepped():
    model = programs.Model()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = model.head.weight.detach().clone()
    probed(lambda _: Clipping(model.parameters(), lr=0.1), model)
    assert torch.equal(model.head.weight, before)


def test_an_instance_and_its_state_are_left_alone():
    model = programs.Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    probed(optimizer, model)
    assert not optimizer.state


def test_parameters_that_are_frozen_get_no_gradient():
    model = programs.Model()
    model.blocks[0].requires_grad_(False)
    with pytest.raises(PlanError, match="gradients of others"):
        probed(lambda p: Clipping([q for q in p if q.requires_grad], lr=0.1), model)


def refused():
    from drivetrain_core import PlanError

    with pytest.raises(PlanError, match="max_grad_norm") as caught:
        accelerate(
            programs.Model,
            lambda p: Clipping(p, lr=0.1),
            programs.batches(),
            programs.loss,
            strategy=[("mesh", {"pipeline": 2})],
            progress=False,
        )
    return caught.value.code


def test_accelerate_refuses_it_on_all_ranks():
    assert run_ranks(refused, 2) == ["CONFLICT"] * 2


def test_models_without_weights_are_tried_as_well():
    with torch.device("meta"):
        model = programs.Model()
    batch = programs.batches()[0]
    plan = plan_pipeline(
        programs.Model(), batch, lambda m, b: programs.loss(m(b[0]), b), 2, costs=COSTS
    )
    source = OptimizerSource.of(lambda p: Clipping(p, lr=0.1), model)
    with pytest.raises(PlanError, match="gradients of others"):
        require_separate_steps(source, model, plan)
