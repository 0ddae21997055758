"""Compiled form of an op: its reference, through `torch.compile`."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from drivetrain_core.extending import separate_compile_cache
from drivetrain_kernels._available import compiler_missing
from drivetrain_kernels._dispatch import Implementation, only_on_a_gpu
from drivetrain_kernels._fast_path import is_watched, once_differentiable

if TYPE_CHECKING:
    from collections.abc import Callable


def compiled_form(reference: Callable[..., Any]) -> Implementation[Any]:
    """Returns the entry of an op's compiled reference, which "auto" takes on a GPU.

    Args:
        reference: The op in torch's operators.
    """
    return Implementation(
        name="compiled",
        call=compiled(reference),
        refuse=lambda facts: compiler_missing(facts.device),
        automatic=only_on_a_gpu,
        because="one kernel made by torch.compile",
    )


def compiled(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that compiles `reference` when it is first called.

    Each combination of dtypes, gradients and options is compiled for itself, so that
    many of them never reach torch's limit of recompilations, beyond which it would
    silently run eager. Sizes become dynamic when they first change. Within a function
    that is being compiled anyhow, the reference is traced.

    Args:
        reference: The op in torch's operators.
    """
    made: dict[tuple[Any, ...], Callable[..., Any]] = {}

    @functools.wraps(reference)
    def call(*args: Any) -> Any:
        if is_watched(*args):
            return reference(*args)
        key = (torch.is_grad_enabled(), *map(_kind, args))
        if key not in made:
            separate_compile_cache()
            made[key] = torch.compile(_twin(reference), fullgraph=True)
        return tree_map(once_differentiable, made[key](*args))

    return call


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.device, value.dtype, value.dim(), value.requires_grad
    return value


def _twin(function: Any) -> Callable[..., Any]:
    """Returns the same function with a code object of its own, which caches go by."""
    return types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
