"""A model as it was, to be put back: values, tensors, attributes, hooks and classes.

A plan changes the user's own objects: it replaces parameters by shards, puts code around
forwards, adds hooks. Copies of the model would not do in its place, since a loss, a closure
or an optimizer's factory may hold the model itself.
"""

from __future__ import annotations

import copy
import gc
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial
from itertools import chain
from types import CellType, CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed._composable_state import _module_state_mapping
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CONTAINERS = (dict, OrderedDict, defaultdict, Counter, list, set, deque)
_LOOKED_INTO = {
    *(*_CONTAINERS, CellType, MethodType, partial, torch.Generator, random.Random),
    *(np.random.RandomState, np.random.Generator, np.ndarray),
}
# Tables and data sets that a loss holds are not copied, and no step writes them.
_MOST_VALUES, _MOST_ITEMS, _MOST_NUMBERS = 2**24, 2**14, 2**8
_NUMBERS = {int, float}


class ModelSnapshot:
    """Remembers a model, what its modules hold, and what a loss or a forward holds.

    That is plain containers, what functions enclose and the global variables they use, modules,
    random generators, arrays, and objects of classes that are none of a library's. What lies
    in other objects and in classes is not looked into; nor is a global put back that a
    function sets anew, but a number.

    Args:
        model: The model.
        others: A loss, a forward: functions or objects that hold more.
        values: Whether it is trained in between: values are then copied to the host.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> snapshot = ModelSnapshot(layer, values=True)
        >>> layer.weight.data, layer.seen = layer.weight.data.bfloat16(), 1
        >>> snapshot.restore()
        >>> layer.weight.dtype, hasattr(layer, "seen")
        (torch.float32, False)
    """

    def __init__(
        self, model: torch.nn.Module, *others: Any, values: bool = False
    ) -> None:
        """Looks through the model; copies values where asked."""
        self._classes = [(module, type(module)) for module in model.modules()]
        self._containers: list[tuple[Any, Any]] = []
        self._states: list[Callable[[], Any]] = []
        self._numbers: list[tuple[Any, dict[str, float]]] = []
        # Those of scripted modules lie in no attribute.
        own = {id(t): t for t in chain(model.parameters(), model.buffers())}
        self._tensors: list[_Tensor] = []
        self._others: list[_Tensor] = []
        seen, most = dict[int, Any](), _MOST_VALUES if values else 0
        pending: list[Any] = [*others, model, *own.values()]
        while pending:
            value = pending.pop()
            if id(value) in seen or not _is_looked_into(value):
                continue
            seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                own_or_small = id(value) in own or value.numel() < most
                if id(value) in own or _is_plain(value):
                    kept = _Tensor(value, values=values and own_or_small)
                    self._tensors.append(kept)
                    if values and id(value) not in own:
                        self._others.append(kept)
            elif type(value) in _CONTAINERS:
                self._containers.append((value, copy.copy(value)))
            self._states += _putting_back(value, most)
            if numbers := _numbers_in(value):
                self._numbers.append((value, numbers))
            if isinstance(value, FunctionType):
                pending += (*(value.__closure__ or ()), *used_globals(value).values())
            elif not isinstance(value, torch.Tensor):
                pending += gc.get_referents(value)
            pending.append(getattr(value, "__dict__", None))

    def restore(self) -> None:
        """Makes the model what it was; may be called more than once."""
        for module, kind in self._classes:
            if type(module) is not kind:
                module.__class__ = kind
            # FSDP2 refuses a module that it knows.
            _module_state_mapping.pop(module, None)
        for container, kept in self._containers:
            if _items(container) == _items(kept):
                continue  # Another thread may be using it.
            container.clear()
            is_list = isinstance(container, list | deque)
            (container.extend if is_list else container.update)(kept)
        for tensor in self._tensors:
            tensor.restore()
        for state in self._states:
            state()

    def ways(self) -> list[tuple[str, torch.Tensor]]:
        """Returns how far numbers and tensors have gone that the model does not own.

        One snapshot gives the same ones each time, in the same order: what each is called,
        and its way, without a dimension that of a number, and flat that of a tensor.
        """
        found = [tensor.way() for tensor in self._others]
        for value, before in self._numbers:
            ways = {n: _numbers_in(value).get(n, b) - b for n, b in before.items()}
            found += [(n, torch.tensor(way).double()) for n, way in ways.items()]
        return found


