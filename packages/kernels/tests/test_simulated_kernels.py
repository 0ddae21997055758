"""Ops on the simulated accelerator: the forms of torch's operators, and clear refusals."""

from __future__ import annotations

import pytest
import torch
from selector_models import mlp

import drivetrain_kernels
from drivetrain_kernels import ImplementationError, explain, select
from drivetrain_kernels._explain import OPS, load_op

pytestmark = pytest.mark.simulated_accelerator


def called(name, device):
    torch.manual_seed(0)
    op = load_op(name)
    args, kwargs = op.example(torch.device("cpu"), torch.float32)
    move = lambda v: v.to(device) if isinstance(v, torch.Tensor) else v
    args = torch.utils._pytree.tree_map(move, args)
    kwargs = torch.utils._pytree.tree_map(move, kwargs)
    return getattr(drivetrain_kernels, name)(*args, **kwargs)


@pytest.mark.parametrize("name", sorted(set(OPS) - {"clip_grad_norm_"}))
def test_op_computes_there_what_it_does_on_the_cpu(name):
    found, expected = called(name, "sim"), called(name, "cpu")
    found = torch.utils._pytree.tree_leaves(found)
    expected = torch.utils._pytree.tree_leaves(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(ours, torch.Tensor):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-5)


def test_gradients_are_clipped_there():
    norms, grads = [], []
    for device in ("cpu", "sim"):
        parameters = [
            torch.nn.Parameter(torch.ones(5, n, device=device)) for n in (1, 7)
        ]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 3.0)
        norms.append(float(drivetrain_kernels.clip_grad_norm_(parameters, 1.0)))
        grads.append([parameter.grad.cpu() for parameter in parameters])
    assert norms[1] == pytest.approx(norms[0])
    torch.testing.assert_close(grads[1], grads[0])


def test_triton_is_refused_there_by_name():
    x = torch.ones(2, 8, device="sim")
    told = explain("swiglu", x, x)
    assert told.implementation != "triton"
    from drivetrain_kernels import swiglu

    with pytest.raises(ImplementationError, match="needs a CUDA tensor, got sim"):
        swiglu(x, x, impl="triton")


def test_candidates_are_timed_by_what_the_device_has_done():
    from drivetrain_simulated_accelerator import control

    model, batch = mlp().to("sim"), torch.ones(4, 8, device="sim")
    with control.delays(op_us=3000):
        found = select(model, [batch], candidates=["backend:aot_eager"], cache=False)
    times = [trial.step_s for trial in found.trials if trial.step_s]
    # Three ops forward and three backward, each of which takes three milliseconds.
    assert len(times) == 2
    assert min(times) >= 0.018


def test_compilers_that_make_no_kernels_there_are_not_tried():
    model, batch = mlp().to("sim"), torch.ones(4, 8, device="sim")
    found = select(model, [batch], candidates=["default"], cache=False)
    reasons = [trial.why for trial in found.trials if trial.name == "default"]
    assert reasons == ["needs a device that torch.compile makes kernels for, got sim"]


def test_replacement_leaves_the_generators_as_they_were():
    torch.manual_seed(3)
    expected = torch.rand(4, device="sim").cpu()
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).to("sim")
    torch.manual_seed(3)
    drivetrain_kernels.replace(model, {"layer_norm": "reference"})
    assert torch.equal(torch.rand(4, device="sim").cpu(), expected)
