"""Snapshot of a model's state, restored after steps were tried on it."""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from drivetrain_kernels._errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_kernels.selector._workload import Workload

# What candidates set on a module, and take away themselves.
_OURS = frozenset({"_compiled_call_impl", "forward"})


@contextmanager
def state_snapshot(workload: Workload) -> Iterator[None]:
    """Puts back what steps changed: buffers, gradients, attributes, random states.

    Parameters are not copied, because a step without an optimizer leaves them alone;
    `require_unchanged_parameters` checks that.
    """
    modules = list({m: None for root in workload.modules for m in root.modules()})
    attributes = [(m, dict(vars(m))) for m in modules]
    buffers = [(m, dict(m._buffers)) for m in modules]
    values = {
        id(b): (b, b.clone())
        for _, own in buffers
        for b in own.values()
        if b is not None
    }
    grads = [(leaf, leaf.grad) for leaf in workload.leaves]
    with _random_states(workload.device):
        try:
            yield
        finally:
            for leaf, grad in grads:
                leaf.grad = grad
            for part, before in attributes:
                _put_back(vars(part), before)
            for part, own in buffers:
                part._buffers.clear()
                part._buffers.update(own)
            with torch.no_grad():
                for buffer, value in values.values():
                    # One that is a view of few values, or made in inference mode, is
                    # not written to by a step either.
                    if not _same(buffer, value):
                        buffer.copy_(value)


def _same(buffer: torch.Tensor, value: torch.Tensor) -> bool:
    """Returns whether every bit is as it was; NaN is what it is."""
    return torch.equal(buffer, value) or bool(
        torch.allclose(buffer, value, rtol=0.0, atol=0.0, equal_nan=True)
    )


def require_unchanged_parameters(workload: Workload) -> None:
    """Runs one step as the user wrote it, and checks that it can be repeated.

    Raises:
        SelectionError: The step changed a parameter, or its batch; both are put back.
    """
    copies = [(p, p._version, p.detach().clone()) for p in workload.leaves]
    batch = workload.batches[0]
    inputs = [(t, t.detach().clone()) for t in workload.tensors([batch])]
    workload.run(workload.target, batch)
    changed = [(t, value) for t, value in inputs if not _same(t.detach(), value)]
    if changed:
        with torch.no_grad():
            for tensor, value in changed:
                tensor.copy_(value)
        message = (
            "a step that select() tries must not change its batch, and this one did; "
            "copy what it writes to"
        )
        raise SelectionError(message)
    if all(p._version == version for p, version, _ in copies):
        return
    with torch.no_grad():
        for parameter, _, value in copies:
            parameter.copy_(value)
    message = (
        "a step that select() tries must not change parameters, and this one did; "
        "leave the optimizer's step out of it"
    )
    raise SelectionError(message)


def _put_back(found: dict[str, Any], before: dict[str, Any]) -> None:
    for name in [n for n in found if n not in before and n not in _OURS]:
        del found[name]
    for name, value in before.items():
        if name not in _OURS and found.get(name, found) is not value:
            found[name] = value


@contextmanager
def _random_states(device: torch.device) -> Iterator[None]:
    numpy = sys.modules.get("numpy")
    host = random.getstate()
    array = numpy.random.get_state() if numpy else None
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=devices, device_type=device.type):
        try:
            yield
        finally:
            random.setstate(host)
            if numpy:
                numpy.random.set_state(array)
