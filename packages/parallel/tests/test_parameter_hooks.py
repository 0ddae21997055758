"""Hooks on parameters run as they are written, or a mesh is refused."""

import mesh_programs as programs
import pytest
import torch

from drivetrain_core._choice import Choice
from drivetrain_core._errors import Code, PlanError
from drivetrain_core._program import Program
from drivetrain_parallel.planning import plan_parallel
from drivetrain_testing import run_ranks

HELD = "blocks.1.up.weight"


def planned(model, **axes):
    program = Program(
        model=lambda: model,
        optimizer=programs.sgd,
        data=programs.batches(),
        loss=programs.loss,
    )
    batch = programs.batches()[0]
    return plan_parallel(model, batch, program.loss_of, [Choice("mesh", axes)], 2)


def hooked(mixes=False):
    torch.manual_seed(0)
    model = programs.Model(mixes)
    model.get_parameter(HELD).register_hook(lambda gradient: gradient * 0)
    return model


@pytest.mark.parametrize("axis", ["tensor", "context", "expert", "shard", "replicate"])
def test_hooks_on_parameters_that_are_replaced_are_refused(axis):
    with pytest.raises(PlanError, match=HELD) as caught:
        planned(hooked(mixes=axis == "expert"), **{axis: 2})
    assert caught.value.code is Code.CONFLICT
    assert "ddp" in caught.value.fix


@pytest.mark.parametrize("axis", ["pipeline", "tensor", "shard"])
def test_hooks_that_run_once_a_step_are_refused(axis):
    model = programs.Model()
    model.get_parameter(HELD).register_post_accumulate_grad_hook(lambda _: None)
    with pytest.raises(PlanError, match=HELD):
        planned(model, **{axis: 2})


def test_hooks_of_frozen_parameters_and_removed_ones_are_none():
    model = programs.Model()
    model.get_parameter(HELD).register_hook(lambda gradient: gradient).remove()
    frozen = model.get_parameter("blocks.0.up.bias")
    frozen.register_post_accumulate_grad_hook(lambda _: None)
    frozen.requires_grad_(False)
    assert planned(model, shard=2).tensor is None


def test_hooks_on_parameters_without_memory_are_refused():
    model = hooked().to("meta")
    model.get_parameter(HELD).register_hook(lambda gradient: gradient)
    with pytest.raises(PlanError, match=HELD):
        planned(model, pipeline=2)


def test_hooks_run_on_the_stages_of_a_pipeline():
    torch.set_num_threads(1)
    plain, _ = programs.train([])
    expected = programs.train_model(hooked, [])
    assert plain[-1] != expected[0][-1]
    strategy = [("mesh", {"pipeline": 2})]
    found = run_ranks(programs.train_model, 2, hooked, strategy)
    for losses, norm in found:
        assert losses == pytest.approx(expected[0], rel=2e-5)
        assert norm == pytest.approx(expected[1], rel=1e-4)
