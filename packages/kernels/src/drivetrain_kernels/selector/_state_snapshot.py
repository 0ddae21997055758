"""What a model and its step hold, put back after steps were tried on it."""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from drivetrain_core.extending import ModelSnapshot
from drivetrain_kernels._errors import SelectionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drivetrain_kernels.selector._workload import Workload


@contextmanager
def state_snapshot(workload: Workload) -> Iterator[None]:
    """Puts back what steps changed.

    That is parameters, buffers, gradients, attributes, containers, generators and random
    states; values wait in memory of the host.
    """
    modules = nn.ModuleList(workload.modules)
    snapshot = ModelSnapshot(modules, *workload.held, values=True)
    with _random_states(workload.device):
        try:
            yield
        finally:
            with torch.no_grad():
                snapshot.restore()


def require_unchanged_values(workload: Workload) -> None:
    """Runs one step as the user wrote it, and checks that it can be repeated.

    Raises:
        SelectionError: The step changed a parameter, frozen ones too, or its batch.
    """
    batch = workload.batches[0]
    parameters = [p for module in workload.modules for p in module.parameters()]
    watched: dict[str, list[torch.Tensor]] = {
        "parameters": list(parameters),
        "its batch": workload.tensors([batch]),
    }
    before = {
        what: [(tensor, tensor.detach().clone()) for tensor in tensors]
        for what, tensors in watched.items()
    }
    workload.run(workload.target, batch)
    for what, pairs in before.items():
        changed = [t for t, value in pairs if not _same(t.detach(), value)]
        if not changed:
            continue
        with torch.no_grad():
            for tensor, value in pairs:
                tensor.data.copy_(value)
        message = (
            f"a step that select() tries must not change {what}, and this one did: a "
            f"tensor of shape {tuple(changed[0].shape)}; leave the optimizer's step, and "
            "whatever else writes there, out of it"
        )
        raise SelectionError(message)


def _same(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Returns whether every bit is as it was; NaN is what it is."""
    return torch.equal(tensor, value) or bool(
        torch.allclose(tensor, value, rtol=0.0, atol=0.0, equal_nan=True)
    )


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