def used_globals(function: FunctionType) -> dict[str, Any]:
    """Returns the global variables that a function, or one inside of it, uses."""
    code, known = function.__code__, function.__globals__
    parts = [part for part in (code, *code.co_consts) if isinstance(part, CodeType)]
    return {n: known[n] for part in parts for n in part.co_names if n in known}


def _numbers_in(value: Any) -> dict[str, float]:
    """Returns the numbers that lie in a function, a mapping or a short list, by name."""
    named: dict[Any, Any] = {}
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        held = {n: c.cell_contents for n, c in cells if gc.get_referents(c)}
        named = used_globals(value) | held
    elif type(value) in _CONTAINERS and len(value) < _MOST_NUMBERS:
        named = value if isinstance(value, dict) else dict(enumerate(value))
    return {str(n): v for n, v in named.items() if type(v) in _NUMBERS}


def _items(container: Any) -> list[int]:
    values = container.values() if isinstance(container, dict) else ()
    return [id(item) for item in chain(container, values)]


def _is_plain(tensor: torch.Tensor) -> bool:
    # Of shards, ranks would wait for one another to compare them.
    kinds = tensor.is_nested, is_traceable_wrapper_subclass(tensor)
    return tensor.layout is torch.strided and not any(kinds)


def _is_looked_into(value: Any) -> bool:
    """Returns whether a value may hold what a step changes, and is none of a library's."""
    if isinstance(value, torch.Tensor):
        return not is_lazy(value)
    if isinstance(value, torch.nn.Module | tuple) or type(value) in _LOOKED_INTO:
        return type(value) not in _CONTAINERS or len(value) < _MOST_ITEMS
    kind = value if isinstance(value, FunctionType) else type(value)
    name = "" if isinstance(value, type) else str(kind.__module__)
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    is_known = not name or name.startswith(("drivetrain_", "torch."))
    is_known |= name.partition(".")[0] in sys.stdlib_module_names
    return not (is_known or "-packages" in file)


def _putting_back(value: Any, most: int) -> Iterator[Callable[[], Any]]:
    """Yields what puts the state of a value back, if it is of a kind that has one."""
    kind: Any = type(value)
    if kind is CellType and gc.get_referents(value):
        yield partial(setattr, value, "cell_contents", value.cell_contents)
    elif kind in (torch.Generator, np.random.RandomState):
        yield partial(value.set_state, value.get_state())
    elif kind is random.Random:
        yield partial(value.setstate, value.getstate())
    elif kind is np.random.Generator:
        bits = value.bit_generator
        yield partial(setattr, bits, "state", bits.state)
    elif kind is FunctionType:
        for name, held in used_globals(value).items():
            if type(held) in _NUMBERS:
                yield partial(value.__globals__.__setitem__, name, held)
    elif kind is np.ndarray and value.flags.writeable and value.size < most:
        yield partial(np.copyto, value, value.copy())


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
        return self._tensor._backward_hooks, self._tensor._post_accumulate_grad_hooks

    def way(self) -> tuple[str, torch.Tensor]:
        """Returns what it is, and how far its values have gone, as far as it has a copy."""
        name, way = f"a tensor of shape {tuple(self._data.shape)}", torch.zeros(1)
        if self._copy is not None and not _same(self._data, self._copy):
            exact = torch.promote_types(self._data.dtype, torch.float64)
            way = (self._data.cpu().to(exact) - self._copy.to(exact)).flatten()
        return name, way

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
    return _is_plain(one) and torch.equal(one, other.to(one.device))
