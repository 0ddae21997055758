"""Writes down the storages that operators make, on tensors that have no values."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from drivetrain_memory._errors import MemoryUseError
from drivetrain_memory.trace._format import Builder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_memory.trace._format import Trace

_aten = torch.ops.aten
_UNSCALES = _aten._amp_foreach_non_finite_check_and_unscale_.default
_NOTHING = torch.empty(0)
# Of tensors with more elements, no values are known.
MOST_KNOWN = 1024
# They make tensors of numbers that the program gives.
_GIVEN = {"arange", "eye", "full", "linspace", "ones", "scalar_tensor", "zeros"}


class Recorder(TorchDispatchMode):
    """Writes down every storage that operators make, and when it goes.

    Args:
        name: Of the trace.
        device: Whose storages.
    """

    def __init__(self, name: str, device: str = "cpu") -> None:
        """Begins with nothing."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._builder = Builder(name)
        self._device = device
        self.current_stream = 0
        # Of each storage: its end, its block, and its size.
        self._storages: dict[int, tuple[weakref.ref[Any], int, int]] = {}
        # The blocks of what may turn out to lie in the host's memory, and what does.
        self._open: set[int] = set()
        self._host: set[int] = set()

    def __enter__(self) -> Self:
        """Begins to record."""
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    @contextmanager
    def stream(self, stream: int) -> Iterator[None]:
        """What is made inside belongs to another stream."""
        before, self.current_stream = self.current_stream, stream
        try:
            yield
        finally:
            self.current_stream = before

    def step(self) -> None:
        """A training step begins."""
        self._builder.step()

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        """Another stream uses a tensor too."""
        known = self._known(tensor)
        if known is not None:
            self._builder.record_stream(known[1], stream)

    def trace(self) -> Trace:
        """Returns what was recorded; what still lives stays so."""
        return self._builder.trace()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs an operator and writes down what it made."""
        del types
        kwargs = kwargs or {}
        if func is _aten._local_scalar_dense.default and isinstance(
            args[0], FakeTensor
        ):
            return number(args[0])
        try:
            out = func(*args, **kwargs)
        except UnsupportedOperatorException:
            message = (
                f"PyTorch cannot say what memory {func} takes without running it: leave "
                "it out of what is recorded, or give other operators in its place"
            )
            raise MemoryUseError(message) from None
        except (DataDependentOutputException, DynamicOutputShapeException):
            message = (
                f"what {func} gives depends on values, and tensors have none while a "
                "program is recorded: do it outside of record(), or give this step "
                "something else, such as a fixed number of elements"
            )
            raise MemoryUseError(message) from None
        if func.namespace != "prim" and not func.is_view:
            self.add(out)
            if func._schema.is_mutable:
                self.add(args)
        if not _follow(func, args, kwargs, out):
            _guess(func, args, kwargs, out)
        return out

    def add(self, tensors: Any) -> None:
        """Writes down the storages of tensors that are new, or of another size."""
        for leaf in tree_iter(tensors):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == self._device:
                if leaf.layout != torch.strided:
                    message = (
                        f"what a tensor of layout {leaf.layout} takes depends on its "
                        "values: record with a dense one in its place"
                    )
                    raise MemoryUseError(message)
                self.add_storage(leaf.untyped_storage())

    def add_storage(self, storage: torch.UntypedStorage) -> None:
        """Writes down a storage that is new, or of another size."""
        key, size = storage._cdata, storage.nbytes()
        end, block, before = self._storages.get(key, (None, 0, 0))
        if (end is not None and size == before) or key in self._host:
            return
        if before:
            self._builder.free(block)
        if size:
            block = self._builder.allocate(size, self.current_stream)
        if end is None:
            end = weakref.ref(storage, lambda _: self._gone(key))
        self._storages[key] = end, block, size

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Writes down that a storage has another size."""
        if storage._cdata in self._storages:
            self.add_storage(storage)

    def open(self, tensor: torch.Tensor) -> None:
        """Notes that the program has named no device for a tensor."""
        known = self._known(tensor)
        if known is not None:
            self._open.add(known[1])

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of what the program moves to the device, if it named none before.

        It lay in the host's memory until now, and nothing of it is in the trace.
        """
        known = self._known(tensor)
        if known is None or known[1] not in self._open:
            return tensor
        self._host.add(tensor.untyped_storage()._cdata)
        self._builder.leave_out(known[1])
        copy = tensor.clone()
        if copy.is_leaf:
            copy.requires_grad_(tensor.requires_grad)
        return copy

    def _known(self, tensor: Any) -> tuple[weakref.ref[Any], int, int] | None:
        # Those of torch.func and sparse ones are wrappers of others.
        if not isinstance(tensor, FakeTensor) or tensor.layout != torch.strided:
            return None
        return self._storages.get(tensor.untyped_storage()._cdata)

    def _gone(self, key: int) -> None:
        _, block, size = self._storages.pop(key)
        self._host.discard(key)
        if size:
            self._builder.free(block)


def values(tensor: torch.Tensor) -> torch.Tensor:
    """Returns values for a tensor: those that are known, or some that programs go on with."""
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        if not isinstance(tensor, FakeTensor):
            return tensor.detach().clone()
        value = getattr(tensor, "value", tensor.dtype != torch.bool)
        known = getattr(tensor, "known", torch.tensor(value, dtype=tensor.dtype))
        return known.expand(tensor.shape).clone()


def number(tensor: torch.Tensor) -> Any:
    """Returns a number for a tensor of one element."""
    with _disable_current_modes():
        return values(tensor).item()


def _follow(func: Any, args: Any, kwargs: Any, out: Any) -> bool:
    """Says what small tensors hold, if it follows from what the program gives."""
    given = [x for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor)]
    made = [x for x in tree_iter(out) if isinstance(x, FakeTensor)]
    known = [getattr(x, "known", None) for x in given if isinstance(x, FakeTensor)]
    follows = bool(given) or func._schema.name.partition("::")[2] in _GIVEN
    follows &= torch.Tag.nondeterministic_seeded not in func.tags
    follows &= all(x.numel() <= MOST_KNOWN for x in (*given, *made))
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        if follows and all(x is not None for x in known):
            try:
                given, named = tree_map(_known, (args, kwargs))
                results = tree_iter(func(*given, **named))
                results = [x for x in results if isinstance(x, torch.Tensor)]
                for one, result in zip(made, results, strict=True):
                    one.known = result  # type: ignore[attr-defined]
            except (RuntimeError, IndexError, TypeError, ValueError):
                return False
            return True
        for argument, leaves in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for leaf in tree_iter(leaves):
                    # A scaler finds no infinity.
                    getattr(leaf, "known", _NOTHING).fill_(func is not _UNSCALES)
    return False


def _known(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    return getattr(leaf, "known", leaf)


def _guess(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Says of a yes or no what it would be if each number were 1."""
    if not isinstance(out, FakeTensor) or out.dtype != torch.bool:
        return

    def likely(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if not isinstance(leaf, torch.Tensor):
            return leaf
        value = number(leaf) if leaf.numel() == 1 else getattr(leaf, "value", None)
        value = leaf.dtype != torch.bool if value is None else value
        return torch.full([1] * leaf.dim(), value, dtype=leaf.dtype)

    try:
        with _disable_current_modes():
            args, kwargs = tree_map(likely, (args, kwargs))
            out.value = bool(func(*args, **kwargs).all())  # type: ignore[attr-defined]
    # An operator that minds the number of elements; no is the answer then.
    except (RuntimeError, IndexError, TypeError):
        out.value = False  # type: ignore[attr-defined]
