"""A model as it was, to be put back: values, tensors, attributes, hooks and classes.

A plan changes the user's own objects: it replaces parameters by shards, puts code around
forwards, adds hooks. Copies of the model would not do in its place, since a loss, a closure
or an optimizer's factory may hold the model itself.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed._composable_state import _module_state_mapping
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from collections.abc import Iterable

_CONTAINERS = (dict, OrderedDict, defaultdict, list, set)


class ModelSnapshot:
    """Remembers a model and all that its modules' attributes hold of plain containers.

    What lies in other objects is not looked into.

    Args:
        model: The model.
        values: Whether it is trained in between: values are then copied to the host.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> snapshot = ModelSnapshot(layer, values=True)
        >>> layer.weight.data, layer.seen = layer.weight.data.bfloat16(), 1
        >>> snapshot.restore()
        >>> layer.weight.dtype, hasattr(layer, "seen")
        (torch.float32, False)
    """

    def __init__(self, model: torch.nn.Module, *, values: bool = False) -> None:
        """Looks through the model; copies values where asked."""
        self._values = values
        self._classes = [(module, type(module)) for module in model.modules()]
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._tensors: dict[int, _Tensor] = {}
        for module, _ in self._classes:
            self._look(vars(module))

    def _look(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._tensors:
                self._tensors[id(value)] = _Tensor(value, values=self._values)
                self._look(vars(value))
        elif isinstance(value, tuple):
            self._look_at_all(value)
        elif type(value) in _CONTAINERS and id(value) not in self._containers:
            self._containers[id(value)] = value, copy.copy(value)
            self._look_at_all(value.values() if isinstance(value, dict) else value)

    def _look_at_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self._look(value)

    def restore(self) -> None:
        """Makes the model what it was; may be called more than once."""
        for module, kind in self._classes:
            if type(module) is not kind:
                module.__class__ = kind
            # FSDP2 refuses a module that it knows.
            _module_state_mapping.pop(module, None)
        for container, kept in self._containers.values():
            container.clear()
            if isinstance(container, list):
                container.extend(kept)
            else:
                container.update(kept)
        for tensor in self._tensors.values():
            tensor.restore()


class _Tensor:
    """One tensor as it was."""

    def __init__(self, tensor: torch.Tensor, *, values: bool) -> None:
        self._tensor: Any = tensor
        self._data = tensor.data
        self._copy = tensor.detach().cpu().clone() if values else None
        self._requires_grad, self._is_leaf = tensor.requires_grad, tensor.is_leaf
        self._grad = tensor.grad if tensor.is_leaf else None
        self._hooks = [dict(hooks or {}) for hooks in self._hooks_now()]

    def _hooks_now(self) -> tuple[dict[int, Any] | None, ...]:
        after = self._tensor._post_accumulate_grad_hooks
        return self._tensor._backward_hooks, after

    def restore(self) -> None:
        # What is a view of few values, or made in inference mode, takes no copy, and no
        # step changes it.
        if self._copy is not None and not _same(self._data, self._copy):
            self._data.copy_(self._copy)
        if not self._is_leaf:
            return
        if not is_traceable_wrapper_subclass(self._tensor):
            self._tensor.data = self._data
        self._tensor.requires_grad_(self._requires_grad)
        self._tensor.grad = self._grad
        # Torch goes on with the mapping itself, whatever the attribute is set to.
        for hooks, kept in zip(self._hooks_now(), self._hooks, strict=True):
            if hooks is not None:
                hooks.clear()
                hooks.update(kept)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    plain = one.layout is torch.strided and not one.is_nested
    return plain and torch.equal(one, other.to(one.device))
