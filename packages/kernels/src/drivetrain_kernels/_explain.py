"""Which implementation of an op a call would run, and why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from drivetrain_kernels._errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from drivetrain_kernels._dispatch import Op

# The module of each op, which holds its table of implementations as `OP`.
OPS = {
    "add_rms_norm": "ops._add_rms_norm",
    "attention": "ops._attention",
    "clip_grad_norm_": "ops._clip_grad_norm",
    "cross_entropy": "ops._cross_entropy",
    "dropout_add_rms_norm": "ops._dropout_add_rms_norm",
    "geglu": "ops._geglu",
    "layer_norm": "ops._layer_norm",
    "linear_cross_entropy": "ops._linear_cross_entropy",
    "moe": "ops._moe",
    "parallel_block": "ops._parallel_block",
    "rms_norm": "ops._rms_norm",
    "rope": "ops._rope",
    "swiglu": "ops._swiglu",
}


class Explanation(NamedTuple):
    """What runs for a call; `str` gives it as text.

    Args:
        op: The op's name.
        implementation: The name of the implementation that would run.
        because: Why it.
        passed_over: Those before it in the order of preference, as (name, why not).
    """

    op: str
    implementation: str
    because: str
    passed_over: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        """Returns a line for what runs and one for each that was passed over."""
        lines = [f"{self.op}: {self.implementation}, because: {self.because}"]
        lines += [f"  not {name}: it {why}" for name, why in self.passed_over]
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Returns the same."""
        return str(self)


def load_op(name: str) -> Op[Any]:
    """Returns the table of an op's implementations.

    Args:
        name: The op's name.

    Raises:
        OptionError: There is no such op.

    Example:
        >>> [one.name for one in load_op("rms_norm").implementations]
        ['triton', 'eager', 'torch', 'compiled', 'reference']
    """
    if name not in OPS:
        message = f"explain: there is no op {name!r}; there are {', '.join(OPS)}"
        raise OptionError(message)
    op: Op[Any] = import_module(f"drivetrain_kernels.{OPS[name]}").OP
    return op


def _name_of(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__name__", None)
    if name is None or not module.startswith("drivetrain_kernels"):
        message = (
            f"explain: {function!r} is no op of this package; pass one of its functions "
            f"or a name: {', '.join(OPS)}"
        )
        raise OptionError(message)
    return str(name)


def explain(
    op: str | Callable[..., Any], *args: Any, impl: str = "auto", **kwargs: Any
) -> Explanation:
    """Returns which implementation a call of an op would run, without running it.

    Args:
        op: The op, or its name.
        *args: The call's arguments.
        impl: As the call would take it.
        **kwargs: The call's further arguments.

    Raises:
        OptionError: There is no such op.
        ImplementationError: The implementation asked for cannot take the call.

    Example:
        >>> import torch
        >>> from drivetrain_kernels import rms_norm
        >>> print(explain(rms_norm, torch.zeros(2, 8)))
        rms_norm: torch, because: torch's own operator gives the same
          not triton: it needs a CUDA tensor, got cpu
          not eager: it is faster from 131072 elements on, got 16
    """
    name = op if isinstance(op, str) else _name_of(op)
    table = load_op(name)
    try:
        facts = table.facts(*args, **kwargs)
    except TypeError as error:
        # Of a call that the op would not take: the name is its own.
        message = str(error).replace("facts()", f"{name}()")
        raise TypeError(message) from error
    found = table.choose(facts, impl)
    return Explanation(name, found.implementation.name, found.reason, found.passed_over)
