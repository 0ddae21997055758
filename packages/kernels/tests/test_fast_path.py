"""The way past an operator is taken exactly where nobody watches."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from drivetrain_kernels._fast_path import fast_path, is_watched, run

calls = []


def cube(x: torch.Tensor, scale: float) -> torch.Tensor:
    calls.append("function")
    return x**3 * scale


operator = torch.library.custom_op(
    "drivetrain_kernels_tests::cube", cube, mutates_args=()
)


@operator.register_fake
def _(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(x)


def keep(ctx, inputs, output):
    x, ctx.scale = inputs
    ctx.save_for_backward(x)


def slope(grad: torch.Tensor, x: torch.Tensor, scale: float) -> torch.Tensor:
    return grad * 3 * x.square() * scale


slope_operator = torch.library.custom_op(
    "drivetrain_kernels_tests::slope", slope, mutates_args=()
)


def backward(ctx, grad):
    return run(slope_operator, slope, grad, *ctx.saved_tensors, ctx.scale), None


cubed = fast_path(operator, cube, backward=backward, setup_context=keep)


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_fast_path_has_the_operators_result_and_gradient():
    for call in (cubed, operator):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y = call(x, 2.0)
        y.sum().backward()
        assert y.tolist() == [2.0, 16.0]
        assert x.grad.tolist() == [6.0, 24.0]


def test_fast_path_shows_modes_the_operator():
    with Seen() as seen:
        cubed(torch.ones(2), 1.0)
    assert "drivetrain_kernels_tests.cube.default" in seen.names


def test_fast_path_runs_no_kernel_on_fake_tensors():
    calls.clear()
    with FakeTensorMode():
        y = cubed(torch.ones(2), 1.0)
    assert y.shape == (2,)
    assert calls == []


def test_fast_path_is_one_operator_to_a_compiler():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(
        lambda x: cubed(x, 1.0) + 1, backend=backend, fullgraph=True
    )
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    (graph,) = graphs
    targets = [str(node.target) for node in graph.graph.nodes]
    assert any("drivetrain_kernels_tests.cube" in target for target in targets)


def test_fast_path_refuses_a_second_derivative():
    x = torch.tensor([1.0], requires_grad=True)
    (grad,) = torch.autograd.grad(cubed(x, 1.0).sum(), x, create_graph=True)
    # Together with what has a second derivative it would otherwise be left out silently.
    with pytest.raises((NotImplementedError, RuntimeError), match="slope"):
        (grad + x).sum().backward()


def test_function_transforms_and_subclasses_are_watched():
    found = []
    torch.func.vmap(lambda x: found.append(is_watched()) or x)(torch.ones(2))
    assert found == [True]

    class Wrapped(torch.Tensor):
        pass

    assert is_watched(1.0, torch.ones(2).as_subclass(Wrapped))
    assert not is_watched(1.0, None, torch.nn.Parameter(torch.ones(2)))


def test_run_takes_the_same_way():
    names = []
    args = (lambda x: names.append("operator"), lambda x: names.append("function"))
    with torch.no_grad():
        run(*args, torch.ones(2))
        with Seen():
            run(*args, torch.ones(2))
    run(*args, torch.ones(2))
    assert names == ["function", "operator", "operator"]
