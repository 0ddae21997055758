"""A gradient of a function's own takes the place of that of autograd."""

import weakref

import pytest
import torch

from drivetrain_parallel.custom_gradient import custom_gradient


def test_custom_gradient_replaces_that_of_autograd():
    x = torch.randn(3, requires_grad=True)
    y = custom_gradient(x, torch.square, torch.neg)
    y.backward(torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(y, x.square())
    assert x.grad.tolist() == [-1.0, -2.0, -3.0]


def test_custom_gradient_of_a_constant_is_a_constant():
    y = custom_gradient(torch.ones(3), torch.clone, torch.neg)
    assert not y.requires_grad


def test_custom_gradient_leaves_nothing_alive_without_the_result():
    x = torch.ones(3, requires_grad=True)
    y = custom_gradient(x, torch.clone, torch.neg)
    node = weakref.ref(x)
    del x, y
    assert node() is None


# That of the compiler itself, for any `torch.autograd.Function`.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_custom_gradient_is_compiled_without_a_break():
    def loss(x):
        doubled = custom_gradient(x, lambda x: 2 * x, lambda grad: 5 * grad)
        return doubled.square().sum()

    x = torch.ones(3, requires_grad=True)
    torch.compile(loss, fullgraph=True, backend="aot_eager")(x).backward()
    assert x.grad.tolist() == [20.0] * 3
