"""The contract of what lays a model over a mesh."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from drivetrain_core import Choice, PlanError, ProgramError, accelerate
from drivetrain_core.extending import find
from drivetrain_core.services import get_service
from drivetrain_core.services.model_layout import ModelLayout
from drivetrain_testing._clauses import require
from drivetrain_testing._optimization import toy_context, toy_program
from drivetrain_testing._processes import run_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

_WIDTH = 8


class _Rates(NamedTuple):
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    overhead_s: float
    all_reduce: None = None


class _Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU()) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def _loss(output: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return (output - batch).square().mean() + output.mean()


def check_model_layout(
    name: str = "model_layout", *, axes: tuple[str, ...] = ("pipeline", "tensor")
) -> None:
    """Checks that a layout computes on two ranks what the model as written computes.

    It starts two processes for each axis, on the CPU.

    Args:
        name: The service, as `get_service` takes it; ranks find it by that name.
        axes: What its meshes can do.

    Raises:
        AssertionError: A clause of the contract is broken.
    """
    layout: ModelLayout = get_service(name)
    require(isinstance(layout, ModelLayout), "a layout has all methods of ModelLayout")
    _check_plans(layout, axes[0])
    _check_meta_models(layout)
    torch.manual_seed(0)
    alone = _train([])
    for axis in axes:
        for losses in run_ranks(_train, 2, [("mesh", {axis: 2})], timeout_s=120.0):
            near = torch.allclose(torch.tensor(losses), torch.tensor(alone), rtol=1e-4)
            require(near, f"{axis} trains as one process does: {losses}, {alone}")


def _check_plans(layout: ModelLayout, axis: str) -> None:
    torch.manual_seed(0)
    model, batch = _Blocks(), torch.randn(4, _WIDTH)
    before = {key: value.clone() for key, value in model.state_dict().items()}

    def loss_of(one: nn.Module, samples: Any) -> torch.Tensor:
        return _loss(one(samples), samples)

    mesh = Choice("mesh", find("mesh").normalize({axis: 2}))
    plan = layout.plan(model, batch, loss_of, [mesh], 2)
    state = model.state_dict()
    require(
        all(torch.equal(state[key], value) for key, value in before.items()),
        "to plan leaves the model as it is",
    )
    again = layout.read_plan(json.loads(json.dumps(plan.to_dict())))
    require(
        again.fingerprint() == plan.fingerprint(), "a plan survives JSON, on any rank"
    )
    require(bool(plan.explain()), "a plan says what each axis does")
    try:
        layout.plan(nn.Linear(3, 3), torch.randn(4, 3), loss_of, [mesh], 2)
    except PlanError as error:
        require(bool(error.because), "a refusal says why")
    context = toy_context(toy_program())
    rates = _Rates({"float32": 1e9}, 1e9, 1e-5)
    ranking = layout.rank_meshes([mesh], model, batch, loss_of, context, rates)
    ranked = [str(choice) for choice in ranking.kept]
    ranked += [rejected.plan for rejected in ranking.rejected]
    require(ranked == [str(mesh)], "each mesh is kept, or rejected with a reason")


def _check_meta_models(layout: ModelLayout) -> None:
    model = layout.build_meta_model(_Blocks)
    assert isinstance(model, nn.Module), "a meta model is what the factory builds"
    require(
        all(parameter.is_meta for parameter in model.parameters()),
        "a meta model has no memory for its parameters",
    )
    layout.check_meta_model(model, "reset")
    try:
        layout.check_meta_model(_Blocks(), "reset")
    except ProgramError:
        return
    require(False, "a model that has values is not given others")


def _train(strategy: list[tuple[str, dict[str, int]]]) -> list[float]:
    """Trains a few steps; over a mesh, saves and loads between them."""
    generator = torch.Generator().manual_seed(1)
    data = [torch.randn(4, _WIDTH, generator=generator) for _ in range(4)]
    torch.manual_seed(0)
    accelerated = accelerate(
        _Blocks,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        data,
        _loss,
        strategy=strategy,
        max_grad_norm=0.5,
    )
    losses = []
    for step, batch in enumerate(accelerated.loader):
        losses.append(float(accelerated.train_step(batch)))
        if step == 1:
            accelerated.load_state_dict(accelerated.state_dict())
    layout = accelerated.layout
    if strategy:
        require(layout is not None, "a plan with a mesh has a layout")
        assert layout is not None
        whole = dict(_Blocks().named_parameters())
        places = layout.placements()
        require(
            all(
                whole[place.name].shape == place.global_shape
                for place in places.values()
            ),
            "each parameter is a block of one of the model as written",
        )
        require(
            set(layout.parameter_names().values()) <= set(whole),
            "parameters have the names of the model as written",
        )
    accelerated.close()
    return losses
