"""Fast path around a custom operator, where no compiler or mode looks at it.

An operator of `torch.library` with a gradient costs several times what a small kernel
does, in Python around it: 117 us against 28 us for the forward of RMSNorm on one CPU
core. What it gives in return, that compilers, fake tensors and dispatch modes see one
operator, is needed only while one of them watches; otherwise the same function runs
directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from drivetrain_kernels._errors import ImplementationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch._library.custom_ops import CustomOpDef

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_watched(*values: Any) -> bool:
    """Returns whether operators must go through torch's dispatcher as operators.

    Args:
        *values: The arguments of a call; a tensor of a class of its own, such as a
            fake or a distributed one, needs the operator.

    Example:
        >>> is_watched(torch.zeros(2), None, 1.0)
        False
        >>> from torch._subclasses import FakeTensorMode
        >>> with FakeTensorMode():
        ...     is_watched(torch.zeros(2))
        True
    """
    if (
        torch.compiler.is_compiling()
        or is_in_torch_dispatch_mode()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    ):
        return True
    return any(
        isinstance(value, torch.Tensor) and type(value) not in _PLAIN
        for value in values
    )


def is_readable(tensor: Tensor) -> bool:
    """Returns whether numbers can be looked at without waiting, and are there at all.

    Args:
        tensor: Targets, positions or offsets.

    Example:
        >>> is_readable(torch.zeros(2)), is_readable(torch.zeros(2, device="meta"))
        (True, False)
    """
    hidden = torch.compiler.is_compiling() or is_in_torch_dispatch_mode()
    batched = torch._C._functorch.is_batchedtensor(tensor)
    return tensor.device.type == "cpu" and not (hidden or batched)


def _refuse_second(*_: Any) -> Any:
    message = (
        "this implementation of the op has a gradient, and no gradient of that one, "
        "which was asked for: call the op with impl='reference', which has every "
        "derivative"
    )
    raise ImplementationError(message)


class _FirstOrder(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return grads

    @staticmethod
    def backward(*grads: Any) -> Any:
        _refuse_second(*grads)


def _end(grads: tuple[Tensor | None, ...], _: Any) -> Any:
    return _FirstOrder.apply(*grads) if torch.is_grad_enabled() else None  # type: ignore[no-untyped-call]


def once_differentiable(out: Tensor) -> Tensor:
    """Returns what torch's attention or compiler made; a second derivative is an error.

    Args:
        out: Their result itself; one of plain operators has every derivative.
    """
    node = None if is_watched(out) else out.grad_fn
    if node is not None and node.name().startswith(("ScaledDot", "CompiledFunc")):
        node.register_hook(_end)
    return out


def first_order(operator: CustomOpDef) -> CustomOpDef:
    """Makes a gradient of an operator that a backward runs an error in words.

    Args:
        operator: The operator, which is returned.
    """
    operator.register_autograd(_refuse_second)
    return operator


def run(operator: Callable[..., Any], function: Callable[..., Any], *args: Any) -> Any:
    """Calls, within a backward, an operator without a gradient or what it runs.

    Args:
        operator: The operator.
        function: What it runs.
        *args: The arguments.
    """
    # Gradients are recorded in a backward for a second derivative alone; the operator
    # refuses that one, where a kernel would silently leave it out.
    if torch.is_grad_enabled() or is_watched(*args):
        return operator(*args)
    return function(*args)


def fast_path(
    operator: CustomOpDef,
    function: Callable[..., Any],
    *,
    backward: Callable[..., Any],
    setup_context: Callable[..., None],
) -> Callable[..., Any]:
    """Gives an operator its gradient, and returns what calls it where it is watched.

    Elsewhere what the operator runs is called, with the same gradient.

    Args:
        operator: The operator.
        function: What it runs.
        backward: As `register_autograd` takes it; what it computes goes through `run`.
        setup_context: Likewise.
    """
    operator.register_autograd(backward, setup_context=setup_context)

    # With a `setup_context` of its own, torch would look at the signature in every call.
    def forward(ctx: Any, *args: Any) -> Any:
        result = function(*args)
        setup_context(ctx, args, result)
        return result

    eager = type(
        f"{function.__name__}_eager",
        (torch.autograd.Function,),
        {
            "forward": staticmethod(forward),
            "backward": staticmethod(backward),
        },
    )
    apply: Callable[..., Any] = eager.apply  # type: ignore[attr-defined]

    def call(*args: Any) -> Any:
        return operator(*args) if is_watched(*args) else apply(*args)

    return call
