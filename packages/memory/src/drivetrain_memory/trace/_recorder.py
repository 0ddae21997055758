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
        self._stream = 0
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
        before, self._stream = self._stream, stream
        try:
            yield
        finally:
            self._stream = before

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
        if func is _aten._amp_foreach_non_finite_check_and_unscale_.default:
            args[1].value = 0.0  # A scaler finds no infinity.
        if func.namespace != "prim" and not func.is_view:
            self.add(out)
            if func._schema.is_mutable:
                self.add(args)
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
            block = self._builder.allocate(size, self._stream)
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


def number(tensor: torch.Tensor) -> bool | int | float | complex:
    """Returns a number for a tensor without values: one with which programs go on."""
    value = getattr(tensor, "value", tensor.dtype != torch.bool)
    number: bool | int | float | complex = torch.tensor(
        value, dtype=tensor.dtype
    ).item()
    return number


def _guess(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Says of a yes or no what it would be if each number were what `_number` returns."""
    if not isinstance(out, FakeTensor) or out.dtype != torch.bool:
        return

    def likely(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return torch.full([1] * leaf.dim(), number(leaf), dtype=leaf.dtype)

    try:
        with _disable_current_modes():
            args, kwargs = tree_map(likely, (args, kwargs))
            out.value = bool(func(*args, **kwargs).all())  # type: ignore[attr-defined]
    # An operator that minds the number of elements; no is the answer then.
    except (RuntimeError, IndexError, TypeError):
        out.value = False  # type: ignore[attr-defined]
