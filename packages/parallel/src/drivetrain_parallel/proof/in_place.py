"""Finds code that changes parameters while the model runs, before it does so."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drivetrain_core import Code, PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


class ConstantParameters(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, an operator that would write to a parameter raises, and does not run.

    A plan is proven by running the model on one rank: its parameters would change there,
    and not on the others. In training each rank would change its own part, or a gathered
    copy that is thrown away.

    Args:
        model: The model whose parameters are to stay.

    Example:
        >>> layer = torch.nn.Linear(2, 2)
        >>> with torch.no_grad(), ConstantParameters(layer):
        ...     try:
        ...         layer.weight.mul_(2)
        ...     except PlanError as error:
        ...         print(error.because)
        the forward changes the parameter 'weight' in place (aten::mul_)
    """

    def __init__(self, model: nn.Module) -> None:
        """Remembers whose memory is whose."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._names: dict[int, str] = {}
        for name, parameter in model.named_parameters():
            key = _memory(parameter)
            if key is not None:
                self._names.setdefault(key, name)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs an operator unless it writes to a parameter.

        Raises:
            PlanError: It does.
        """
        del types
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            self._check(func, args, kwargs)
        return func(*args, **kwargs)

    def _check(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for place, argument in enumerate(func._schema.arguments):
            alias = argument.alias_info
            if alias is None or not alias.is_write:
                continue
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            for tensor in tree_leaves(value):
                if isinstance(tensor, torch.Tensor):
                    self._refuse(func, self._names.get(_memory(tensor) or 0))

    def _refuse(self, func: Any, name: str | None) -> None:
        if name is None:
            return
        raise PlanError(
            Code.NOT_APPLICABLE,
            "mesh",
            because=f"the forward changes the parameter {name!r} in place "
            f"({func._schema.name})",
            fix="change it outside of the forward, after the optimizer's step, or "
            "compute from it without changing it",
        )


def _memory(tensor: torch.Tensor) -> int | None:
    # A tensor that wraps others, or a parameter without a shape yet, has none.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        return int(tensor.untyped_storage()._cdata)
    return None
