"""Norms: RMSNorm in any library's spelling, and LayerNorm."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from drivetrain_kernels._accumulation import accumulation_dtype
from drivetrain_kernels.ops import _layer_norm, _rms_norm
from drivetrain_kernels.replacement._identify import OpMatch, Standin, method, norm_eps

if TYPE_CHECKING:
    from drivetrain_kernels.ops._norm_rows import NormFacts
    from drivetrain_kernels.replacement._forward_state import ForwardState


def rms_norm_matches(module: nn.Module) -> list[OpMatch]:
    """Returns how a module might be an RMSNorm; empty if its structure says no.

    Nothing but a weight vector and an epsilon: whether it is Llama's or Gemma's, and
    where it rounds, is found out by running it.

    Args:
        module: Any module.
    """
    weight = _only_vector(module)
    eps = norm_eps(module)
    if isinstance(module, nn.RMSNorm) and eps is None and weight is not None:
        # As torch's: of what it computes in, which for half precision is float32.
        eps = torch.finfo(accumulation_dtype(weight.dtype)).eps
    if weight is None or eps is None or isinstance(module, nn.LayerNorm):
        return []
    options = [(0.0, "input"), (0.0, "float32"), (1.0, "float32"), (1.0, "input")]
    return [_rms_norm_match(weight.numel(), eps, o, cast) for o, cast in options]


def layer_norm_matches(module: nn.Module) -> list[OpMatch]:
    """Returns how a module is a LayerNorm over its last dimension, if it is one.

    Args:
        module: Any module.
    """
    if not isinstance(module, nn.LayerNorm) or module.weight is None:
        return []
    if len(module.normalized_shape) != 1:
        return []
    eps = module.eps

    def facts(module: nn.Module, x: Tensor) -> NormFacts:
        return _layer_norm.facts(x, module.weight, module.bias, eps=eps)  # type: ignore[arg-type]

    return [
        OpMatch(
            kind="layer_norm",
            what=f"layer_norm(eps={eps:g})",
            op=_layer_norm.OP,
            build=functools.partial(_layer_norm_standin, eps),
            facts=facts,
            width=module.normalized_shape[0],
        )
    ]


def _rms_norm_match(width: int, eps: float, offset: float, cast: str) -> OpMatch:
    def facts(module: nn.Module, x: Tensor) -> NormFacts:
        return _rms_norm.facts(x, module.weight, eps=eps, offset=offset, cast=cast)  # type: ignore[arg-type]

    return OpMatch(
        kind="rms_norm",
        what=f"rms_norm(eps={eps:g}, offset={offset:g}, cast={cast})",
        op=_rms_norm.OP,
        build=functools.partial(_rms_norm_standin, eps, offset, cast),
        facts=facts,
        width=width,
    )


@functools.cache
def _rms_norm_standin(
    eps: float, offset: float, cast: str, impl: str, known: ForwardState
) -> Standin:
    def compute(module: nn.Module, x: Tensor) -> Tensor:
        weight: Tensor = module.weight  # type: ignore[assignment]
        return _rms_norm.rms_norm(
            x, weight, eps=eps, offset=offset, cast=cast, impl=impl
        )

    return method(compute, _weight, known)


@functools.cache
def _layer_norm_standin(eps: float, impl: str, known: ForwardState) -> Standin:
    def compute(module: nn.LayerNorm, x: Tensor) -> Tensor:
        return _layer_norm.layer_norm(x, module.weight, module.bias, eps=eps, impl=impl)

    return method(compute, _weight, known)


def _weight(module: nn.Module) -> Tensor:
    weight: Tensor = module.weight  # type: ignore[assignment]
    return weight


def _only_vector(module: nn.Module) -> Tensor | None:
    """Returns the weight of a module that has nothing else."""
    parameters = dict(module.named_parameters())
    alone = not list(module.children()) and not list(module.buffers())
    weight = parameters.get("weight")
    if not alone or len(parameters) != 1 or weight is None or weight.ndim != 1:
        return None
    return weight
