"""Stands tensors of a device in for those that a program had before it was recorded.

What is done with such a tensor is done with what stands in for it, so that the program's
own models, gradients and optimizers are afterwards what they were.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from drivetrain_memory._errors import MemoryUseError

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_COPIES = {_aten._to_copy.default, _aten.copy_.default}


class NeedsStandIns(Exception):  # noqa: N818
    """An operator was given a tensor of the program's own."""


class StandIns(TorchDispatchMode):
    """What stands in for the tensors that a program had before.

    An operator that is given one of them raises `NeedsStandIns`, so that the function
    that called it is called again; only a function's arguments have a history for
    gradients.

    Args:
        device: Where they lie.
    """

    def __init__(self, device: str) -> None:
        """Begins with none."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._of: Any = WeakIdKeyDictionary()
        self._for: Any = WeakIdKeyDictionary()
        self._storages: weakref.WeakValueDictionary[int, torch.Tensor]
        self._storages = weakref.WeakValueDictionary()
        self._kept: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._thread = threading.local()

    def known(self, leaf: Any) -> Any:
        """Returns what stands in for a tensor already, or what was given."""
        return self._of.get(leaf, leaf) if isinstance(leaf, torch.Tensor) else leaf

    def of(self, leaf: Any) -> Any:
        """Returns what stands in for a tensor; anything else as it is."""
        if not is_own(leaf):
            return leaf
        if leaf not in self._of:
            self._of[leaf] = made = self._made(leaf)
            self._for[made] = weakref.ref(leaf)
        return self._of[leaf]

    def back(self, leaf: Any) -> Any:
        """Returns what a tensor stands in for, or what was given."""
        own = self._for.get(leaf) if isinstance(leaf, torch.Tensor) else None
        found = own() if own else None
        return leaf if found is None else found

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls a function of PyTorch with what stands in for its arguments."""
        args, kwargs = tree_map(self.known, (args, kwargs))
        before = getattr(self._thread, "may_ask", False)
        self._thread.may_ask = True
        try:
            out = function(*args, **kwargs)
        except NeedsStandIns:
            self._thread.may_ask = False
            args, kwargs = tree_map(self.of, (args, kwargs))
            out = function(*args, **kwargs)
        finally:
            self._thread.may_ask = before
        return tree_map(self.back, out)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs an operator on what stands in for its arguments."""
        del types
        kwargs = kwargs or {}
        leaves = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
        own = [leaf for leaf in leaves if is_own(leaf)]
        if not own or (func in _COPIES and own[0] is not args[0]):
            return func(*args, **kwargs)
        if func is _aten._to_copy.default and _leaves_host(kwargs):
            return func(*args, **kwargs)
        if len(own) == len(leaves) and _is_looked_at(func, own):
            with _disable_current_modes():
                return func(*args, **kwargs)
        if getattr(self._thread, "may_ask", False):
            raise NeedsStandIns
        return func(*tree_map(self.of, args), **tree_map(self.of, kwargs))

    def keep_module(self, module: nn.Module, *_: Any) -> None:
        """Keeps what a module has, to be given back to it."""
        parts = ("_parameters", "_buffers", "_modules")
        own = [*module._parameters.values(), *module._buffers.values()]
        if id(module) not in self._kept and any(map(is_own, own)):
            held = {
                **vars(module),
                **{part: dict(vars(module)[part]) for part in parts},
            }
            self._kept[id(module)] = module, held

    def keep_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Keeps what an optimizer has, and lets it step what stands in for it."""
        groups, state = optimizer.param_groups, optimizer.state
        if not any(is_own(p) for group in groups for p in group["params"]):
            return
        held = {"param_groups": groups, "state": state}
        self._kept.setdefault(id(optimizer), (optimizer, held))
        optimizer.param_groups = [tree_map(self.of, dict(group)) for group in groups]
        optimizer.state = defaultdict(dict)
        for parameter, values in state.items():
            optimizer.state[self.of(parameter)] = tree_map(self.of, dict(values))

    def restore(self) -> None:
        """Gives back to modules and optimizers what was theirs."""
        for owner, held in self._kept.values():
            vars(owner).update(held)
        self._kept.clear()

    def _made(self, own: torch.Tensor) -> torch.Tensor:
        if own.layout != torch.strided or type(own) not in {torch.Tensor, nn.Parameter}:
            kind = type(own).__name__ if own.layout == torch.strided else own.layout
            message = (
                f"a tensor of kind {kind} was made before record(): make it inside"
            )
            raise MemoryUseError(message)
        if own.grad_fn is not None and own.requires_grad:
            message = (
                "a tensor that was computed before record(), and has a gradient to be "
                "computed, is used inside: compute it inside, or detach it"
            )
            raise MemoryUseError(message)
        storage = own.untyped_storage()
        with torch.no_grad():
            whole = self._storages.get(storage._cdata)
            if whole is None:
                whole = torch.empty(
                    storage.nbytes(), dtype=torch.uint8, device=self._device
                )
                self._storages[storage._cdata] = whole
            made = torch.empty(0, dtype=own.dtype, device=self._device).set_(
                whole.untyped_storage(), own.storage_offset(), own.shape, own.stride()
            )
            if isinstance(own, nn.Parameter):
                made = nn.Parameter(made, own.requires_grad)
            made.requires_grad_(own.requires_grad)
            made.whole = whole  # type: ignore[attr-defined]
        if own.grad is not None:
            made.grad = self.of(own.grad)
        return made


def is_own(leaf: Any) -> bool:
    """Returns whether something is a tensor that has values."""
    return isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)


def _leaves_host(kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type != "cpu"


def _is_looked_at(func: Any, own: list[torch.Tensor]) -> bool:
    """Returns whether an operator takes no memory, and nothing is to be learnt of it."""
    if func is _aten._local_scalar_dense.default:
        return True
    return func.is_view and not any(leaf.requires_grad for leaf in own)
