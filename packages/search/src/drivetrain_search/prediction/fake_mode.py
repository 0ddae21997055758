"""The mode in which tensors have shapes and no values, made fit for whole programs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from drivetrain_search.process.payload import read_payload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from drivetrain_search.process.payload import Payload


@contextmanager
def fake_mode() -> Iterator[None]:
    """Runs what is inside on tensors that have no values, and take no memory."""
    kept = nn.Module._apply
    # Moving a fake weight swaps the tensor itself, which must then have no other user,
    # such as an optimizer.
    nn.Module._apply = _apply_to_data  # type: ignore[method-assign]
    try:
        # A user's closure may hold a real constant.
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        nn.Module._apply = kept  # type: ignore[method-assign]


def _apply_to_data(module: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
    """Does what `Module._apply` does, and keeps every parameter the object it was."""
    for child in module.children() if recurse else ():
        child._apply(fn)  # type: ignore[no-untyped-call]
    for parameter in module.parameters(recurse=False):
        parameter.data = fn(parameter.data)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


def read_fake(payload: Path | str) -> Payload:
    """Returns a payload whose tensors are fake; no weight is read."""
    with fake_mode():
        return read_payload(payload)
