"""Writes down the storages that operators make, on tensors that have no values."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import _get_sequence_nr
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from drivetrain_memory._errors import refused
from drivetrain_memory._limits import require_integer
from drivetrain_memory.trace._format import Builder
from drivetrain_memory.trace._values import follow, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_memory.trace._format import Trace

_aten = torch.ops.aten
# Of the host, and of nowhere.
_NOT_RECORDED = {"cpu", "meta"}


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
        # Of each node of autograd its stream; how many there were, and which one runs.
        self._streams: dict[int, int] = {}
        self._num_nodes, self._node = _get_sequence_nr(), -1
        # Of each storage: its end, its block, and its size.
        self._storages: dict[int, tuple[weakref.ref[Any], int, int]] = {}
        # The blocks of what may turn out to lie in the host's memory, and what does.
        self._open: set[int] = set()
        self._loads = False
        self._host: set[int] = set()

    @property
    def current_stream(self) -> int:
        """The stream of what is made now; a backward runs on that of its forward."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            made = range(self._num_nodes, _get_sequence_nr())
            self._streams.update(dict.fromkeys(made, self._stream))
            self._num_nodes, self._node = made.stop, -1
        elif node._sequence_nr() != self._node:
            self._node = node._sequence_nr()
            self._stream = self._streams.get(self._node, self._stream)
        return self._stream

    @current_stream.setter
    def current_stream(self, stream: int) -> None:
        self._stream = stream

    @contextmanager
    def stream(self, stream: int) -> Iterator[None]:
        """What is made inside belongs to another stream.

        Args:
            stream: Its number, from 0, the default stream's, to 255.

        Raises:
            MemoryUseError: It is no such number.
        """
        require_integer("a stream", stream, 0, 255)
        before, self.current_stream = self.current_stream, stream
        try:
            yield
        finally:
            self.current_stream = before

    def step(self) -> None:
        """A training step begins."""
        self._builder.step()

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        """Another stream uses a tensor too; it is a number as of `stream`."""
        require_integer("a stream", stream, 0, 255)
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
        if self._loads:
            return self._loaded(func(*args, **kwargs), (args, kwargs))
        if func is _aten._local_scalar_dense.default and isinstance(
            args[0], FakeTensor
        ):
            return number(args[0])
        try:
            out = func(*args, **kwargs)
        except UnsupportedOperatorException:
            what = f"{func}, of which PyTorch cannot say what memory it takes,"
            refused(what, "leave it out, or give other operators in its place")()
        except (DataDependentOutputException, DynamicOutputShapeException):
            what = f"{func}, as what it gives depends on values,"
            refused(what, "do it outside of record(), or with a fixed number of them")()
        if func.namespace != "prim" and not func.is_view:
            self.add(out)
            if func._schema.is_mutable:
                self.add(args)
        follow(func, args, kwargs, out)
        return out

    def add(self, tensors: Any) -> None:
        """Writes down the storages of tensors that are new, or of another size."""
        for leaf in tree_iter(tensors):
            if not isinstance(leaf, torch.Tensor):
                continue
            if leaf.device.type == self._device and not leaf.device.index:
                if leaf.layout != torch.strided:
                    what = f"a tensor of layout {leaf.layout}, sized by its values,"
                    refused(what, "use a dense one in its place")()
                self.add_storage(leaf.untyped_storage())
            elif leaf.device.type not in _NOT_RECORDED:
                what = f"a tensor of {leaf.device} beside those of {self._device}:0"
                refused(what, "record what each device does by itself")()

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
            self._host.discard(tensor.untyped_storage()._cdata)
            self._builder.leave_out(known[1], out=False)

    def on_host(self, tensor: Any) -> bool:
        """Returns whether a tensor lies in the host's memory, as the program now shows.

        It does if the program named no device for it, and nothing of it is in the trace.
        """
        known = self._known(tensor)
        if known is None or known[1] not in self._open:
            return False
        self._host.add(tensor.untyped_storage()._cdata)
        self._builder.leave_out(known[1])
        return True

    @contextmanager
    def of_the_host(self) -> Iterator[None]:
        """What is used inside lies in the host's memory, if the program has not said so."""
        self._loads = True
        try:
            with self:
                yield
        finally:
            self._loads = False

    def _loaded(self, out: Any, given: Any) -> Any:
        # Of what lies in the host's memory, something is made there.
        if any([self.on_host(leaf) for leaf in tree_iter(given)]):  # noqa: C419
            for leaf in tree_iter(out):
                self.add(leaf)
                self.open(leaf)
                self.on_host(leaf)
        return out

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of what the program moves to the device, if it named none before."""
        if not self.on_host(tensor):
            return tensor
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
