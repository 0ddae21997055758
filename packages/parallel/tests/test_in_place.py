"""Code that changes parameters while the model runs is refused, and changes nothing."""

import mesh_programs as programs
import pytest
import torch
from torch import nn

from drivetrain_core._choice import Choice
from drivetrain_core._errors import Code, PlanError
from drivetrain_core._program import Program
from drivetrain_parallel.planning import plan_parallel
from drivetrain_parallel.proof.in_place import ConstantParameters


class Decays(programs.Model):
    def forward(self, ids):
        with torch.no_grad():
            self.blocks[0].up.weight.mul_(0.999)
        return super().forward(ids)


class DecaysData(programs.Model):
    def forward(self, ids):
        self.blocks[0].up.weight.data *= 0.999
        return super().forward(ids)


@pytest.mark.parametrize("kind", [Decays, DecaysData])
@pytest.mark.parametrize("axis", ["tensor", "pipeline", "context", "shard"])
def test_a_forward_that_changes_parameters_is_refused_before_it_does(kind, axis):
    model = kind()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    program = Program(
        model=lambda: model,
        optimizer=programs.sgd,
        data=programs.batches(),
        loss=programs.loss,
    )
    with pytest.raises(PlanError) as caught:
        plan_parallel(
            model,
            programs.batches()[0],
            program.loss_of,
            [Choice("mesh", {axis: 2})],
            2,
        )
    assert caught.value.code is Code.NOT_APPLICABLE
    assert "'blocks.0.up.weight' in place" in caught.value.because
    assert caught.value.fix
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_an_embedding_that_scales_its_rows_is_refused():
    model = nn.Embedding(4, 2, max_norm=0.1)
    before = model.weight.detach().clone()
    with ConstantParameters(model), pytest.raises(PlanError, match="embedding_renorm_"):
        model(torch.tensor([1, 2]))
    assert torch.equal(model.weight, before)


def test_what_is_written_elsewhere_is_left_alone():
    model = nn.Linear(2, 2)
    with ConstantParameters(model):
        out = model(torch.ones(3, 2)).relu_()
        out = out.clone().mul_(2)
    out.sum().backward()
    assert model.weight.grad is not None
