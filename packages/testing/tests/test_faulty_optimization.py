"""The optimization that breaks on purpose breaks as it says, where a process survives it."""

from types import SimpleNamespace

import pytest
import torch

from drivetrain_testing import FaultyOptimization


def after_one_step(fault):
    """Returns the loss, the gradients, and by how much the first weight has moved."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if fault is not None:
        state = SimpleNamespace(module=model)
        FaultyOptimization().apply(state, {"fault": fault})
    before = model[0].weight.detach().clone()
    loss = model(torch.ones(2, 3)).square().mean()
    loss.backward()
    optimizer.step()
    grads = [one.grad for one in model.parameters()]
    return loss.item(), grads, (model[0].weight - before).abs().max().item()


def test_one_gradient_is_wrong_and_all_else_is_right():
    loss, (first, *others), _ = after_one_step("wrong_gradient")
    sound, (right, *rest), _ = after_one_step(None)
    assert loss == sound
    torch.testing.assert_close(first, 1.5 * right)
    torch.testing.assert_close(others, rest)


def test_stale_optimizer_trains_nothing():
    assert after_one_step(None)[2] > 0
    assert after_one_step("stale_optimizer")[2] == 0


def test_loss_is_not_a_number():
    assert after_one_step("nan")[0] != after_one_step("nan")[0]


def test_forward_raises():
    with pytest.raises(RuntimeError, match="on purpose"):
        after_one_step("raise")
