"""The formula of a module: its forward as a graph of operations, in exact arithmetic.

A forward that is made of operations which are analytic in their inputs, and of nothing else,
is determined by its values at a few random points: what agrees with it there, to the
rounding of float64, at several magnitudes, is the same formula. Where it rounds is another
question, which the module's own dtype answers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAMES = """
_fused_rms_norm _to_copy _unsafe_view add addmm alias cat chunk clone
convert_element_type div erf exp expand full gelu linalg_vector_norm linear mean mm
mul native_layer_norm native_dropout neg pow reciprocal reshape rms_norm rsqrt
scalar_tensor sigmoid silu slice split split_with_sizes sqrt square squeeze sub sum
t tanh to transpose unsqueeze var var_mean view
"""
_OPERATIONS = frozenset(_NAMES.split())
"""Operations that are analytic where a norm or a gated feed-forward uses them."""


class Formula:
    """What a module computes, in float64 whatever it rounds to.

    Args:
        module: A copy that nobody else uses.
        parameters: Its parameters and buffers by name, in its dtype.
        x: An input.

    Attributes:
        why: Why it is no formula, or nothing.
    """

    def __init__(
        self, module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor
    ) -> None:
        """Traces the forward; nothing is computed."""
        self.why = ""
        self._graph: fx.GraphModule | None = None

        def call(parameters: dict[str, Tensor], x: Tensor) -> Any:
            given = {**parameters, "its input": x}
            versions = {name: tensor._version for name, tensor in given.items()}
            out = torch.func.functional_call(module, parameters, (x,))
            written.update(n for n, t in given.items() if t._version != versions[n])
            return out

        linear = [part for part in module.children() if isinstance(part, nn.Linear)]
        called = list[nn.Module]()
        for part in linear:
            part.register_forward_hook(lambda part, *_: called.append(part))
        before, written = _held(module), set[str]()
        try:
            with torch.no_grad():
                trace = make_fx(call, tracing_mode="fake", _allow_non_fake_inputs=True)
                self._graph = trace(dict(parameters), x)
        except Exception as error:  # noqa: BLE001
            # A module may raise whatever it likes, and tracing refuses in many ways.
            first = str(error).strip().partition("\n")[0][:100]
            self.why = f"its forward cannot be traced: {type(error).__name__}: {first}"
            return
        if written := written | {n for n, _ in before.items() ^ _held(module).items()}:
            self.why = f"its forward writes to {', '.join(sorted(written))}"
        elif {*called} != {*linear}:
            self.why = "its forward reads the weights of a linear layer past its call"
        others = sorted({name for name in self._names() if name not in _OPERATIONS})
        if others and not self.why:
            self.why = (
                f"its forward does {', '.join(others)}, which no formula here has"
            )

    def _names(self) -> list[str]:
        assert self._graph is not None
        calls = (n for n in self._graph.graph.nodes if n.op == "call_function")
        targets = (n.target for n in calls)
        schemas = (getattr(target, "_schema", None) for target in targets)
        names = (s.name.partition("::")[2] for s in schemas if s is not None)
        # Those that end with one write their result to an argument.
        return [name.removesuffix("_") for name in names]

    def __call__(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Returns its output in float64.

        Args:
            parameters: By name, in float64.
            x: Of the shape that was traced, in float64.
        """
        assert self._graph is not None
        with torch.no_grad():
            out: Tensor = _Exact(self._graph).run(*parameters.values(), x.clone())
        return out


def _held(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Returns what the attributes of a module and of its parts are, by name."""
    return {
        name: (id(value), len(value) if isinstance(value, list | dict | set) else 0)
        for part in module.modules()
        for name, value in vars(part).items()
    }


class _Exact(fx.Interpreter):
    """Runs a graph without its conversions to narrower dtypes."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(_widened, (args, kwargs))
        return super().call_function(target, args, kwargs)


def _widened(value: Any) -> Any:
    narrow = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if narrow else value


def rows_of(width: int, kinds: Sequence[tuple[float, float]]) -> list[Tensor]:
    """Returns inputs in float64, each [2, 3, width].

    Args:
        width: The size of the last dimension.
        kinds: What is added to random numbers, and what multiplies the sum; of infinity
            all numbers of a row are the same.

    Example:
        >>> rows_of(4, [(math.inf, 2.0)])[0][0, 0].unique().numel()
        1
    """
    generator = torch.Generator().manual_seed(width)
    rows = []
    for mean, scale in kinds:
        x = torch.randn(2, 3, width, generator=generator, dtype=torch.float64)
        alike = x[..., :1].expand_as(x)
        rows.append((alike if math.isinf(mean) else x + mean) * scale)
    return rows


# Plain, with a mean, tiny, huge and constant.
EXACT_ROWS = ((0.0, 1.0), (3.0, 1.0), (0.1, 1e-4), (1.0, 1e3), (math.inf, 1.0))
"""Rows at which formulas are compared in float64."""

ROUNDED_ROWS = ((0.0, 1.0), (2.0, 1.0), (0.1, 0.02), (0.5, 20.0))
"""Rows at which rounding is compared, within the range of float16."""


def relative(expected: Tensor, found: Tensor) -> float:
    """Returns the norm of a difference over the norm; infinite for another shape or NaN.

    Example:
        >>> relative(torch.ones(2), torch.tensor([1.0, 1.0]))
        0.0
    """
    if expected.shape != found.shape:
        return math.inf
    apart = torch.linalg.vector_norm(expected.double() - found.double())
    norm = torch.linalg.vector_norm(expected.double())
    value = float(apart / norm) if float(norm) else float(apart)
    return math.inf if math.isnan(value) else value
