"""Records what a program asks of an allocator, on a machine without a GPU.

The program runs on tensors that have no values (FakeTensorMode), so that a model of any
size is recorded in seconds. What kernels take for themselves, such as the workspace of a
matrix product, is not seen.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from drivetrain_memory.trace._format import Builder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_memory.trace._format import Trace


class Recorder(TorchDispatchMode):
    """Writes down every storage that operators make, and when it goes.

    Args:
        name: Of the trace.
    """

    def __init__(self, name: str) -> None:
        """Begins with nothing."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._builder = Builder(name)
        self._stream = 0
        self._storages: dict[int, tuple[weakref.ref[Any], int]] = {}

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
        known = self._storages.get(tensor.untyped_storage()._cdata)
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
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func.namespace != "prim":
            for leaf in tree_iter(out):
                if isinstance(leaf, torch.Tensor):
                    self._add(leaf)
        return out

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages or storage.nbytes() == 0:
            return
        name = self._builder.allocate(storage.nbytes(), self._stream)

        def gone(_: object) -> None:
            del self._storages[key]
            self._builder.free(name)

        self._storages[key] = weakref.ref(storage, gone), name


@contextmanager
def record(name: str) -> Iterator[Recorder]:
    """Records what is done inside, on tensors without values.

    Args:
        name: Of the trace.

    Example:
        >>> with record("one product") as recorder:
        ...     model = torch.nn.Linear(1024, 1024)
        ...     recorder.step()
        ...     model(torch.empty(8, 1024)).sum().backward()
        >>> trace = recorder.trace()
        >>> trace.num_steps, trace.peak_live_bytes > 4 * 1024 * 1024
        (1, True)
    """
    with FakeTensorMode(allow_non_fake_inputs=True), Recorder(name) as recorder:
        yield recorder
