"""Stands tensors of a device in for those that a program had before it was recorded.

What is done with such a tensor is done with what stands in for it, so that the program's
own models, gradients and optimizers are afterwards what they were.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from drivetrain_memory._errors import refused
from drivetrain_memory.trace._values import know

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten
_COPIES = {_aten._to_copy.default, _aten.copy_.default}
_HOST = {None, torch.device("cpu")}
# What these have before a program is recorded is given back to them.
_KEPT = (nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler)
_CONTAINERS = {dict, OrderedDict, defaultdict, list, set}


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
        self._storages: Any = weakref.WeakValueDictionary()
        self._kept: list[tuple[Any, Any]] = []
        self._may_ask = False

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
        before, self._may_ask = self._may_ask, True
        try:
            out = function(*args, **kwargs)
        except NeedsStandIns:
            self._may_ask = False
            args, kwargs = tree_map(self.of, (args, kwargs))
            out = function(*args, **kwargs)
        finally:
            self._may_ask = before
        return tree_map(self.back, out)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs an operator on what stands in for its arguments."""
        del types
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and func.namespace != "prim":
            # Else the operators that one is made of would not be seen.
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        leaves = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
        own = [leaf for leaf in leaves if is_own(leaf)]
        if not own or (func in _COPIES and own[0] is not args[0]):
            return func(*args, **kwargs)
        if func is _aten._to_copy.default and kwargs.get("device") not in _HOST:
            return func(*args, **kwargs)
        if len(own) == len(leaves) and _is_looked_at(func, own):
            with _disable_current_modes():
                return func(*args, **kwargs)
        if self._may_ask:
            raise NeedsStandIns
        return func(*tree_map(self.of, args), **tree_map(self.of, kwargs))

    def keep(self) -> None:
        """Keeps what modules, optimizers and the like have, to be given back to them."""
        for owner in gc.get_objects():
            if issubclass(type(owner), _KEPT):
                has = [x for x in vars(owner).values() if type(x) in _CONTAINERS]
                groups = getattr(owner, "param_groups", [])
                self._kept += [(x, copy.copy(x)) for x in (vars(owner), *has, *groups)]

    def step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Lets an optimizer of before step what stands in for what it has."""
        groups, state = optimizer.param_groups, optimizer.state
        if not is_recorded() or not any(
            is_own(p) for group in groups for p in group["params"]
        ):
            return
        optimizer.param_groups = [tree_map(self.of, dict(group)) for group in groups]
        optimizer.state = defaultdict(dict)
        for parameter, held in state.items():
            optimizer.state[self.of(parameter)] = tree_map(self.of, dict(held))

    def restore(self) -> None:
        """Gives back to modules and optimizers what was theirs."""
        for owner, held in self._kept:
            owner.clear()
            (owner.extend if isinstance(owner, list) else owner.update)(held)
        self._kept.clear()

    def _made(self, own: torch.Tensor) -> torch.Tensor:
        if nn.parameter.is_lazy(own):
            refused("a lazy module", "run it once before record(), or give it sizes")()
        if own.layout != torch.strided or type(own) not in {torch.Tensor, nn.Parameter}:
            kind = type(own).__name__ if own.layout == torch.strided else own.layout
            refused(f"a tensor of kind {kind} from before", "make it inside")()
        if own.grad_fn is not None and own.requires_grad:
            what = "a tensor from before with a gradient to be computed"
            refused(what, "compute it inside, or detach it")()
        storage = own.untyped_storage()
        size, unit = storage.nbytes(), own.element_size()
        # What is made while nothing has a gradient may need one later.
        with torch.inference_mode(False), torch.no_grad():
            other = self._storages.get(storage._cdata)
            if other is None or other.untyped_storage().nbytes() != size:
                whole = torch.empty(size, dtype=torch.uint8, device=self._device)
            else:
                all_of_it = (size // other.element_size(),), (1,), 0
                whole = other.detach().as_strided(*all_of_it).view(torch.uint8)
            typed = whole[: size // unit * unit].view(own.dtype)
            made = typed.as_strided(own.shape, own.stride(), own.storage_offset())
            made = self._storages[storage._cdata] = made.detach()
            if isinstance(own, nn.Parameter):
                made = nn.Parameter(made, own.requires_grad)
                self._storages[storage._cdata] = made
            made.requires_grad_(own.requires_grad)
        know(made, own)
        if own.grad is not None:
            made.grad = self.of(own.grad)
        return made


def is_own(leaf: Any) -> bool:
    """Returns whether something is a tensor that has values."""
    if not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor):
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(leaf)


def is_recorded() -> bool:
    """Returns whether this thread runs what is recorded."""
    # What a data loader does is seen by one mode alone.
    return torch._C._len_torch_dispatch_stack() > 1


def _is_looked_at(func: Any, own: list[torch.Tensor]) -> bool:
    """Returns whether an operator takes no memory, and nothing is to be learnt of it."""
    if func is _aten._local_scalar_dense.default:
        return True
    return func.is_view and not any(leaf.requires_grad for leaf in own)
